"""Step 5, reading: what became of the plans and the panels of a run, told from its events.

In: events, one at a time. Out: each step of each plan with its last state, and what each judge and each panel said.
"""

from __future__ import annotations

from typing import Any

from broker.record import event
from broker.values import dataclass

LISTED = 1_000


@dataclass(slots=True, kw_only=True)
class StepSummary:
    """A step of a task's plan. `refused`: how often it was said to be done and was not."""

    task: str
    step: str
    title: str = ""
    state: str = ""
    refused: int = 0
    waived: str = ""  # who waived a check of it, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewSummary:
    """What a judge, or a panel (`judge` of ''), said of a change. `findings` are in words, as many as are listed."""

    panel: str
    judge: str
    verdict: str
    reason: str
    findings: tuple[str, ...] = ()


class Reviews:
    """Adds them up."""

    def __init__(self, steps: list[StepSummary], reviews: list[ReviewSummary]) -> None:
        """Write into these lists."""
        self._steps, self._reviews = steps, reviews
        self._known: dict[tuple[str, str], StepSummary] = {}

    def add(self, one: dict[str, Any], kind: str, task: str) -> None:
        """Take note of an event, if it is one of these."""
        if kind.startswith("plan."):
            self._planned(one, kind, task)
        elif kind in (event.JUDGE_VERDICT, event.PANEL_DECIDED) and len(self._reviews) < LISTED:
            self._reviews.append(ReviewSummary(
                panel=str(one.get("panel", "")), judge=str(one.get("judge", "")), verdict=str(one.get("verdict", "")),
                reason=str(one.get("reason", "")), findings=tuple(map(_words, _rows(one.get("findings")))),
            ))  # fmt: skip

    def _planned(self, one: dict[str, Any], kind: str, task: str) -> None:
        if kind in (event.PLAN_CREATED, event.PLAN_REVISED):
            for row in _rows(one.get("steps")):
                if (step := self._step(task, str(row.get("id", "")))) is not None and not step.title:
                    step.title = str(row.get("title", ""))
        for moved in one.get("transitions") or ():
            if isinstance(moved, list) and len(moved) == 3 and (step := self._step(task, str(moved[0]))) is not None:
                step.state = str(moved[2]) or "removed"
        if kind == event.PLAN_REFUSED and (step := self._step(task, str(one.get("step", "")))) is not None:
            step.refused += 1
        if kind == event.PLAN_WAIVED and (step := self._step(task, str(one.get("step", "")))) is not None:
            step.waived = f"check {one.get('check')}, by {one.get('who', '?')}: {one.get('because', '')}"

    def _step(self, task: str, name: str) -> StepSummary | None:
        found = self._known.get((task, name))
        if found is None and name and len(self._steps) < LISTED:
            found = self._known[task, name] = StepSummary(task=task, step=name)
            self._steps.append(found)
        return found


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _words(row: dict[str, Any]) -> str:
    place = f"{row.get('file', '')}:{row['line']}" if row.get("line") else str(row.get("file", ""))
    shown = f" ({str(row['shown']).replace('_', ' ')})" if row.get("shown") else ""
    return f"{row.get('severity', '')} {place} {row.get('claim', '')}{shown}"
