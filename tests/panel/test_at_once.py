"""Several jobs at once: in their order, no more than wanted, and all over when it returns, however that was."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import pytest

from broker.panel.at_once import all_of


def nothing(_: object) -> None:
    pass


def test_what_came_is_in_the_order_of_the_jobs_and_is_told_as_it_comes() -> None:
    first_is_told = threading.Event()
    told: list[int] = []

    def came(number: int) -> None:
        told.append(number)
        first_is_told.set()

    def waits(number: int) -> int:
        assert first_is_told.wait(20)
        return number

    assert all_of([partial(waits, 0), lambda: 1], at_once=2, stop=nothing, came=came) == [0, 1]
    assert told == [1, 0]


def test_no_more_are_at_it_than_wanted() -> None:
    lock, at_it, most = threading.Lock(), 0, 0
    two = threading.Barrier(2, timeout=20)

    def job() -> None:
        nonlocal at_it, most
        with lock:
            at_it += 1
            most = max(most, at_it)
        two.wait()  # as many as may be, are
        with lock:
            at_it -= 1
        two.wait()

    all_of([job] * 6, at_once=2, stop=nothing, came=nothing)

    assert most == 2


def test_nobody_is_asked_where_there_is_nobody() -> None:
    assert all_of([], at_once=4, stop=nothing, came=nothing) == []


def test_what_one_raises_stops_the_others_and_is_raised_when_they_are_over() -> None:
    stopped, over = threading.Event(), []

    def fails() -> None:
        raise ValueError("it failed")

    def waits() -> None:
        assert stopped.wait(20)
        over.append("over")

    with pytest.raises(ValueError, match="it failed"):
        all_of([fails, waits], at_once=2, stop=lambda _: stopped.set(), came=nothing)
    assert over == ["over"]


def test_what_hearing_of_one_raises_stops_the_others_too() -> None:
    stopped = threading.Event()

    def came(_: object) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        all_of([lambda: None, lambda: stopped.wait(20)], at_once=2, stop=lambda _: stopped.set(), came=came)
    assert stopped.is_set()


def test_a_signal_to_end_stops_all_and_is_no_exception() -> None:
    stopped = threading.Event()
    whys: list[str] = []

    def stop(why: str) -> None:
        whys.append(why)
        stopped.set()

    def asks_for_it() -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return stopped.wait(20)

    assert all_of([asks_for_it], at_once=1, stop=stop, came=nothing) == [True]
    assert whys == ["interrupted"]
