"""Where journals are, who may touch them, and which run a word means."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.errors import JournalError, UsageError
from broker.record.run_files import RUN_ID, find_run, journal_path, list_runs, new_run_id, prepare, state_dir


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Three runs, two of them of one day."""
    runs = prepare(tmp_path / "state")
    for run in ("20261130-043055-7f3a", "20261130-043056-7f3b", "20261201-000000-0001"):
        (runs / f"{run}.jsonl").touch()
    (runs / "notes.txt").touch()
    return tmp_path / "state"


def test_the_state_directory_is_the_operators_choice_then_xdgs_then_the_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/op")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    monkeypatch.setenv("BROKER_STATE_DIR", "/mine")
    assert state_dir() == Path("/mine")

    monkeypatch.delenv("BROKER_STATE_DIR")
    assert state_dir() == Path("/xdg/broker")

    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/invalid")
    assert state_dir() == Path("/home/op/.local/state/broker")


def test_run_ids_sort_by_time_and_are_short() -> None:
    run = new_run_id()

    assert RUN_ID.fullmatch(run)
    assert len(run) == 22


def test_a_run_id_cannot_lead_out_of_the_folder() -> None:
    with pytest.raises(UsageError, match="no run id"):
        journal_path(Path("/state"), "../../etc/passwd")


def test_folders_are_private(tmp_path: Path) -> None:
    runs = prepare(tmp_path / "a" / "state")

    assert stat.S_IMODE(runs.stat().st_mode) == 0o700
    assert stat.S_IMODE(runs.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    prepare(tmp_path / "my state")
    (tmp_path / "my state" / "runs").chmod(0o777)

    with pytest.raises(JournalError, match=r"chmod go-w '.*/my state/runs'"):
        prepare(tmp_path / "my state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "state")
    os.chown(tmp_path / "state" / "runs", 12345, 12345)

    with pytest.raises(JournalError, match="belongs to uid 12345"):
        prepare(tmp_path / "state")


def test_a_state_directory_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()

    with pytest.raises(JournalError, match="cannot make the journal's folder"):
        prepare(tmp_path / "state")


def test_runs_are_listed_newest_first_and_other_files_are_not_runs(state: Path) -> None:
    assert [path.stem for path in list_runs(state)] == [
        "20261201-000000-0001",
        "20261130-043056-7f3b",
        "20261130-043055-7f3a",
    ]
    assert list_runs(state / "nowhere") == []


@pytest.mark.parametrize(
    ("word", "run"),
    [
        ("last", "20261201-000000-0001"),
        ("20261201", "20261201-000000-0001"),
        ("20261130-043055", "20261130-043055-7f3a"),
        ("7f3b", "20261130-043056-7f3b"),
    ],
)
def test_a_run_is_named_by_a_word_that_fits_only_one(state: Path, word: str, run: str) -> None:
    assert find_run(state, word).stem == run


@pytest.mark.parametrize(
    ("word", "sentence"), [("20261130", "could mean 2 runs"), ("zzz", "no run is called")]
)
def test_a_word_that_fits_none_or_several_is_refused(state: Path, word: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        find_run(state, word)


def test_a_path_means_that_file(state: Path) -> None:
    assert find_run(state, "/evidence/a.jsonl") == Path("/evidence/a.jsonl")
