"""Whatever is done to the record as a whole shows: a run that is gone, replaced, cut off or made anew, and by whom it is not."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import JournalError
from broker.record import chain, event
from broker.record.chain import Chain
from broker.record.evidence import Finding, State, bind_dead, examine
from broker.record.journal import BOUND_EVENTS, SEGMENT, Journal, read
from broker.record.run_files import journal_path, segments

RUNS = ("20261130-000001-000a", "20261130-000002-000b", "20261130-000003-000c")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Three finished runs of five events each."""
    for run in RUNS:
        _finished(tmp_path, run)
    return tmp_path


def _finished(state: Path, run: str, events: int = 3) -> Path:
    with Journal.create(state, run) as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
        for number in range(events):
            journal.append(event.EXEC_DECIDED, verdict="deny", number=number)
        journal.append(event.RUN_FINISHED, status="exited", exit_code=0)
    return journal.path


def _path(state: Path, number: int = 1) -> Path:
    return journal_path(state, RUNS[number])


def _found(state: Path) -> dict[str, Finding]:
    return {finding.run: finding for finding in examine(state)}


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def _made_anew(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Write a whole chain that is right in itself, as somebody does who has read this code."""
    head, lines = event.GENESIS, []
    for line in _lines(path):
        record = event.decode(line[:-1])
        record.pop("seal", None)
        change(record)
        record["prev"] = head
        text = event.sealed(record) if record["type"] == event.RUN_FINISHED else event.encode(record)
        head = event.digest(text)
        lines.append(text + b"\n")
    path.write_bytes(b"".join(lines))


def _allowed(record: dict[str, object]) -> None:
    if record.get("verdict") == "deny":
        record["verdict"] = "allow"


def test_a_record_that_nobody_touched_is_complete(state: Path) -> None:
    findings = list(examine(state))

    assert [finding.run for finding in findings] == list(reversed(RUNS))
    assert all(finding.ok and finding.bound == 5 and finding.notes == () for finding in findings)


def test_a_run_that_is_gone_is_missed(state: Path) -> None:
    _path(state).unlink()

    found = _found(state)[RUNS[1]]

    assert found.state is State.VANISHED
    assert "the run is gone: entry 4 of the chain file saw 5 events of it" in found.problem
    assert _found(state)[RUNS[0]].ok


def test_an_older_copy_of_a_run_is_found(state: Path) -> None:
    path = journal_path(state, "20261130-000004-000d")
    with Journal.create(state, path.stem) as journal:
        for _ in range(3):
            journal.append("x")
        shutil.copy(path, state / "copy")
        journal.append(event.RUN_FINISHED)
    shutil.copy(state / "copy", path)

    found = _found(state)[path.stem]

    assert found.state is State.TAMPERED
    assert "cut off after event 3: 1 more was recorded" in found.problem


def test_lines_cut_from_the_end_of_a_run_are_missed(state: Path) -> None:
    _path(state).write_bytes(b"".join(_lines(_path(state))[:3]))

    assert "cut off after event 3: 2 more were recorded" in _found(state)[RUNS[1]].problem


def test_an_emptied_run_is_missed(state: Path) -> None:
    _path(state).write_bytes(b"")

    assert "cut off after event 0: 1 more was recorded" in _found(state)[RUNS[1]].problem


def test_two_runs_that_changed_places_are_both_found(state: Path) -> None:
    one, two = _path(state, 0).read_bytes(), _path(state, 1).read_bytes()
    _path(state, 0).write_bytes(two)
    _path(state, 1).write_bytes(one)

    found = _found(state)

    assert f"line 1: it belongs to run {RUNS[1]}, not to {RUNS[0]}" in found[RUNS[0]].problem
    assert f"line 1: it belongs to run {RUNS[0]}, not to {RUNS[1]}" in found[RUNS[1]].problem
    assert found[RUNS[2]].ok


def test_a_run_made_anew_as_a_whole_is_found_by_the_chain_file(state: Path) -> None:
    _made_anew(_path(state), lambda record: record.update(command=["harmless"]) if record["seq"] == 1 else None)

    assert "this is another record: event 1 is not the one that was written" in _found(state)[RUNS[1]].problem


def test_a_run_made_anew_behind_its_start_is_found_and_placed(state: Path) -> None:
    _made_anew(_path(state), _allowed)

    assert "rewritten between events 2 and 5" in _found(state)[RUNS[1]].problem


def test_a_forged_seal_is_found(state: Path) -> None:
    lines = _lines(_path(state))
    last = event.decode(lines[-1][:-1])
    last.pop("seal")
    _path(state).write_bytes(b"".join(lines[:-1]) + event.sealed(last | {"exit_code": 1}) + b"\n")

    assert "rewritten between events 2 and 5" in _found(state)[RUNS[1]].problem


def test_a_run_that_was_put_there_is_found(state: Path) -> None:
    forged = journal_path(state, "20261130-000009-000f")
    forged.write_bytes(_path(state).read_bytes())
    _made_anew(forged, lambda record: record.update(run=forged.stem))

    assert "the chain file knows nothing of this run" in _found(state)[forged.stem].problem


def test_a_chain_file_that_lost_its_end_is_found_by_the_runs(state: Path) -> None:
    path = state / chain.NAME
    path.write_bytes(b"".join(_lines(path)[:2]))
    _path(state, 1).unlink()

    found = _found(state)

    assert found[RUNS[0]].ok
    assert "it began after entry 4 of the chain file, which has only 2" in found[RUNS[2]].problem


def test_a_chain_file_that_is_gone_is_missed_by_every_run(state: Path) -> None:
    (state / chain.NAME).unlink()

    found = _found(state)

    assert "the chain file knows nothing of this run" in found[RUNS[0]].problem
    assert "it began after entry 2 of the chain file, which has only 0" in found[RUNS[1]].problem


def test_a_chain_file_that_was_begun_anew_is_found_by_the_runs(state: Path) -> None:
    (state / chain.NAME).unlink()
    for run in RUNS:
        last = list(read(journal_path(state, run)))
        Chain(state).append(chain.STARTED, run=run, count=1, head=event.digest(event.encode(last[0])))
        Chain(state).append(chain.FINISHED, run=run, count=5, head=event.digest(event.encode(last[-1])))

    found = _found(state)

    assert found[RUNS[0]].ok  # began before there was an entry
    assert "the chain file was made anew" in found[RUNS[1]].problem
    assert "the chain file was made anew" in found[RUNS[2]].problem


def test_runs_of_a_broker_without_a_chain_file_are_said_to_be_bound_by_nothing(tmp_path: Path) -> None:
    older = _finished(tmp_path, RUNS[0])
    _made_anew(older, lambda record: [record.pop(name, None) for name in ("chain", "schema")])
    (tmp_path / chain.NAME).unlink()
    _finished(tmp_path, RUNS[1])

    found = _found(tmp_path)

    assert found[RUNS[0]].ok
    assert "written by a broker that kept no chain file" in found[RUNS[0]].notes[0]
    assert found[RUNS[1]].notes == ()


def test_a_journal_that_lies_elsewhere_is_held_against_itself_only(state: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("evidence") / "a.jsonl"
    copy.write_bytes(b"".join(_lines(_path(state))[:3]))

    (found,) = examine(state, [copy])

    assert (found.ok, found.bound) == (True, 0)


# --- a crash is not tampering


WRITER = """
import sys
from pathlib import Path
from broker.record.journal import Journal
journal = Journal.create(Path(sys.argv[1]), sys.argv[2], segment=int(sys.argv[3]))
while True:
    number = journal.append("exec.decided", argv=["x" * 300])
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("segment", [SEGMENT, 2000], ids=["one-file", "many-segments"])
def test_a_killed_broker_lost_nothing_that_it_acknowledged_and_is_told_from_tampering(segment: int, tmp_path: Path) -> None:
    """The real thing: killed while it writes, and bound up to its last mark."""
    acknowledged = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), RUNS[0], str(segment)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break
            acknowledged = int(line)
            if acknowledged == 2 * BOUND_EVENTS + 200:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL

    (found,) = examine(tmp_path)

    assert found.ok
    assert found.found is not None
    assert acknowledged <= found.found.count <= acknowledged + 1
    assert found.bound >= 2 * BOUND_EVENTS
    assert "unfinished: broker died" in found.notes
    assert any(note.startswith(f"the chain file vouches for {found.bound} of") for note in found.notes)


