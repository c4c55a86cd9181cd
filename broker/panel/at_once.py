"""Several at once: judges need not wait for one another, and when somebody wants it to end, all of them end.

In: jobs, and how many may go on at a time. Out: what came of each, in their order. Whatever happens, none of them is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from broker.enforce.attach import ENDING, signals_as_events
from broker.enforce.ready import readable

T = TypeVar("T")


def all_of(jobs: Sequence[Callable[[], T]], *, at_once: int, stop: Callable[[str], None], came: Callable[[T], None]) -> list[T]:
    """Do all jobs, at most `at_once` at a time, each on a thread of its own. `came` hears what came of each, on this thread.

    `stop` is told why, when a signal that people send to end something arrives (on the main thread), or a job raised: it has to
    make what runs end soon, and what has not begun yet do nothing. All are waited for, and then what was raised first is raised.
    """
    news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        with signals_as_events() as signals, ThreadPoolExecutor(min(at_once, len(jobs)) or 1, "judge") as pool:
            waiting: list[Future[T]] = [pool.submit(job) for job in jobs]
            found = list(waiting)
            for one in waiting:
                one.add_done_callback(lambda _: os.eventfd_write(news, 1))
            try:
                while waiting:
                    ready = readable([news, signals])
                    if signals in ready:
                        _heed(os.read(signals, 256), stop)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(news)
                    for one in [job for job in waiting if job.done()]:
                        waiting.remove(one)
                        came(one.result())
            except BaseException:
                stop("failed")
                raise
            return [one.result() for one in found]
    finally:
        os.close(news)  # only now: the pool has waited for every job, so nobody writes to it any more


def _heed(numbers: bytes, stop: Callable[[str], None]) -> None:
    """Take what somebody sent. Judges have no terminal: for them Ctrl-C is an order to us to end them."""
    for number in numbers:
        if number in ENDING:
            stop("interrupted")
        elif number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
