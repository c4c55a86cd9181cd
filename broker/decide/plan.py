"""Step 3: a plan whose steps are done only on evidence. A pure machine: a plan and something that happened, and the plan after it.

In: what somebody wants (create, revise, begin, waive, complete), and what was seen (a check's end, its denial, another
workspace). Out: the new plan, or Unfounded, with what is missing. Nothing that anybody says makes a check succeed.

INVARIANT: no step is done without an observed success of every check that nobody waived, of a run that started after the
step began, on the workspace as it is now (tests/decide/test_plan_machine.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import assert_never

from broker.decide.wording import command_line, shorten
from broker.request.plan import MOST_CHECKS, MOST_STEPS, Check, Invocation, Owner, Step
from broker.values import dataclass


class State(StrEnum):
    """Of a step."""

    PENDING = "pending"  # not begun
    ACTIVE = "active"  # begun; evidence, or the claim that it is complete, is missing
    BLOCKED = "blocked"  # a check was denied
    STALE = "stale"  # the workspace changed since the evidence was seen
    DONE = "done"


class CheckState(StrEnum):
    """Of a check."""

    OPEN = "open"  # not seen yet
    FAILED = "failed"
    MOVED = "moved"  # it succeeded, but the workspace changed while it ran
    BLOCKED = "blocked"
    STALE = "stale"
    PASSED = "passed"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One run of a check, as the broker saw it. Times are seconds since 1970; workspaces are digests, before and after.

    `rewritten`: paths that were written meanwhile, whether or not with what was there before.
    """

    exit_code: int
    before: str
    after: str
    started: float
    at: float
    rewritten: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """An operator's word that a check need not be seen."""

    who: str
    because: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """A check, and what is known of it."""

    check: Check
    evidence: Evidence | None = None
    stale: bool = False
    denied: str = ""
    waiver: Waiver | None = None

    @property
    def state(self) -> CheckState:
        """What it counts as."""
        if self.waiver is not None:
            return CheckState.WAIVED
        if self.denied:
            return CheckState.BLOCKED
        if self.evidence is None:
            return CheckState.OPEN
        if self.evidence.exit_code != 0:
            return CheckState.FAILED
        if self.evidence.before != self.evidence.after:
            return CheckState.MOVED
        return CheckState.STALE if self.stale else CheckState.PASSED

    @property
    def satisfied(self) -> bool:
        """Whether it stands in nobody's way."""
        return self.state in (CheckState.PASSED, CheckState.WAIVED)

    @property
    def lacks(self) -> str:
        """Say what is missing, in words; '' if nothing is."""
        match self.state:
            case CheckState.PASSED | CheckState.WAIVED:
                return ""
            case CheckState.OPEN:
                return "it was not seen succeeding"
            case CheckState.BLOCKED:
                return f"it was denied: {self.denied}"
            case CheckState.FAILED:
                return f"it ended with {self.evidence.exit_code if self.evidence else '?'}"
            case CheckState.MOVED:
                return "the workspace changed while it ran"
            case CheckState.STALE:
                return "the workspace changed after it was seen succeeding"
            case never:
                assert_never(never)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """A step, and how far it is. `began` of None: it has not."""

    id: str
    title: str
    checks: tuple[Tracked, ...]
    began: float | None = None
    claimed: bool = False  # somebody said that it is complete, when that was so

    @property
    def state(self) -> State:
        """What it counts as."""
        states = [one.state for one in self.checks]
        if self.began is None:
            return State.PENDING
        if CheckState.BLOCKED in states:
            return State.BLOCKED
        if CheckState.STALE in states:
            return State.STALE
        return State.DONE if self.claimed and all(one.satisfied for one in self.checks) else State.ACTIVE

    def missing(self) -> tuple[str, ...]:
        """Say of each check that is not satisfied what is missing."""
        return tuple(
            f"{self.id}.{number} `{words_of(one.check.invocation)}`: {one.lacks}"
            for number, one in enumerate(self.checks, 1) if one.lacks
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan. `workspace` is the digest that was seen last."""

    steps: tuple[PlanStep, ...]
    workspace: str = ""

    @property
    def done(self) -> bool:
        """Whether each of its steps is."""
        return all(step.state is State.DONE for step in self.steps)

    def step(self, name: str) -> PlanStep | None:
        """Return the step of this id."""
        return next((step for step in self.steps if step.id == name), None)

    def missing(self) -> tuple[str, ...]:
        """Say of each step that is not done why."""
        found: list[str] = []
        for step in self.steps:
            if step.state is not State.DONE:
                why = step.missing() if step.state is not State.PENDING else ("it has not begun",)
                found += [f"step {step.id} is {step.state}: {one}" for one in why or ("nobody has completed it",)]
        return tuple(found)


# What can happen to a plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """Somebody makes the plan."""

    steps: tuple[Step, ...]
    by: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """Somebody replaces what is his, or somebody's below him; what is not stays."""

    steps: tuple[Step, ...]
    by: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A step begins."""

    step: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The broker saw a check end."""

    step: str
    invocation: Invocation
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A check was refused, or something that it needs."""

    step: str
    invocation: Invocation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The workspace has this digest now."""

    workspace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waived:
    """Somebody says that a check (1 to 4) need not be seen."""

    step: str
    check: int
    waiver: Waiver
    by: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Somebody says that a step is done, in a workspace of this digest."""

    step: str
    workspace: str


Happening = Created | Revised | Begun | Observed | Denied | Changed | Waived | Completed


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfounded:
    """Why something does not happen to a plan. `missing`: of a step that is not done, what it lacks."""

    reason: str
    missing: tuple[str, ...] = ()


def after(plan: Plan | None, happening: Happening) -> Plan | Unfounded:
    """Return the plan as it is after something happened, or why that cannot happen."""
    if isinstance(happening, Created):
        if plan is not None:
            return Unfounded(reason="there is a plan already. Revise it")
        return Plan(steps=tuple(_fresh(step) for step in happening.steps))
    if plan is None:
        return Unfounded(reason="there is no plan. Create one first")
    match happening:
        case Revised():
            return _revised(plan, happening)
        case Changed():
            return _in(plan, happening.workspace)
        case Begun() | Observed() | Denied() | Waived() | Completed():
            step = plan.step(happening.step)
            if step is None:
                known = ", ".join(one.id for one in plan.steps)
                return Unfounded(reason=f"there is no step {happening.step!a}. There are: {known}")
            return _of_a_step(plan, step, happening)
        case never:
            assert_never(never)


def transitions(before: Plan | None, now: Plan) -> tuple[tuple[str, str, str], ...]:
    """Return which steps are not what they were: (step, state before, state now); '' is no step."""
    was = {step.id: str(step.state) for step in before.steps} if before is not None else {}
    now_is = {step.id: str(step.state) for step in now.steps}
    names = dict.fromkeys([*was, *now_is])
    return tuple((name, was.get(name, ""), now_is.get(name, "")) for name in names if was.get(name) != now_is.get(name))


def words_of(invocation: Invocation) -> str:
    """Return an invocation in words: escaped, and not too many."""
    text = shorten(invocation.words[0]) if invocation.tool == "shell" else command_line(invocation.words)
    return f"{text} (in {shorten(invocation.cwd)})" if invocation.cwd else text


def _of_a_step(
    plan: Plan, step: PlanStep, happening: Begun | Observed | Denied | Waived | Completed
) -> Plan | Unfounded:
    match happening:
        case Begun(at=at):
            if step.began is not None:
                return Unfounded(reason=f"step {step.id} has begun already")
            return _with(plan, replace(step, began=at))
        case Observed(invocation=invocation, evidence=evidence):
            if step.began is None or evidence.started < step.began:
                return Unfounded(reason=f"step {step.id} had not begun when the check started. Begin it, and check again")
            seen = _tracked(step, invocation, evidence=evidence, denied="", stale=False)
            return seen if isinstance(seen, Unfounded) else _in(_with(plan, seen), evidence.after)
        case Denied(invocation=invocation, reason=reason):
            refused = _tracked(step, invocation, evidence=None, denied=reason, stale=False)
            return refused if isinstance(refused, Unfounded) else _with(plan, refused)
        case Waived(check=number, waiver=waiver, by=by):
            return _waived(plan, step, number, waiver, by)
        case Completed(workspace=workspace):
            plan = _in(plan, workspace)
            step = plan.step(step.id) or step
            if step.began is None:
                return Unfounded(reason=f"step {step.id} has not begun", missing=step.missing())
            if missing := step.missing():
                return Unfounded(reason=f"step {step.id} is not done: to say so is no evidence", missing=missing)
            return _with(plan, replace(step, claimed=True))
        case never:
            assert_never(never)


def _waived(plan: Plan, step: PlanStep, number: int, waiver: Waiver, by: Owner) -> Plan | Unfounded:
    if by is not Owner.OPERATOR:
        return Unfounded(reason="only the operator waives a check (broker plan waive)")
    if not 1 <= number <= len(step.checks):
        return Unfounded(reason=f"step {step.id} has no check {number}: it has {len(step.checks)}")
    checks = list(step.checks)
    checks[number - 1] = replace(checks[number - 1], waiver=waiver)
    return _with(plan, replace(step, checks=tuple(checks)))


def _tracked(
    step: PlanStep, invocation: Invocation, *, evidence: Evidence | None, denied: str, stale: bool
) -> PlanStep | Unfounded:
    """Return a step with what was seen of one of its checks: the last that was seen counts."""
    if all(one.check.invocation != invocation for one in step.checks):
        return Unfounded(reason=f"step {step.id} has no such check any more")
    return replace(step, checks=tuple(
        replace(one, evidence=evidence, denied=denied, stale=stale) if one.check.invocation == invocation else one
        for one in step.checks
    ))  # fmt: skip


def _in(plan: Plan, workspace: str) -> Plan:
    """Return a plan in a workspace: evidence of another one is stale from now on, also if that one comes back."""
    return replace(plan, workspace=workspace, steps=tuple(
        replace(step, checks=tuple(
            replace(one, stale=True) if one.evidence is not None and one.evidence.after != workspace else one
            for one in step.checks
        ))
        for step in plan.steps
    ))  # fmt: skip


def _revised(plan: Plan, happening: Revised) -> Plan | Unfounded:
    """Return a plan in which somebody has replaced all that he may: the checks of others stay where they are, and in front."""
    given = {step.id: step for step in happening.steps}
    steps: list[PlanStep] = []
    for old in plan.steps:
        others = tuple(one for one in old.checks if one.check.owner > happening.by)
        new = given.pop(old.id, None)
        if new is None and not others:
            continue
        taken = {one.check.invocation for one in others}
        own = tuple(_known(old, check) for check in (new.checks if new else ()) if check.invocation not in taken)
        checks = (*others, *own)
        if len(checks) > MOST_CHECKS:
            return Unfounded(reason=f"step {old.id} would have {len(checks)} checks with those of others, and at most {MOST_CHECKS} fit")
        same = [one.check for one in checks] == [one.check for one in old.checks]
        title = new.title if new is not None and not others else old.title
        steps.append(replace(old, title=title, checks=checks, claimed=old.claimed and same))
    steps += [_fresh(step) for step in given.values()]
    if len(steps) > MOST_STEPS:
        return Unfounded(reason=f"the plan would have {len(steps)} steps with those of others, and at most {MOST_STEPS} fit")
    return replace(plan, steps=_in_order(steps, [step.id for step in happening.steps]))


def _known(step: PlanStep, check: Check) -> Tracked:
    """Return a check with what is known of it, if it was there before."""
    return next((one for one in step.checks if one.check == check), Tracked(check=check))


def _in_order(steps: Iterable[PlanStep], names: list[str]) -> tuple[PlanStep, ...]:
    """Sort steps as somebody listed them; those that he did not list come first."""
    return tuple(sorted(steps, key=lambda step: names.index(step.id) if step.id in names else -1))


def _fresh(step: Step) -> PlanStep:
    return PlanStep(id=step.id, title=step.title, checks=tuple(Tracked(check=check) for check in step.checks))


def _with(plan: Plan, step: PlanStep) -> Plan:
    return replace(plan, steps=tuple(step if one.id == step.id else one for one in plan.steps))
