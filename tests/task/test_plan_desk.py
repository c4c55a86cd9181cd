"""Where a plan lies: nothing counts before it is recorded, and what a worker can have recorded is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.decide.plan import Plan, Unfounded
from broker.enforce.layer_digest import ReadOnlyDigest
from broker.errors import JournalError, UsageError
from broker.record.journal import Journal, read
from broker.request.plan import Owner, steps_of
from broker.task.plan import MOST_REFUSALS, MOST_REVISIONS, PlanDesk, PlanGate, rebuilt

STEPS = steps_of({"steps": [{"id": "a", "title": "a", "checks": [{"argv": ["true"]}]}]}, Owner.WORKER)


def desk_on(journal: Journal, workspace: Path) -> PlanDesk:
    return PlanDesk(journal.append, ReadOnlyDigest(str(workspace)))


def test_what_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "state") as journal:
        desk = desk_on(journal, tmp_path)
        desk.create(STEPS, Owner.WORKER)
        before = desk.plan
    with pytest.raises(JournalError):
        desk.begin("a")
    assert desk.plan is before
    with pytest.raises(JournalError):  # and it lands nothing, either
        PlanGate(desk)


def test_a_worker_revises_so_often_and_an_operator_as_often_as_he_likes(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "state") as journal:
        desk = desk_on(journal, tmp_path)
        desk.create(STEPS, Owner.OPERATOR)
        found = [desk.revise(STEPS, Owner.WORKER) for _ in range(MOST_REVISIONS + 1)]
        assert all(isinstance(one, Plan) for one in found[:-1])
        assert isinstance(found[-1], Unfounded)
        assert isinstance(desk.revise(STEPS, Owner.OPERATOR), Plan)
        assert journal.count == MOST_REVISIONS + 2


def test_refusals_are_answered_for_ever_and_recorded_so_often(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "state") as journal:
        desk = desk_on(journal, tmp_path)
        for _ in range(MOST_REFUSALS + 10):
            assert isinstance(desk.complete("a"), Unfounded)
        assert journal.count == MOST_REFUSALS


def test_without_a_workspace_that_has_a_digest_there_is_no_plan(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "state") as journal, pytest.raises(UsageError):
        PlanDesk(journal.append, None).create(STEPS, Owner.OPERATOR)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "plan.begun"}, {"type": "plan.observed", "step": "a", "check": 9}, {"type": "plan.observed", "step": "z", "check": 1},
        {"type": "plan.revised", "by": "nobody", "steps": []}, {"type": "plan.moon", "step": "a"}, {"type": "plan.waived", "step": "a"},
        {"type": "plan.completed", "step": "a", "workspace": "0" * 64},
    ],
)  # fmt: skip
def test_an_event_that_makes_no_sense_is_passed_over(tmp_path: Path, odd: dict[str, Any]) -> None:
    with Journal.create(tmp_path / "state") as journal:
        desk = desk_on(journal, tmp_path)
        desk.create(STEPS, Owner.WORKER)
        desk.begin("a")
    events = list(read(journal.path))

    assert rebuilt([*events[:1], odd | {"task": "root"}, *events[1:]])["root"] == desk.plan
