"""No record, no run: what cannot be written down does not happen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.driver import Broker
from conformance.fixtures import as_root, disk_of

pytestmark = as_root


@pytest.fixture(autouse=True)
def effects_are_seen_at_once(broker: Broker) -> None:
    """What runs is to leave a trace in the workspace when it runs, not when something lands."""
    broker.profile("any", sandbox={"workspace": "direct"})


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 64 KiB."""
    with disk_of(64) as place:
        yield place


def fill(place: Path, leave: int) -> None:
    """Use up a disk, but for some bytes."""
    with (place / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            size = ballast.tell()
        ballast.truncate(max(0, size - leave))


def test_on_a_full_disk_nothing_runs_and_it_is_73(broker: Broker, small_disk: Path) -> None:
    fill(small_disk, 0)
    broker.environment["BROKER_STATE_DIR"] = str(small_disk)

    done = broker.run("sh", "-c", "echo ran; touch ran")

    assert (done.code, done.out) == (73, b"")
    assert b"full" in done.err or b"No space" in done.err
    assert not (broker.workspace / "ran").exists()


def test_when_the_disk_fills_up_on_the_way_the_task_ends_with_73(broker: Broker, small_disk: Path) -> None:
    broker.environment["BROKER_STATE_DIR"] = str(small_disk)
    # Different each time, so that each has to be recorded.
    script = "n=0; while [ $n -lt 3000 ]; do n=$((n+1)); /bin/echo $n >>counted; done; touch finished"

    done = broker.run("bash", "-c", script)

    assert done.code == 73
    assert b"full" in done.err or b"No space" in done.err
    assert not (broker.workspace / "finished").exists()
    assert broker.nothing_survives()
    # What ran is in the record: not one start more than the journal has.
    [journal] = (small_disk / "runs").glob("*.jsonl")
    counted = len((broker.workspace / "counted").read_bytes().split())
    assert counted <= journal.read_bytes().count(b'"exec.decided"')
    verified = broker.verb("events", "verify", str(journal))
    assert verified.returncode == 0, verified.stdout


def test_what_cannot_be_recorded_does_not_land(broker: Broker, small_disk: Path) -> None:
    broker.profile("any")  # copy-on-write
    broker.environment["BROKER_STATE_DIR"] = str(small_disk)
    script = "echo x >made; n=0; while [ $n -lt 3000 ]; do n=$((n+1)); /bin/echo $n >>counted; done"

    done = broker.run("bash", "-c", script)

    assert done.code == 73
    assert list(broker.workspace.iterdir()) == []
    assert len(broker.kept()) == 1


def test_a_journal_that_cannot_be_made_starts_nothing(broker: Broker) -> None:
    blocked = broker.folder / "blocked"
    blocked.write_text("a file, not a folder")
    broker.environment["BROKER_STATE_DIR"] = str(blocked)

    done = broker.run("touch", "ran")

    assert done.code == 73
    assert done.err.count(b"\n") == 1
    assert not (broker.workspace / "ran").exists()


def test_a_state_folder_that_others_can_write_is_refused(broker: Broker) -> None:
    broker.state.chmod(0o777)

    done = broker.run("touch", "ran")

    assert done.code == 73
    assert b"chmod" in done.err
    assert not (broker.workspace / "ran").exists()


def test_exec_too_is_refused_when_the_refusal_cannot_be_recorded(broker: Broker, small_disk: Path) -> None:
    fill(small_disk, 0)
    broker.environment["BROKER_STATE_DIR"] = str(small_disk)

    done = broker.run("curl", "https://example.com", verb="exec", profile="default")

    assert done.code == 73


def test_a_result_that_the_disk_cannot_take_is_told_and_the_record_has_it(broker: Broker, small_disk: Path) -> None:
    fill(small_disk, 0)

    done = broker.run("sh", "-c", "exit 3", options=["--result", str(small_disk / "result.json")])

    assert done.code == 70
    assert b"result.json" in done.err and b"No space" in done.err and b"ended with 3" in done.err
    assert broker.events()[-1]["exit_code"] == 3


def test_a_result_file_that_cannot_be_made_is_told_before_anything_runs(broker: Broker) -> None:
    done = broker.run("touch", "ran", options=["--result", str(broker.folder / "missing" / "result.json")])

    assert done.code == 64
    assert b"result.json" in done.err
    assert not (broker.workspace / "ran").exists()
