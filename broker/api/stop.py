"""Waiting in the main thread for what another one does, so that Ctrl-C is seen."""

from __future__ import annotations

import time
from collections.abc import Callable

PIECE_SECONDS = 0.5
CALLER = "caller"  # why a task was stopped, in its record: by whoever called it


def wait_for(wait: Callable[[float], object], over: Callable[[], bool], seconds: float | None = None) -> None:
    """Wait until it is over, or for so many seconds, in pieces.

    A signal that arrives just before the main thread begins to wait for a lock is seen when the wait ends, and not before
    (CPython looks for signals when the wait is interrupted, and this one was not): Ctrl-C would do nothing, seen under load.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while not over():
        left = PIECE_SECONDS if deadline is None else min(PIECE_SECONDS, deadline - time.monotonic())
        if left <= 0:
            return
        wait(left)
