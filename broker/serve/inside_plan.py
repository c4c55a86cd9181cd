"""What a task may do with its plan: make it, show it, and have its checks run. Evidence is what the broker sees here itself.

In: an action and a step, from a process inside, a client of the tools, or the operator's program. Out: a table, or a Problem.
A check runs in the task's own sandbox, judged like anything else there; who asked for it hears how it ended, and has no say
in it.

INVARIANT: a success is recorded only for a process that broker started for the check and saw end with 0, in a workspace of
one digest before and after (tests/conformance/test_plan.py).
"""

from __future__ import annotations

import os
import time
from typing import Any

from broker.decide.plan import Evidence, Plan, PlanStep, Tracked, Unfounded, words_of
from broker.decide.verdict import Deny
from broker.decide.verdict import Layer as DecidedBy
from broker.enforce.layer_digest import mark
from broker.errors import UsageError
from broker.exit_codes import DENIED_COMMAND, NOT_FOUND, TIMEOUT
from broker.record.denials import DenialRow
from broker.request.delegation import RequestRefused
from broker.request.operation import Exec
from broker.request.plan import Invocation, Owner, steps_of
from broker.serve.tools_inside import Call, Ended, Problem, Workplace, run_inside
from broker.stage import Stage
from broker.task.outcome import Capture
from broker.task.plan import PlanDesk, as_table
from broker.values import dataclass

ACTIONS = ("create", "revise", "show", "begin", "check", "complete")
MOST_OUTPUT = 8 * 1024  # bytes of each stream of a check that is answered; what it wrote is no evidence
_CODES = {"timeout": TIMEOUT, "not_found": NOT_FOUND}


def desk_of(stage: Stage) -> PlanDesk:
    """Return where the plan of a task lies."""
    return stage.plan()


def act(
    here: Workplace, call: Call, action: str, *, step: str = "", steps: object = None, by: Owner = Owner.WORKER
) -> dict[str, Any] | Problem:
    """Do one of ACTIONS. `step` is STEP, or for a check STEP.N; `steps` are a plan's, as steps_of reads them.

    Returns the plan, and after a check what was seen (`checks`). Raises JournalError when it cannot be recorded.
    """
    desk = desk_of(here.stage)
    try:
        match action:
            case "create":
                found = desk.create(steps_of({"steps": steps}, by), by)
            case "revise":
                found = desk.revise(steps_of({"steps": steps}, by), by)
            case "begin":
                found = desk.begin(step)
            case "complete":
                found = desk.complete(step)
            case "check":
                return _check(here, call, desk, step)
            case _:
                found = desk.look() or Unfounded(reason="there is no plan. Create one first")
    except (RequestRefused, UsageError) as error:
        return Problem(code="invalid", message=str(error))
    return _problem(found) if isinstance(found, Unfounded) else as_table(found)


def _problem(found: Unfounded) -> Problem:
    if found.missing:
        return Problem(code="incomplete", message=found.reason, facts={"missing": list(found.missing)})
    return Problem(code="invalid", message=found.reason)


def _check(here: Workplace, call: Call, desk: PlanDesk, name: str) -> dict[str, Any] | Problem:
    chosen = _chosen(desk.look(), name)
    if isinstance(chosen, Unfounded):
        return _problem(chosen)
    step, numbers = chosen
    rows = []
    for number in numbers:
        tracked = step.checks[number - 1]
        call.note = f"checking {step.id}.{number}"
        seen = _run(here, call, tracked)
        if isinstance(seen, Problem):
            return seen
        found = seen.tell(desk, step.id, tracked.check.invocation)
        if isinstance(found, Unfounded):
            return _problem(found)
        rows.append({"check": f"{step.id}.{number}", "what": words_of(tracked.check.invocation), **seen.as_dict()})
    plan = desk.plan
    assert plan is not None
    return as_table(plan) | {"checks": [row | _standing(plan, row["check"]) for row in rows]}


