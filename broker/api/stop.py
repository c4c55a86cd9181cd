"""How a call that is under way is ended from another thread: by whoever asked for it, and waits no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PIECE_SECONDS = 0.5
CALLER = "caller"  # the reason that a task's record has for it


class Stop:
    """An order to stop, which may come before there is anything to stop."""

    def __init__(self) -> None:
        """Nobody has asked for it yet."""
        self.asked = False
        self._lock = threading.Lock()
        self._orders: list[Callable[[], object]] = []

    def does(self, order: Callable[[], object]) -> None:
        """Have something done when it is asked for: at once, if it was already. It must only wake somebody."""
        with self._lock:
            if not self.asked:
                self._orders.append(order)
                return
        order()

    def ask(self) -> None:
        """Ask for it. A second time does nothing."""
        with self._lock:
            if self.asked:
                return
            self.asked = True
            orders = list(self._orders)
        for order in orders:
            order()


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