def test_what_a_killed_broker_had_written_is_bound_by_the_next_look(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0]) as journal:
        for _ in range(10):
            journal.append("x")
    # As if it had been killed before it bound what it wrote.
    path = tmp_path / chain.NAME
    path.write_bytes(_lines(path)[0])
    assert _found(tmp_path)[RUNS[0]].bound == 1

    (entry,) = bind_dead(tmp_path)

    assert (entry.count, entry.head) == (10, journal.head)
    assert _found(tmp_path)[RUNS[0]].bound == 10
    assert bind_dead(tmp_path) == []
    journal.path.write_bytes(b"".join(_lines(journal.path)[:9]))
    assert "cut off after event 9" in _found(tmp_path)[RUNS[0]].problem


def test_a_torn_last_line_behind_what_is_bound_is_a_crash(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0]) as journal:
        journal.append("x")
    with journal.path.open("ab") as file:
        file.write(b'{"seq"')

    (found,) = examine(tmp_path)

    assert found.ok
    assert "a torn last line of 6 bytes: broker died while writing it" in found.notes[0]


def test_a_broker_that_died_between_its_first_line_and_the_chain_file_is_a_crash(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0]) as journal:
        journal.append(event.RUN_STARTED)
    (tmp_path / chain.NAME).write_bytes(b"")

    (found,) = examine(tmp_path)

    assert found.ok
    assert "unfinished: broker died" in found.notes


