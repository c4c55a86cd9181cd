"""Delegation: a task asks for another one below it.

In: a request that came over a task's own link, and so can only be that task's. Out: an outcome. What the new task may do
is the selected profile, narrowed, below everything that its ancestors may do (broker.decide.narrowing); its command is
judged like any other, unless the operator listed its program as an agent. A refusal is loud, like every other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import field
from typing import Any

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.narrowing import Wish, child_of, is_budget, led_by_agent, refused, widening
from broker.decide.profile import TOOLS, Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny, Layer
from broker.decide.wording import command_line, shorten
from broker.enforce.attach import Source
from broker.errors import BrokerError, JournalError, ProfileError
from broker.exit_codes import BUDGET, DENIED, INTERNAL
from broker.record import event
from broker.record.denials import row_of
from broker.record.recorded import profile_data, wish_data
from broker.request.delegation import RequestRefused, TaskRequest
from broker.request.operation import Delegation
from broker.stage import TASK_FILE, TASK_VARIABLE, Plot, Stage
from broker.supervisor import carry, refuse_too_long
from broker.task.outcome import Capture, capped, outcome
from broker.task.tree import Node
from broker.values import dataclass

LEAST = {"memory": 8 << 20, "cpus": 0.01}  # bytes, processors: engines refuse less


@dataclass(slots=True)
class Assignment:
    """What goes with a request: the new task's stdin, who wants to hear its output, and where it starts.

    `begun` is told the new task's path, before it runs. `output` gets (stream, bytes) as they come.
    """

    stdin: int | Source = -1
    cwd: str = ""
    begun: Callable[[str], None] | None = None
    output: Callable[[str, bytes], None] | None = None
    captures: dict[str, Capture] = field(default_factory=lambda: {"stdout": Capture(), "stderr": Capture()})

    def sink(self, stream: str) -> Callable[[bytes], None]:
        """Return what takes a stream of the new task."""
        capture, output = self.captures[stream], self.output
        if output is None:
            return capture

        def take(data: bytes) -> None:
            capture(data)
            output(stream, data)

        return take


def delegate(stage: Stage, request: TaskRequest, assignment: Assignment | None = None) -> dict[str, Any]:
    """Run a sub-task of this task to its end, and return its outcome (docs/delegation.md).

    A refusal is an outcome like any other. Raises JournalError when nothing can be recorded.
    """
    assignment = assignment or Assignment()
    answer = admit(stage, request)
    if isinstance(answer, Deny):
        return _refuse(stage, request, answer)
    node, agent = answer
    facts = _facts(node, request)
    status = "failed"
    try:
        if assignment.begun is not None:
            assignment.begun(node.path)
        result = carry(stage.run, plotted(stage, request, assignment, node, agent))
        status = result.status
    except JournalError:
        raise
    except (BrokerError, OSError) as error:
        code = error.exit_code if isinstance(error, BrokerError) else INTERNAL
        failed = {"status": status, "exit_code": code, "reason": str(error)}
        stage.run.journal.append(event.TASK_FINISHED, task=node.path, **failed)
        return capped({**failed, "task": node.path, "denials": [], "denied": 0, **facts})
    finally:
        stage.run.tree.ended(node, status)  # whatever happened: nobody may wait for it
    return outcome(result, stdout=assignment.captures["stdout"], stderr=assignment.captures["stderr"], **facts)


def plotted(stage: Stage, request: TaskRequest, assignment: Assignment, node: Node, agent: str) -> Plot:
    """Say what a task that was admitted is to do: on its parent's view, under its own envelope."""
    task_file = json.dumps(
        {"task": node.path, "label": request.label, "goal": request.goal, "context": request.context}, ensure_ascii=True
    ).encode("ascii")
    settings = node.envelope.profile.sandbox
    plot = Plot(
        argv=(agent, *request.argv[1:]) if agent else request.argv, node=node, parent=stage,
        cwd=_folder(stage, assignment.cwd), judged=not agent,
        workspace=stage.plot.workspace.for_child(read_only=settings.workspace == "read-only", shown=settings.show),
        stdin=assignment.stdin, stdout=assignment.sink("stdout"), stderr=assignment.sink("stderr"),
        extra=(TASK_VARIABLE,), files=((TASK_FILE, task_file),),
    )  # fmt: skip
    refuse_too_long(plot)
    return plot


