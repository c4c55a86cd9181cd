"""The plan of a task: kept here while its task runs, and in the journal for ever.

In: what the worker, the operator and the broker's own eyes say of it. Out: the plan after that, or why not. Each step of the
machine (broker.decide.plan) is recorded before it counts, with the transitions that it makes; there is no other store, and a
plan is rebuilt from its events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from broker.decide.plan import (
    Begun,
    Changed,
    Completed,
    Created,
    Denied,
    Evidence,
    Happening,
    Observed,
    Plan,
    Revised,
    State,
    Unfounded,
    Waived,
    Waiver,
    after,
    transitions,
    words_of,
)
from broker.enforce.layer_digest import LayerDigest, ReadOnlyDigest
from broker.errors import BrokerError, JournalError, UsageError
from broker.record import event
from broker.request.plan import Invocation, Owner, Step, as_data, check_data, steps_of
from broker.task.changes import Judged, left_out

Record = Callable[..., None]
WorkspaceDigest = LayerDigest | ReadOnlyDigest
MOST_REVISIONS = 200  # by a worker: each is recorded whole, and may have 256 KiB
MOST_REFUSALS = 1_000  # recorded; what is refused after that is only answered


class PlanDesk:
    """Where the plan of one task lies. Safe to use from several threads; nothing that takes long is done under its lock."""

    def __init__(self, record: Record, workspace: WorkspaceDigest | None) -> None:
        """Begin without a plan. `record` writes an event of the task; `workspace` of None has no digest: it is changed directly."""
        self._record = record
        self.digest = workspace
        self._lock = threading.Lock()
        self._refusals = self._revisions = 0
        self.plan: Plan | None = None

    @property
    def workspace(self) -> WorkspaceDigest:
        """What evidence is bound to. Raises UsageError where nothing is."""
        if self.digest is None:
            raise UsageError(
                'evidence is bound to a copy-on-write workspace, and this task changes the real files (sandbox.workspace = "direct")'
            )
        return self.digest

    def create(self, steps: tuple[Step, ...], by: Owner) -> Plan | Unfounded:
        """Make the plan. Raises UsageError where there can be none."""
        _ = self.workspace
        return self._take(Created(steps=steps, by=by), by=by)

    def revise(self, steps: tuple[Step, ...], by: Owner) -> Plan | Unfounded:
        """Replace what is somebody's (`by`)."""
        if by is Owner.WORKER:
            self._revisions += 1
            if self._revisions > MOST_REVISIONS:
                return Unfounded(reason=f"the plan was revised {MOST_REVISIONS} times. Work on it as it is")
        return self._take(Revised(steps=steps, by=by), by=by)

    def begin(self, step: str) -> Plan | Unfounded:
        """Begin a step."""
        return self._take(Begun(step=step, at=time.time()))

    def look(self) -> Plan | None:
        """Return the plan as it is on the workspace as it is."""
        if self.plan is None:
            return None
        self._take(Changed(workspace=self.workspace.now()))
        return self.plan

    def observed(self, step: str, invocation: Invocation, evidence: Evidence) -> Plan | Unfounded:
        """A check was seen ending."""
        return self._take(Observed(step=step, invocation=invocation, evidence=evidence))

    def denied(self, step: str, invocation: Invocation, reason: str) -> Plan | Unfounded:
        """A check was refused."""
        return self._take(Denied(step=step, invocation=invocation, reason=reason))

    def complete(self, step: str) -> Plan | Unfounded:
        """Say that a step is done. It is, where each of its checks was seen succeeding on the workspace as it is."""
        if self.plan is None:
            return self._take(Completed(step=step, workspace=""))
        workspace = self.workspace.now(cached=False)
        self._take(Changed(workspace=workspace))
        return self._take(Completed(step=step, workspace=workspace))

    def waive(self, step: str, check: int, *, who: str, because: str) -> Plan | Unfounded:
        """Let a check be, on an operator's word. Nothing inside a sandbox leads here."""
        waiver = Waiver(who=who, because=because, at=time.time())
        return self._take(Waived(step=step, check=check, waiver=waiver, by=Owner.OPERATOR))

    def settle(self) -> tuple[str, ...]:
        """Say why the changes may not land on this plan; nothing: they may. No process of the task may be left by then."""
        if self.plan is None:
            why: tuple[str, ...] = ("there is no plan",)
        else:
            self._take(Changed(workspace=self.workspace.now(cached=False)))
            why = self.plan.missing()
        self._record(event.PLAN_SETTLED, done=not why, missing=why, workspace=self.plan.workspace if self.plan else "")
        return why

    def _take(self, happening: Happening, by: Owner = Owner.WORKER) -> Plan | Unfounded:
        """Let something happen: it is recorded first, and it counts afterwards."""
        with self._lock:
            found = after(self.plan, happening)
            if isinstance(found, Unfounded):
                self._refusals += 1
                if self._refusals <= MOST_REFUSALS:
                    step = "" if isinstance(happening, Created | Revised | Changed) else happening.step
                    self._record(
                        event.PLAN_REFUSED, what=_kind(happening), step=step, by=by.label, reason=found.reason, missing=found.missing
                    )
                return found
            moved = transitions(self.plan, found)
            if not isinstance(happening, Changed) or moved or _lost(self.plan, found):
                self._record(_kind(happening), transitions=moved, **_fields(happening, found))
            self.plan = found
            return found


