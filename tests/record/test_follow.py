"""Following shows what is written, once, in order, and ends when there is nothing more to come."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.record import event
from broker.record.follow import Follower
from broker.record.journal import Journal
from broker.record.query import Found
from broker.record.select import Selection

ALL = Selection()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


class Following:
    """A follower on a thread of its own, whose events are asked for one by one."""

    def __init__(self, paths: list[Path], selection: Selection = ALL, folder: Path | None = None) -> None:
        self.follower = Follower(paths, folder=folder)
        self.follower.ends()
        self._new = threading.Semaphore(0)
        self._seen: list[Found] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(selection,), daemon=True)
        self._thread.start()

    def _read(self, selection: Selection) -> None:
        for found in self.follower.events(selection):
            self._seen.append(found)
            self._new.release()
        self.ended.set()

    def next(self) -> dict[str, object]:
        assert self._new.acquire(timeout=60)
        return self._seen.pop(0).event


def test_what_is_written_is_shown_until_the_run_is_over(state: Path) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED)
        following = Following([journal.path])
        for number in range(50):
            journal.append(event.EXEC_DECIDED, number=number)
            assert following.next()["number"] == number
        journal.append(event.RUN_FINISHED)
        assert following.next()["type"] == event.RUN_FINISHED
        assert following.ended.wait(60)


def test_a_line_is_shown_when_it_is_whole_and_not_before(state: Path, tmp_path: Path) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED)
        journal.append(event.EXEC_DECIDED, number=1)
        journal.append(event.RUN_FINISHED)
    lines = journal.path.read_bytes().splitlines(keepends=True)
    slow = tmp_path / "slow.jsonl"
    with slow.open("wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # or it would be nobody's, and over
        following = Following([slow])
        for line in lines:
            for piece in (line[:7], line[7:-1], line[-1:]):
                assert not following._seen
                file.write(piece)
            assert following.next()["seq"]


def test_only_what_was_asked_for_is_shown_and_what_was_said_before_counts(state: Path) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, profile="lead")
        journal.append(event.TASK_CREATED, task="root/1", profile="builder")
        following = Following([journal.path], Selection(profiles=("builder",), verdicts=("deny",)))
        for task, verdict in (("root", "deny"), ("root/1", "allow"), ("root/1", "deny")):
            journal.append(event.EXEC_DECIDED, task=task, verdict=verdict)
        assert following.next()["seq"] == 5


def test_runs_that_begin_are_followed_as_well(state: Path) -> None:
    with Journal.create(state) as first:
        following = Following([first.path], folder=state / "runs")
        first.append(event.RUN_STARTED)
        assert following.next()["run"] == first.run
        for _ in range(3):
            with Journal.create(state) as new:
                new.append(event.RUN_STARTED)
                new.append(event.RUN_FINISHED)
                assert [following.next()["type"], following.next()["type"]] == [event.RUN_STARTED, event.RUN_FINISHED]
        first.append(event.EXEC_DECIDED)
        assert following.next()["run"] == first.run


def test_a_run_that_goes_on_in_another_file_is_followed_there(state: Path) -> None:
    with Journal.create(state, segment=4096) as journal:
        journal.append(event.RUN_STARTED)
        following = Following([journal.path])
        for number in range(100):
            journal.append(event.EXEC_DECIDED, number=number, note="n" * 100)
            assert following.next()["number"] == number
        assert list((state / "runs").glob("*.2.jsonl"))
        journal.append(event.RUN_FINISHED)
        assert following.next()["type"] == event.RUN_FINISHED
        assert following.ended.wait(60)


def test_a_run_whose_broker_is_killed_is_over(state: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom broker.record.journal import Journal\n"
        "journal = Journal.create(Path(sys.argv[1])); journal.append('run.started'); print(journal.path, flush=True)\n"
        "for line in sys.stdin: journal.append('exec.decided')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        following = Following([Path(process.stdout.readline().strip())])
        process.stdin.write("x\n")
        process.stdin.flush()
        assert following.next()["type"] == event.EXEC_DECIDED
        assert not following.ended.is_set()
        process.send_signal(signal.SIGKILL)
        assert following.ended.wait(60)


def test_a_run_that_is_over_is_not_waited_for(state: Path) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED)
        journal.append(event.RUN_FINISHED)
    assert Following([journal.path]).ended.wait(60)


def test_following_holds_no_lock_in_which_a_broker_could_run(state: Path) -> None:
    """To ask whether a journal is being written takes its lock for a moment; a run that begins must find it free."""
    with Journal.create(state) as journal:
        following = Following([journal.path], folder=state / "runs")
        for _ in range(200):
            with Journal.create(state) as new:
                new.append(event.RUN_STARTED)
                assert following.next()["run"] == new.run


# --- as a command


@pytest.fixture
def follow(state: Path) -> Iterator[subprocess.Popen[str]]:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
        for number in range(5):
            journal.append(event.EXEC_DECIDED, verdict="deny", number=number, rule="program.curl")
        with subprocess.Popen(
            [sys.executable, "-m", "broker", "events", "last", "--follow", "--limit", "2", "--rule", "program.curl"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "BROKER_STATE_DIR": str(state)},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert [process.stdout.readline().split()[0] for _ in range(2)] == ["5", "6"]
            journal.append(event.EXEC_DECIDED, verdict="deny", number=9, rule="program.curl")
            assert process.stdout.readline().split()[0] == "7"
            yield process
            process.kill()


def test_the_command_shows_the_newest_and_goes_on(follow: subprocess.Popen[str]) -> None:
    assert follow.poll() is None


def test_the_command_ends_when_its_reader_goes_away_although_nothing_happens(follow: subprocess.Popen[str]) -> None:
    assert follow.stdout is not None
    assert follow.stderr is not None
    follow.stdout.close()
    assert follow.wait(timeout=60) == 0
    assert follow.stderr.read() == ""