def test_a_run_that_goes_on_is_running(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED)
        journal.append("x")

        (found,) = examine(tmp_path)

    assert (found.ok, found.running, found.notes) == (True, True, ("still running",))


# --- segments


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A run in several files."""
    with Journal.create(tmp_path, RUNS[0], segment=1500) as journal:
        journal.append(event.RUN_STARTED)
        for number in range(20):
            journal.append("x", number=number)
        journal.append(event.RUN_FINISHED)
    return journal.path


def test_a_long_run_goes_on_in_further_files_and_is_read_and_verified_as_one(long: Path) -> None:
    files = segments(long)
    assert len(files) > 2
    assert [file.name for file in files[1:3]] == [f"{RUNS[0]}.2.jsonl", f"{RUNS[0]}.3.jsonl"]
    assert all(file.stat().st_size <= 1500 for file in files)

    assert [one["seq"] for one in read(long)] == list(range(1, 23))
    (found,) = examine(long.parent.parent)
    assert found.ok
    assert found.found is not None
    assert (found.found.count, found.found.finished) == (22, True)


def test_a_segment_that_is_gone_is_missed_in_the_middle_and_at_the_end(long: Path) -> None:
    files = segments(long)
    last = files[-1].read_bytes()
    files[-1].unlink()
    assert "cut off after event" in _found(long.parent.parent)[RUNS[0]].problem

    files[-1].write_bytes(last)
    files[1].unlink()
    assert "cut off after event" in _found(long.parent.parent)[RUNS[0]].problem


def test_a_problem_in_a_segment_names_the_file_and_its_line(long: Path) -> None:
    second = segments(long)[1]
    lines = _lines(second)
    second.write_bytes(b"".join([lines[0], *lines[2:]]))

    assert f"{second.name}, line 2: event" in _found(long.parent.parent)[RUNS[0]].problem


def test_a_line_without_an_end_is_a_crash_in_the_last_segment_only(long: Path) -> None:
    first = segments(long)[0]
    first.write_bytes(first.read_bytes()[:-5])

    assert "has no end, and" in _found(long.parent.parent)[RUNS[0]].problem


def test_a_long_run_whose_broker_died_is_resumed_in_its_last_segment(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0], segment=1500) as dead:
        for number in range(12):
            dead.append("x", number=number)
    with segments(dead.path)[-1].open("ab") as file:
        file.write(b'{"torn":')

    with Journal.resume(dead.path) as heir:
        heir.append(event.RUN_FINISHED)

    (found,) = examine(tmp_path)
    assert found.ok
    assert [one["seq"] for one in read(dead.path)] == list(range(1, 15))
    assert heir.size == sum(file.stat().st_size for file in segments(dead.path))


def test_a_broker_that_died_before_it_bound_the_end_is_a_crash(tmp_path: Path) -> None:
    _finished(tmp_path, RUNS[0])
    path = tmp_path / chain.NAME
    path.write_bytes(_lines(path)[0])

    (found,) = examine(tmp_path)

    assert found.ok
    assert found.notes == ("broker died before it bound the end: the chain file vouches for 1 of 5 events",)
    assert [entry.count for entry in bind_dead(tmp_path)] == [5]
    assert _found(tmp_path)[RUNS[0]].notes == ()


def test_a_reader_misses_nothing_when_the_writer_goes_on_in_the_next_file(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0], segment=2000) as journal:
        for number in range(3):
            journal.append("x", number=number)
        reader = read(journal.path)
        seen = [next(reader)["seq"] for _ in range(3)]
        for number in range(20):
            journal.append("x", number=number)
        assert len(segments(journal.path)) > 2

        seen += [one["seq"] for one in reader]

    assert seen == list(range(1, 24))


def test_a_segment_that_a_full_disk_left_empty_is_used(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0], segment=1000) as journal:
        journal.append("x", note="n" * 600)
        journal.path.with_name(f"{RUNS[0]}.2.jsonl").touch(mode=0o600)

        journal.append("x", note="n" * 600)

    assert [one["seq"] for one in read(journal.path)] == [1, 2]
    assert len(segments(journal.path)) == 2


def test_a_segment_that_somebody_put_there_is_not_added_to(tmp_path: Path) -> None:
    with Journal.create(tmp_path, RUNS[0], segment=1000) as journal:
        journal.append("x", note="n" * 600)
        planted = journal.path.with_name(f"{RUNS[0]}.2.jsonl")
        planted.write_bytes(b"{}\n")

        with pytest.raises(JournalError, match="somebody put it there"):
            journal.append("x", note="n" * 600)

    assert planted.read_bytes() == b"{}\n"