def admit(stage: Stage, request: TaskRequest) -> tuple[Node, str] | Deny:
    """Return the new task's place in the tree, and the agent that leads it ('': none), or why there is none.

    That there is one is recorded. Raises JournalError when it cannot be.
    """
    parent, what = stage.plot.node, f"delegate to {request.profile}: {command_line(request.argv)}"
    try:
        profile = stage.run.profiles(request.profile)
        wish = wish_of(request)
    except ProfileError as error:
        return refused(what, "delegate.profile", _of_a_profile(error), "`broker profiles` lists what there is.")
    except RequestRefused as error:
        return refused(what, "delegate.malformed", f"The request makes no sense: {error}.", "Correct it.")
    if wider := widening(profile, wish):
        return refused(
            what, "delegate.widens", f"A request may only narrow the profile that it selects: {wider}.",
            "Leave it out, or select another profile.",
        )  # fmt: skip
    agent = led_by_agent(request.argv[0], parent.envelope)
    if agent and stage.task.can_write(agent):
        agent = ""  # anybody's program by now

    def make(path: str, above: Node) -> Node:
        envelope = child_of(above.envelope, profile, wish)
        return Node(path=path, envelope=envelope, argv=request.argv, label=shorten(request.label, 200), parent=above)

    node = stage.run.tree.branch(parent, profile.name, what, make)
    if isinstance(node, Deny):
        return node
    allowed = Allow(layer=Layer.PROFILE, rule="delegate.child", effects=frozenset())
    given = {"child": node.path, **_facts(node, request), "selected": profile_data(profile), "wish": wish_data(wish)}
    try:
        _record(stage, request, allowed, **given)
    except JournalError:
        stage.run.tree.ended(node, "failed")
        raise
    return node, agent


def _of_a_profile(error: ProfileError) -> str:
    """Say what is wrong with a profile, without where the operator keeps them."""
    from broker.profiles.errors import ProfileNameInvalid, ProfileNotFound

    if isinstance(error, (ProfileNotFound, ProfileNameInvalid)):
        return "No profile of this name was defined by the operator."
    return "That profile cannot be used as it is; the operator has to mend it."


def wish_of(request: TaskRequest) -> Wish:
    """Return what a request narrows, in units. Raises RequestRefused. A trust that is not said is untrusted."""
    from broker.profiles.quantity import parse_size, parse_time

    risk: Risk | None = None
    if request.max_risk:
        try:
            risk = Risk.parse(request.max_risk)
        except (KeyError, ValueError):
            raise RequestRefused("max_risk", f"there is no class {request.max_risk!r}") from None
        if risk in (Risk.UNKNOWN, Risk.BLOCKED):
            raise RequestRefused("max_risk", f"{request.max_risk} is no ceiling")
    limits: dict[str, Any] = {}
    for name, value in request.limits:
        try:
            if name in ("memory", "output"):
                limits[name] = parse_size(value if isinstance(value, str) else int(value))
            elif name == "time":
                limits[name] = parse_time(value)
            elif name == "cpus":
                limits[name] = float(value)
            else:
                limits[name] = int(value)
            if not 0 < limits[name] < 1 << 60:
                raise ValueError("it must be above nothing, and below everything")
            if limits[name] < LEAST.get(name, 0):
                raise ValueError(f"nothing starts in so little. Write {LEAST[name]} or more")
        except (ValueError, OverflowError, TypeError) as error:
            raise RequestRefused(f"limits.{name}", str(error)) from None
    for tool in request.tools_disabled:
        if tool not in TOOLS:
            raise RequestRefused("tools_disabled", f"there is no tool {tool!r}")
    trust = Trust.TRUSTED if request.trust == Trust.TRUSTED.label else Trust.UNTRUSTED
    return Wish(trust=trust, max_risk=risk, tools_disabled=frozenset(request.tools_disabled), **limits)


