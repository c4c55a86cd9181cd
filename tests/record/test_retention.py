"""What retention removes leaves a tombstone, and what must stay stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.errors import JournalError
from broker.record import chain, event
from broker.record.chain import Chain
from broker.record.evidence import State, examine
from broker.record.journal import Journal
from broker.record.retention import Old, old_runs, remove
from broker.record.run_files import list_runs, segments

NOW = 1_800_000_000.0
DAY = 86_400.0
RUNS = [f"20261130-00000{number}-000{number}" for number in range(4)]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Four finished runs, 40, 30, 20 and 10 days old."""
    for number, run in enumerate(RUNS):
        with Journal.create(tmp_path, run, segment=1000) as journal:
            journal.append(event.RUN_STARTED, note="n" * 500)
            journal.append(event.RUN_FINISHED, note="n" * 500)
        _age(journal.path, 40 - 10 * number)
    return tmp_path


def _age(path: Path, days: float) -> None:
    for file in segments(path):
        os.utime(file, (NOW - days * DAY, NOW - days * DAY))


def _old(state: Path, days: float = 15, keep: int = 0, needed: frozenset[str] = frozenset()) -> dict[str, Old]:
    return {old.run: old for old in old_runs(state, now=NOW, older_than=days * DAY, keep=keep, needed=needed)}


def _states(state: Path) -> dict[str, State]:
    return {finding.run: finding.state for finding in examine(state)}


def test_age_and_number_decide_what_goes(state: Path) -> None:
    assert list(_old(state)) == [RUNS[2], RUNS[1], RUNS[0]]
    assert list(_old(state, days=25)) == [RUNS[1], RUNS[0]]
    assert list(_old(state, keep=3)) == [RUNS[0]]
    assert list(_old(state, days=50)) == []


def test_a_removed_run_is_told_from_one_that_vanished(state: Path) -> None:
    old = _old(state)
    assert len(segments(old[RUNS[0]].path)) == 2

    remove(state, old[RUNS[0]])
    for file in segments(old[RUNS[1]].path):
        file.unlink()

    assert [path.name for path in sorted((state / "runs").iterdir()) if RUNS[0] in path.name] == []
    assert _states(state) == {RUNS[0]: State.REMOVED, RUNS[1]: State.VANISHED, RUNS[2]: State.OK, RUNS[3]: State.OK}
    (note,) = next(finding for finding in examine(state) if finding.run == RUNS[0]).notes
    assert note.startswith("removed by retention at 2")
    assert ": 2 events, head " in note


def test_the_tombstone_stands_before_the_files_go(state: Path) -> None:
    """As a broker leaves it that was killed in between: nothing is missing, and the next one finishes it."""
    old = _old(state)[RUNS[0]]
    Chain(state).append(chain.REMOVED, run=old.run, count=2, head=Chain(state).read().entries[1].head)

    (finding,) = examine(state, [old.path])
    assert finding.ok
    assert "and it is still here" in finding.notes[0]

    remove(state, old)
    assert _states(state)[RUNS[0]] is State.REMOVED


def test_a_tombstone_for_what_was_not_there_is_no_way_to_change_a_run(state: Path) -> None:
    Chain(state).append(chain.REMOVED, run=RUNS[0], count=2, head="f" * 64)

    assert _states(state)[RUNS[0]] is State.TAMPERED


def test_what_is_written_needed_or_does_not_verify_stays(state: Path) -> None:
    path = list_runs(state)[1]
    path.write_bytes(path.read_bytes().replace(b"run.started", b"run.stopped"))
    _age(path, 20)
    with Journal.create(state, "20261129-000000-0000") as running:
        running.append(event.RUN_STARTED)
        _age(running.path, 60)

        stays = {run: old.stays for run, old in _old(state, needed=frozenset({RUNS[1]})).items()}

        assert stays[RUNS[2]].startswith("it does not verify, and would be evidence: ")
        assert stays[RUNS[1]].startswith("changes of it are kept")
        assert stays[RUNS[0]] == ""
        assert stays[running.run] == "it is being written"
        with pytest.raises(JournalError, match="another broker"):
            remove(state, _old(state)[running.run])
    with pytest.raises(JournalError, match="is not removed"):
        remove(state, _old(state)[RUNS[2]])
    assert path.exists()


def test_on_a_full_disk_nothing_is_removed_without_a_tombstone(tiny_disk: Path) -> None:
    with Journal.create(tiny_disk, RUNS[0]) as journal:
        journal.append(event.RUN_FINISHED)
    path = tiny_disk / chain.NAME
    overhead = len(event.encode({**Chain(tiny_disk).append("x").fields, "note": ""})) + 1
    Chain(tiny_disk).append("x", note="n" * (4096 - path.stat().st_size - overhead))
    assert path.stat().st_size == 4096  # so that one more entry needs another page
    with (tiny_disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
        while True:
            ballast.write(b"x" * 4096)

    with pytest.raises(JournalError, match="full|No space"):
        remove(tiny_disk, next(old_runs(tiny_disk, now=NOW)))

    assert journal.path.exists()


# --- as an operator does it


def test_gc_removes_records_only_when_told_to_and_says_how_old(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", str(state))
    for path in list_runs(state)[1:]:
        for file in segments(path):
            os.utime(file, (1_000_000_000, 1_000_000_000))

    assert main(["gc", "--older-than", "30d", "--dry-run"]) == 0
    assert main(["gc", "--journals"]) == 64
    assert "say how old" in capsys.readouterr().err
    assert main(["gc", "--keep", "1"]) == 64
    assert main(["gc", "--journals", "--older-than", "30d", "--keep", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"would remove  the record of {RUNS[0]}" in out
    assert RUNS[2] not in out
    assert len(list_runs(state)) == 4

    assert main(["gc", "--journals", "--older-than", "30d", "--keep", "2", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)["journals"]
    assert [(row["run"], row["removed"]) for row in rows] == [(RUNS[1], True), (RUNS[0], True)]
    assert main(["events", "verify"]) == 0
    told = capsys.readouterr().out
    assert told.count("removed by retention at") == 2
    assert "chain file  ok  10 entries" in told