def _chosen(plan: Plan | None, name: str) -> tuple[PlanStep, list[int]] | Unfounded:
    """Return the step that a name means, and which of its checks: those that nobody waived, or the one of STEP.N."""
    if plan is None:
        return Unfounded(reason="there is no plan. Create one first")
    word, dot, number = name.partition(".")
    step = plan.step(word)
    if step is None:
        return Unfounded(reason=f"there is no step {word!a}. There are: {', '.join(one.id for one in plan.steps)}")
    if step.began is None:
        return Unfounded(reason=f"step {step.id} has not begun. Begin it first: what was seen before does not count")
    if not dot:
        return step, [place for place, one in enumerate(step.checks, 1) if one.waiver is None]
    if not number.isdecimal() or not 1 <= int(number) <= len(step.checks):
        return Unfounded(reason=f"step {step.id} has no check {number!a}: it has {len(step.checks)}")
    return step, [int(number)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What came of one run of a check: evidence, or a denial."""

    evidence: Evidence | None = None
    denied: str = ""
    why: str = ""
    stdout: str = ""
    stderr: str = ""

    def tell(self, desk: PlanDesk, step: str, invocation: Invocation) -> Plan | Unfounded:
        """Put it on record."""
        if self.evidence is None:
            return desk.denied(step, invocation, self.denied)
        return desk.observed(step, invocation, self.evidence)

    def as_dict(self) -> dict[str, Any]:
        """Return it for whoever asked."""
        seen = {"exit_code": self.evidence.exit_code, "rewritten": self.evidence.rewritten} if self.evidence is not None else {}
        why = {"message": self.why} if self.why else {}
        return {**seen, **why, "stdout": self.stdout, "stderr": self.stderr}


def _run(here: Workplace, call: Call, tracked: Tracked) -> _Seen | Problem:
    """Run a check, and look at it and at the workspace, before and after."""
    check, desk, root = tracked.check, desk_of(here.stage), here.stage.plot.workspace.path
    argv, cwd = check.invocation.argv, os.path.normpath(os.path.join(root, check.invocation.cwd))
    since = here.denied_since()
    refused = _no_shell(here) if check.invocation.tool == "shell" else None
    allowed = refused or here.permit("plan", Exec(argv=argv, cwd=cwd), held_there=True)
    if isinstance(allowed, Problem):
        return _Seen(denied=allowed.message)
    before, moment, started = desk.workspace.now(cached=False), mark(), time.time()
    out, err = Capture(MOST_OUTPUT), Capture(MOST_OUTPUT)
    # What a check leaves running is ended with it: it is not to go on with what was seen.
    ended = run_inside(here, call, allowed, argv, cwd=cwd, stdout=out, stderr=err, seconds=check.seconds + here.patience, leave=False)
    if isinstance(ended, Problem) and ended.code == "cancelled":
        return ended
    code = ended.exit_code if isinstance(ended, Ended) else _CODES.get(ended.code, DENIED_COMMAND)
    if code != 0 and (denials := since()):
        return _Seen(denied=_refusal(denials[-1]), stdout=out.text(), stderr=err.text())
    evidence = Evidence(
        exit_code=code, before=before, after=desk.workspace.now(cached=False), started=started, at=time.time(),
        rewritten=desk.workspace.written_since(moment),
    )  # fmt: skip
    why = ended.message if isinstance(ended, Problem) else ""
    return _Seen(evidence=evidence, why=why, stdout=out.text(), stderr=err.text())


def _no_shell(here: Workplace) -> Problem | None:
    """Return the refusal of a check that is a call of the tool shell, where the task has no such tool."""
    if "shell" not in here.stage.plot.envelope.disabled_tools:
        return None
    from broker.classify.risk import Risk

    return here.refuse("shell", Deny(
        what="the tool shell, for a check of the plan", effects=frozenset({Risk.CODE_EXECUTION}), layer=DecidedBy.PROFILE,
        rule="tool.shell.disabled", reason="The task's profile, or one above it, disables the tool shell.",
        hint="Write the check as a list of words (argv).",
    ))  # fmt: skip


def _refusal(row: DenialRow) -> str:
    return f"{row['what']}: {row['reason']}"


_MOVED = "Run it again. If it always writes there, have it write elsewhere (its cache, its output), or nothing that is new"


def _standing(plan: Plan, name: str) -> dict[str, str]:
    """Say what a check counts as now, and what it lacks."""
    word, _, number = name.partition(".")
    step = plan.step(word)
    if step is None or int(number) > len(step.checks):
        return {"state": "gone"}
    one = step.checks[int(number) - 1]
    lacks = f"{one.lacks}. {_MOVED}" if one.state == "moved" else one.lacks
    return {"state": str(one.state), **({"lacks": lacks} if lacks else {})}