class PlanGate:
    """Whether a task's changes land, when they land on its plan only (`--land on-plan`). Made when no process of it is left."""

    def __init__(self, desk: PlanDesk) -> None:
        """Look at the plan once more, on what would land. Recorded."""
        try:
            self._missing = desk.settle()
        except JournalError:
            raise
        except BrokerError as error:
            self._missing = (str(error),)

    @property
    def done(self) -> bool:
        """Whether nothing was missing."""
        return not self._missing

    def may_land(self, judged: Judged) -> bool:
        """Whether they do: all of them, because the evidence was seen with all of them there."""
        return not self._missing and not judged.withheld and not judged.conflicts

    def why_not(self, changes: Mapping[str, Any]) -> str:
        """Say what is in the way, once they were settled; '' if nothing was."""
        if self._missing:
            more = f" (and {len(self._missing) - 1} more)" if len(self._missing) > 1 else ""
            return f"the plan is not done: {self._missing[0]}{more}"
        left = left_out(changes)
        return f"the plan was done with changes of which {left} cannot land, so it says nothing about the rest" if left else ""


def _lost(before: Plan | None, now: Plan) -> bool:
    """Whether evidence has become stale, in a step that was not done anyway."""
    assert before is not None
    return [[one.state for one in step.checks] for step in before.steps] != [[one.state for one in step.checks] for step in now.steps]


def rebuilt(events: Iterable[dict[str, Any]]) -> dict[str, Plan]:
    """Return the plans that the events of a run tell of, by their tasks' paths. What makes no sense is passed over."""
    plans: dict[str, Plan] = {}
    for one in events:
        kind, task = str(one.get("type")), str(one.get("task"))
        happening = _told(kind, one, plans.get(task)) if kind.startswith("plan.") else None
        if happening is not None:
            found = after(plans.get(task), happening)
            if isinstance(found, Plan):
                plans[task] = found
    return plans


def as_table(plan: Plan) -> dict[str, Any]:
    """Return a plan as data, for programs and for people."""
    steps = []
    for step in plan.steps:
        checks = []
        for number, one in enumerate(step.checks, 1):
            row = {"check": f"{step.id}.{number}", "what": words_of(one.check.invocation), "state": str(one.state), **check_data(one.check)}
            if one.lacks:
                row["lacks"] = one.lacks
            if one.evidence is not None:
                row["evidence"] = {
                    "exit_code": one.evidence.exit_code, "workspace": one.evidence.after, "started": one.evidence.started,
                    "at": one.evidence.at, "rewritten": one.evidence.rewritten,
                }  # fmt: skip
            if one.waiver is not None:
                row["waived"] = {"who": one.waiver.who, "because": one.waiver.because, "at": one.waiver.at}
            checks.append(row)
        steps.append({"id": step.id, "title": step.title, "state": str(step.state), "checks": checks})
    return {"done": plan.done, "workspace": plan.workspace, "steps": steps}


def mark_of(state: str) -> str:
    """Return how a state is shown in a list."""
    return {"done": "✓", "passed": "✓", "waived": "–", "active": "▸", "pending": "·", "open": "·"}.get(state, "✗")


