"""The record of a started program, between the thread that reads the guard and the one that waits."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from benchmarks.sandboxes import run_in, sandbox
from broker.enforce import wire
from broker.enforce.sandbox import Process

GONE = wire.Exited(spawn=1, status=0, user_us=0, system_us=0, max_rss=0)


def test_a_waiter_that_is_quicker_than_the_news_does_no_harm() -> None:
    """Whoever waits closes the record as soon as it is over; the other thread may not be done with it."""
    for number in range(2_000):
        process = Process(number)
        news = threading.Thread(target=process.finish, args=(GONE,))
        news.start()
        assert process.wait(10) == GONE
        process.close()
        reused = os.eventfd(0, os.EFD_NONBLOCK)  # very likely the same number
        news.join()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(reused)  # nobody wrote to what is not theirs
        os.close(reused)


@pytest.mark.needs_bubblewrap
def test_many_short_programs_in_one_sandbox(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with sandbox("bubblewrap", str(tmp_path / "w"), str(tmp_path / "state")) as (running, task):
        for _ in range(300):
            assert run_in(running, task, ("/bin/true",), str(tmp_path / "w")) == 0
        assert running.failure is None


@pytest.mark.needs_bubblewrap
def test_a_start_in_a_sandbox_that_is_gone_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with sandbox("bubblewrap", str(tmp_path / "w"), str(tmp_path / "state")) as (running, task):
        running.kill()
        with pytest.raises(RuntimeError, match="did not run"):
            run_in(running, task, ("/bin/true",), str(tmp_path / "w"))
