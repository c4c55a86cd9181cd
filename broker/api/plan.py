"""The plan of an open task, for the operator's program.

In: steps, as a plan file has them. Out: PlanStatus. Evidence is what broker sees of the checks; a program cannot bring any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from broker.api.opened import Opened
from broker.api.values import PlanCheck, PlanStatus, PlanStep
from broker.decide.plan import Unfounded
from broker.request.plan import Owner
from broker.serve.inside_plan import act, desk_of
from broker.serve.tools_inside import Call, Problem, Workplace
from broker.stop import Stop
from broker.task.plan import as_table

Steps = Sequence[Mapping[str, Any]]


class Plans:
    """The plan of a task. Each call returns how it stands; what cannot be is no exception, but a `code` with a `message`."""

    def __init__(self, task: Opened) -> None:
        """Take the task."""
        self._task = task

    def create(self, steps: Steps) -> PlanStatus:
        """Make the plan; a check that says no `owner` is the operator's.

        b.plan.create([{"id": "tests", "title": "tests pass", "checks": [{"argv": ["go", "test", "./..."]}]}])
        """
        return self._act("create", steps=steps)

    def revise(self, steps: Steps) -> PlanStatus:
        """Replace the steps. What is known of a check that stays the same is kept."""
        return self._act("revise", steps=steps)

    def show(self) -> PlanStatus:
        """Return the plan as it is on the workspace as it is."""
        return self._act("show")

    def begin(self, step: str) -> PlanStatus:
        """Begin a step: what was seen before does not count."""
        return self._act("begin", step=step)

    def check(self, step: str, stop: Stop | None = None) -> PlanStatus:
        """Have the checks of a step run (STEP), or one of them (STEP.N). To their end: they have time limits of their own."""
        return self._act("check", step=step, stop=stop)

    def complete(self, step: str) -> PlanStatus:
        """Say that a step is done: it is if each of its checks was seen succeeding on the workspace as it is."""
        return self._act("complete", step=step)

    def waive(self, step: str, check: int, because: str) -> PlanStatus:
        """Let a check (1 to 4) be, for a reason that is recorded."""
        with self._task.call() as session:
            found = desk_of(session.stage).waive(step, check, who=f"uid {os.getuid()}", because=because)
        return PlanStatus(code="invalid", message=found.reason) if isinstance(found, Unfounded) else _status(as_table(found))

    def _act(self, action: str, *, step: str = "", steps: Steps = (), stop: Stop | None = None) -> PlanStatus:
        stop, call = stop or Stop(), Call()
        stop.does(call.ask)
        with self._task.call(stop) as session:
            here = Workplace(stage=session.stage, budget=session.budget)
            found = act(here, call, action, step=step, steps=list(steps), by=Owner.OPERATOR)
        if isinstance(found, Problem):
            return PlanStatus(code=found.code, message=found.message, missing=tuple(found.facts.get("missing", ())))
        return _status(found)


def _status(table: dict[str, Any]) -> PlanStatus:
    steps = tuple(
        PlanStep.of(row, checks=tuple(
            PlanCheck.of(one, exit_code=one["evidence"]["exit_code"] if "evidence" in one else None) for one in row["checks"]
        ))
        for row in table["steps"]
    )  # fmt: skip
    return PlanStatus(code="ok", done=table["done"], workspace=table["workspace"], steps=steps)