def as_text(table: dict[str, Any]) -> list[str]:
    """Return a plan in lines, for people and agents. Whoever prints them to a terminal escapes them."""
    lines = []
    for step in table["steps"]:
        lines.append(f"{mark_of(step['state'])} {step['id']:<10} {step['state']:<8} {step['title']}")
        for one in step["checks"]:
            owner = f"  ({one['owner']}'s)" if one["owner"] != "worker" else ""
            lines.append(f"    {mark_of(one['state'])} {one['check']:<10} {one['what']}{owner}")
            if "waived" in one:
                lines.append(f"      waived by {one['waived']['who']}: {one['waived']['because']}")
            elif "lacks" in one and step["state"] != State.PENDING:
                lines.append(f"      {one['lacks']}")
    return lines


def _kind(happening: Happening) -> str:
    match happening:
        case Created():
            return event.PLAN_CREATED
        case Revised():
            return event.PLAN_REVISED
        case Begun():
            return event.PLAN_BEGUN
        case Observed():
            return event.PLAN_OBSERVED
        case Denied():
            return event.PLAN_DENIED
        case Changed():
            return event.PLAN_STALE
        case Waived():
            return event.PLAN_WAIVED
        case Completed():
            return event.PLAN_COMPLETED
        case never:
            assert_never(never)


def _fields(happening: Happening, plan: Plan) -> dict[str, object]:
    """Return what an event says, so that the same can happen again to a plan that is rebuilt."""
    match happening:
        case Created(steps=steps, by=by) | Revised(steps=steps, by=by):
            return {"by": by.label, "steps": [as_data(step) for step in steps]}
        case Begun(step=step, at=at):
            return {"step": step, "at": at}
        case Observed(step=step, invocation=invocation, evidence=seen):
            return {
                "step": step, "check": _number(plan, step, invocation), "what": words_of(invocation), "exit_code": seen.exit_code,
                "before": seen.before, "workspace": seen.after, "started": seen.started, "at": seen.at, "rewritten": seen.rewritten,
            }  # fmt: skip
        case Denied(step=step, invocation=invocation, reason=reason):
            return {"step": step, "check": _number(plan, step, invocation), "what": words_of(invocation), "reason": reason}
        case Changed(workspace=workspace):
            return {"workspace": workspace}
        case Waived(step=step, check=check, waiver=waiver):
            return {"step": step, "check": check, "who": waiver.who, "because": waiver.because, "at": waiver.at}
        case Completed(step=step, workspace=workspace):
            return {"step": step, "workspace": workspace}
        case never:
            assert_never(never)


def _number(plan: Plan, name: str, invocation: Invocation) -> int:
    step = plan.step(name)
    assert step is not None
    return next(number for number, one in enumerate(step.checks, 1) if one.check.invocation == invocation)


def _told(kind: str, one: dict[str, Any], plan: Plan | None) -> Happening | None:
    try:
        return _happening(kind, one, plan)
    except (KeyError, ValueError, IndexError, TypeError, StopIteration):  # of a version to come, or with something left out
        return None


def _happening(kind: str, one: dict[str, Any], plan: Plan | None) -> Happening | None:
    """Return what an event tells of; None for what changes no plan."""
    step = str(one.get("step", ""))
    if kind in (event.PLAN_CREATED, event.PLAN_REVISED):
        by = next(owner for owner in Owner if owner.label == one["by"])
        steps = steps_of({"steps": one["steps"]}, by)
        return Created(steps=steps, by=by) if kind == event.PLAN_CREATED else Revised(steps=steps, by=by)
    if kind == event.PLAN_BEGUN:
        return Begun(step=step, at=one["at"])
    if kind == event.PLAN_STALE:
        return Changed(workspace=one["workspace"])
    if kind == event.PLAN_COMPLETED:
        return Completed(step=step, workspace=one["workspace"])
    if kind == event.PLAN_WAIVED:
        waiver = Waiver(who=one["who"], because=one["because"], at=one["at"])
        return Waived(step=step, check=one["check"], waiver=waiver, by=Owner.OPERATOR)
    if kind not in (event.PLAN_OBSERVED, event.PLAN_DENIED) or plan is None or (found := plan.step(step)) is None:
        return None
    invocation = found.checks[one["check"] - 1].check.invocation
    if kind == event.PLAN_DENIED:
        return Denied(step=step, invocation=invocation, reason=one["reason"])
    seen = Evidence(
        exit_code=one["exit_code"], before=one["before"], after=one["workspace"], started=one["started"], at=one["at"],
        rewritten=one["rewritten"],
    )  # fmt: skip
    return Observed(step=step, invocation=invocation, evidence=seen)
