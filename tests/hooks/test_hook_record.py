"""The record of a session with hooks: written before the answer, let go of after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.record import event
from broker.record.journal import read
from broker.record.run_files import list_runs
from broker.serve.hook_record import Session, end, recording, settle

SESSION = Session(id="s", profile="builder", workspace="/w")


def note(state: Path, tool: str) -> None:
    with recording(SESSION, "digest", {"command": ("broker", "hook")}, state) as journal:
        journal.append(event.TOOL_CALLED, tool=tool, what="", outcome="allowed")


def types(state: Path) -> list[str]:
    [path] = list_runs(state)
    return [one["type"] for one in read(path)]


def reached(state: Path) -> list[int]:
    """How far the chain file knows of the run."""
    return [json.loads(line)["count"] for line in (state / "chain.jsonl").read_text().splitlines()]


def test_what_is_recorded_can_be_read_before_it_is_settled_and_is_bound_afterwards(tmp_path: Path) -> None:
    note(tmp_path, "Read")
    assert types(tmp_path) == ["run.started", "tool.called"]
    assert reached(tmp_path) == [1]
    settle()
    assert reached(tmp_path) == [1, 2]


def test_the_next_call_and_the_end_settle_what_the_last_one_left(tmp_path: Path) -> None:
    note(tmp_path, "Read")
    note(tmp_path, "Write")
    end(SESSION, tmp_path)
    assert types(tmp_path) == ["run.started", "tool.called", "tool.called", "run.finished"]
    assert reached(tmp_path)[-1] == 4


def test_what_fails_while_it_is_recorded_is_let_go_of_at_once(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recording(SESSION, "digest", {"command": ("broker", "hook")}, tmp_path):
        raise ZeroDivisionError
    note(tmp_path, "Read")
    settle()
    assert types(tmp_path) == ["run.started", "tool.called"]