def _refuse(stage: Stage, request: TaskRequest, denial: Deny) -> dict[str, Any]:
    """Make a refused delegation loud, and return it as an outcome."""
    _record(stage, request, denial, reason=denial.reason)
    stage.task.refuse("delegate", denial)
    return capped({
        "status": "budget" if is_budget(denial) else "denied", "exit_code": BUDGET if is_budget(denial) else DENIED,
        "reason": denial.reason, "rule": denial.rule, "hint": denial.hint, "task": "", "profile": request.profile,
        "label": request.label, "denials": [row_of("delegate", denial)], "denied": 1,
    })  # fmt: skip


def _record(stage: Stage, request: TaskRequest, verdict: Allow | Deny, **fields: object) -> None:
    """Record what was decided about a request; the same again is only counted."""
    operation = Delegation(profile=request.profile, trust=request.trust or Trust.UNTRUSTED.label, argv=request.argv)
    if stage.task.must_record(operation, verdict, verdict.rule):
        said: dict[str, object] = {
            "operation": operation, "max_risk": request.max_risk, "label": request.label, "layer": verdict.layer.value,
            "verdict": "deny" if isinstance(verdict, Deny) else "allow", "rule": verdict.rule, **fields,
        }  # fmt: skip
        stage.run.journal.append(event.DELEGATION_DECIDED, task=stage.task.path, **said)


def _facts(node: Node, request: TaskRequest) -> dict[str, Any]:
    """Return what the new task really is, and where that is less than what was asked for."""
    envelope = node.envelope
    return {
        "profile": envelope.profile.name, "trust": envelope.effective_trust.label,
        "max_risk": ceiling_of(envelope).label, "effects": event.labels(envelope.effects), "label": node.label,
        "narrowed": narrowings(envelope, request),
    }  # fmt: skip


def ceiling_of(envelope: Envelope) -> Risk:
    """Return the worst class that is left to a task without an exact entry."""
    return max(envelope.effects, default=Risk.SAFE)


def narrowings(envelope: Envelope, request: TaskRequest) -> list[str]:
    """Return, in words, what the ancestors take away from what was asked for."""
    found = []
    own = envelope.own_effects if envelope.effective_trust is Trust.TRUSTED else envelope.profile.effects - {Risk.BLOCKED}
    if lost := own - envelope.effects:
        found.append(f"classes: without {', '.join(event.labels(lost))}")
    if request.trust == Trust.TRUSTED.label and envelope.effective_trust is Trust.UNTRUSTED:
        found.append("trust: untrusted, as the task above")
    return found


def _folder(stage: Stage, cwd: str) -> str:
    """Return where the new task starts: where its parent asked, if that is in the workspace."""
    root = stage.plot.workspace.path
    plain = os.path.normpath(cwd) if cwd.startswith("/") else root
    return plain if plain == root or plain.startswith(root + "/") else root


def left_of(stage: Stage, profile: Profile) -> dict[str, Any]:
    """Return what would be left of a profile as a child of this task (`list_subagent_profiles`)."""
    envelope = child_of(stage.plot.envelope, profile, Wish(trust=Trust.TRUSTED))
    allowed = stage.plot.envelope.profile.delegate.profiles
    here = envelope.profile
    return {
        "name": profile.name, "description": profile.description, "max_risk": profile.max_risk.label,
        "here": {
            "available": allowed is None or profile.name in allowed, "max_risk": ceiling_of(envelope).label,
            "effects": event.labels(envelope.effects), "trust": envelope.effective_trust.label,
            "workspace": "read-only" if here.sandbox.workspace == "read-only" else "overlay",
            "allowlist": [entry.text for entry in profile.allowlist],
        },
        "tools": [tool for tool in TOOLS if tool not in envelope.disabled_tools],
        "disabled_tools": sorted(envelope.disabled_tools),
    }  # fmt: skip
