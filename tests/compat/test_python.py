"""CPython: test runs, processes, asyncio, timers."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = pytest.mark.toolchain("python", "python3")


def test_pytest(both: SideBySide) -> None:
    ran = both.same(["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"], project="python")
    assert ran.exit_code == 1
    assert "1 failed, 43 passed" in ran.stdout


def test_pytest_on_several_processes(both: SideBySide) -> None:
    ran = both.same(["python3", "-m", "pytest", "-q", "-n", "2", "tests/test_words.py"], project="python")
    assert "43 passed" in ran.stdout


def test_multiprocessing(both: SideBySide) -> None:
    assert both.same(["python3", "processes.py"], project="python").exit_code == 5


def test_asyncio_subprocesses(both: SideBySide) -> None:
    assert both.same(["python3", "aio.py"], project="python").exit_code == 4


def test_300_pipelines_under_a_timer(both: SideBySide) -> None:
    both.same(["python3", "pipelines.py"], project="python")


def test_a_virtual_environment(both: SideBySide) -> None:
    make = "python3 -m venv --without-pip .venv && .venv/bin/python -c 'import sys; print(sys.prefix)'"
    # Its `python3` is a link to the system's, and what points out of the workspace does not land.
    ran = both.same(["sh", "-c", make], refused=r"created .*/\.venv/bin/python3", files=False)
    held = {row["path"] for row in ran.result["changes"]["withheld"]}
    assert held == {".venv/bin/python3"}
    assert ran.result["changes"]["conflicts"] == []


def test_what_fails_anyway_fails_with_the_errno_that_programs_look_for(both: SideBySide) -> None:
    """Programs try, and go by the answer: `mkdir -p` on what exists, a search along a path."""
    both.same(["python3", "errnos.py"], project="python")


def test_servers_on_localhost_by_every_name(both: SideBySide) -> None:
    both.fresh("python")
    ran = both.inside(["python3", "loopback.py"])
    assert ran.stdout.split() == ["127.0.0.1", "::1", "localhost", "sandbox"]
