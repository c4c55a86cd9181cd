"""Step 5, reading: past decisions, judged again. In: a run's events, a profile or none. Out: which would differ, and how.

Each decision is put to the installed classifier and the installed `decide`, with all that its record holds: operation,
context, envelope, grant. INVARIANT: what this version recorded it judges the same (tests/record/test_replay.py, and every suite
that drives broker: tests/conformance/replays.py). Nothing is run, and nothing of the host is looked at.

A record is of what happened. What another verdict would have made happen instead nobody knows: a program that would not have
started did what it did all the same, and is told apart (`moot`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from broker.classify import CLASSIFIER_VERSION, classify, tables_digest
from broker.classify.contents import looks_into
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.client import AGREED, files_touched
from broker.decide.egress import host_listed
from broker.decide.egress import refused as out_refused
from broker.decide.envelope import Envelope
from broker.decide.gate import consider, decide_given
from broker.decide.narrowing import Tally, Wish, child_of, led_by_agent, refuse_child
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer
from broker.decide.wording import describe, shorten
from broker.record import event
from broker.record.recorded import (
    NotRecorded,
    context_of,
    given_of,
    grant_of,
    operation_of,
    profile_data,
    profile_of,
    reading,
    text,
    texts,
    wish_of,
)
from broker.record.redact import redact
from broker.request.operation import Connection, Delegation, Exec, FileChange, Operation
from broker.values import dataclass

OLD = "the record was written by a version that did not say what verdicts hang on"
_PROXYS = frozenset({"network.hosts", "network.ceiling"})  # connections that the proxy decided on
_TRUSTED = Wish(trust=Trust.TRUSTED)
# Refusals of a delegation that hang on the time and on what others did, or on files of profiles: nobody can reach them again.
_STAND = frozenset({
    "delegate.malformed", "delegate.widens", "delegate.profile", "delegate.parent", "delegate.breadth", "delegate.tasks",
    "delegate.cpu_time", "delegate.time", "delegate.memory",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a run is judged by instead: `profile` takes the place of the one called `name` ('': of the run's own).

    `parents` lie above the run's own task, nearest first.
    """

    profile: Profile | None = None
    name: str = ""
    parents: tuple[Profile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision, as far as two can differ. `opens`: the classes of the grant, or of the sub-task, that it opens."""

    verdict: str
    rule: str
    layer: str
    effects: tuple[str, ...]
    refused: tuple[str, ...] = ()
    opens: tuple[str, ...] | None = None
    unrecognised: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as data, without what is empty."""
        data = {"verdict": self.verdict, "rule": self.rule, "layer": self.layer, "effects": list(self.effects)}
        data |= {"refused": list(self.refused)} if self.refused else {}
        return data | ({"opens": list(self.opens)} if self.opens is not None else {})

    def against(self, other: Answer, anyway: frozenset[str] = frozenset(), others: frozenset[str] = frozenset()) -> str:
        """Return what `other` would be in this one's place: wider, narrower, relabelled, or '' for the same.

        A grant counts as far as it gives more than the task has `anyway`; `others` is what it would have.
        """
        if self == other:
            return ""
        if (rank := _RANK.get(self.verdict, 0)) != (other_rank := _RANK.get(other.verdict, 0)):
            return WIDER if other_rank > rank else NARROWER
        if other._reach() - self._reach() - anyway:
            return WIDER
        return NARROWER if self._reach() - other._reach() - others else RELABELLED

    def _reach(self) -> frozenset[str]:
        """What it opens: classes, and programs that nobody has described."""
        if self.verdict != "allow" or self.opens is None:
            return frozenset()
        return frozenset((*self.opens, _UNRECOGNISED)) if self.unrecognised else frozenset(self.opens)


_UNRECOGNISED = "unrecognised programs"
_RANK = {"deny": 0, "ask": 1, "allow": 2}
WIDER, NARROWER, RELABELLED, MOOT = "wider", "narrower", "relabelled", "moot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One decision, then and now. `kind`: wider, narrower, relabelled, moot (it would not have come up), '' (the same)."""

    seq: int
    task: str
    what: str
    was: Answer
    would: Answer
    kind: str
    cause: str = ""  # of a difference: profile, classifier, or both


@dataclass(slots=True)
class _Task:
    """What is known of a task while its events go by."""

    envelope: Envelope
    context: Mapping[str, Any] = field(default_factory=dict)
    mode: str = ""  # how it had its workspace
    had: frozenset[str] = frozenset()  # the classes that it had, as recorded
    moot: bool = False  # it would not have begun, or its command would not have started
    commanded: bool = False  # its command was decided on
    grants: dict[Grant, Grant | None] = field(default_factory=dict)  # those of the record, and what they would be
    lost: set[Grant] = field(default_factory=set)  # of these, those that would not have been opened


class Replay:
    """Judges the decisions of one run again, as its events are handed in, in their order."""

    def __init__(self, policy: Policy | None = None) -> None:
        """Judge by this policy; by the profiles as they were, without one."""
        self._judge = _Judge(policy or Policy())
        # With another profile *and* another classifier than then, a second judge tells which of the two it was.
        self._as_was = _Judge(Policy()) if policy is not None and (policy.profile or policy.parents) else None
        self.unjudged: Counter[str] = Counter()

    def events(self, events: Iterable[dict[str, Any]]) -> Iterator[Judged]:
        """Yield each decision. What cannot be judged again is counted in `unjudged`, by the reason."""
        for one in events:
            try:
                judged = self._one(one)
            except NotRecorded as error:
                self.unjudged[str(error)] += 1
                continue
            if judged is not None:
                yield judged

    def _one(self, one: dict[str, Any]) -> Judged | None:
        judged = self._judge.take(one)
        if self._as_was is None:
            return replace(judged, cause="classifier") if judged is not None and judged.kind else judged
        then = self._as_was.take(one)
        if judged is None or then is None or not judged.kind:
            return judged
        if not then.kind:
            return replace(judged, cause="profile")
        return replace(judged, cause="classifier" if then.would == judged.would else "both")


def _hangs_on_content(operation: Operation, context: Context) -> bool:
    if not isinstance(operation, FileChange) or (operation.old is None and operation.new is None):
        return False
    return any(looks_into(path, context) for path in (operation.path, operation.other) if path)


class _Judge:
    """Keeps the tree of tasks as one policy would have it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = replace(policy, profile=None if policy.profile is None else as_recorded(policy.profile),
                               parents=tuple(map(as_recorded, policy.parents)))  # fmt: skip
        self._tasks: dict[str, _Task] = {}
        self._name = policy.name

    def take(self, one: dict[str, Any]) -> Judged | None:
        """Take an event in; return what becomes of it if it is a decision."""
        match one.get("type"):
            case event.RUN_STARTED | event.TASK_CREATED if isinstance(one.get("envelope"), dict):
                self._created(one)
            case event.EXEC_DECIDED | event.FILE_DECIDED:
                return self._decided(one)
            case event.DELEGATION_DECIDED:
                return self._delegated(one)
            case event.CONNECTION_DECIDED:
                return self._connected(one) if one.get("rule") in _PROXYS else self._decided(one)
        return None

    def _created(self, one: dict[str, Any]) -> None:
        path = one.get("task", "")
        known = self._tasks.get(path)
        if known is None:
            with reading("a task"):
                profile, trust = profile_of(one["envelope"]), Trust.parse(one.get("trust", "untrusted"))
            above = self._tasks.get(path.rpartition("/")[0])
            known = self._tasks[path] = _Task(self._root(profile, trust) if above is None else above.envelope.narrow(profile, trust))
        context_of(one.get("context", {}))  # raises where it is none
        known.context = one["context"]
        known.mode = profile_of(one["envelope"]).sandbox.workspace
        with reading("a task"):
            known.had = _anyway(texts(one["effects"] if "effects" in one else one["envelope"].get("effects", ())))

    def _root(self, profile: Profile, trust: Trust) -> Envelope:
        """Return the envelope of the run's own task, below the parents that the policy puts there."""
        self._name = self._name or profile.name
        envelope: Envelope | None = None
        for parent in reversed(self._policy.parents):
            envelope = child_of(envelope, parent, _TRUSTED) if envelope is not None else Envelope(profile=parent, trust=Trust.TRUSTED)
        own = self._in_place_of(profile)
        if envelope is None:
            return Envelope(profile=own, trust=trust)
        return child_of(envelope, own, replace(_TRUSTED, trust=trust))

    def _in_place_of(self, profile: Profile) -> Profile:
        other = self._policy.profile
        if other is None or profile.name != self._name:
            return profile
        # Which agent ran is the run's, not the profile's: `broker run --agent` adds it to any.
        return replace(other, agent=profile.agent) if other.agent is None else other

    # --- program starts and files

    def _decided(self, one: dict[str, Any]) -> Judged:
        task = self._task(one)
        operation = operation_of(one.get("operation", {}))
        given = given_of(one.get("given", {}))
        context = context_of(task.context, getattr(operation, "cwd", "") or given.cwd)
        if _hangs_on_content(operation, context):
            raise NotRecorded("contents of files are not recorded")
        scope, moot = given.scope, task.moot
        if scope is not None:
            moot = moot or scope in task.lost
            scope = task.grants.get(scope, scope)
        mode = task.envelope.profile.sandbox.workspace
        given = replace(given, scope=scope, layered=given.layered and mode in ("overlay", task.mode))
        assessment, verdict = consider(operation, task.envelope, context, given)
        rule = one.get("rule", "")
        if rule == "operator.command" and self._is_the_operators(one["task"], operation, task):
            verdict = Allow(layer=Layer.OPERATOR, rule=rule, effects=assessment.effects)
        elif rule == "broker.client" and isinstance(operation, Exec):
            verdict = Allow(layer=Layer.PROFILE, rule=rule, effects=assessment.effects)
            if (touched := files_touched(operation.argv, operation.cwd)) is not None:
                answer = decide_given(touched, classify(touched, context), task.envelope, context, given)
                verdict = verdict if isinstance(answer, Allow) else answer
        elif rule == AGREED and isinstance(operation, Exec) and (touched := files_touched(operation.argv, operation.cwd)) is not None:
            answer = decide_given(touched, classify(touched, context), task.envelope, context, given)
            verdict = answer if isinstance(answer, Deny) else Allow(layer=Layer.APPROVAL, rule=rule, effects=assessment.effects)
        elif not task.commanded and not given.gate and self._may_be_led(one["task"], operation, task):
            verdict = Allow(layer=Layer.OPERATOR, rule="operator.command", effects=assessment.effects)
        task.commanded = True
        self._remember(one, task, verdict, scope, command=not given.gate)
        would = _answer(event.decided(operation, assessment, verdict))
        kind = MOOT if moot else _answer(one).against(would, task.had, _anyway(event.labels(task.envelope.effects)))
        visible = one.get("visible")
        what = shorten(visible) if isinstance(visible, str) else describe(operation)
        return _judged(one, what, _answer(one), would, kind)

    def _remember(self, one: dict[str, Any], task: _Task, verdict: Allow | Ask | Deny, scope: Grant | None, *, command: bool) -> None:
        """Remember what becomes of what this start opened, or of all that it started."""
        if one.get("verdict") != "allow":
            return
        allowed = isinstance(verdict, Allow)
        if "grant" in one:
            grant = grant_of(one["grant"])
            if isinstance(verdict, Allow):
                task.grants[grant] = verdict.grant or scope
                task.lost.discard(grant)
            elif grant not in task.grants:
                task.lost.add(grant)
        elif command and not allowed and one["type"] == event.EXEC_DECIDED:
            task.moot = True

    def _is_the_operators(self, path: str, operation: Operation, task: _Task) -> bool:
        """Tell whether a task's command still is somebody's choice: of the operator, or an agent that each level lists."""
        above = self._tasks.get(path.rpartition("/")[0])
        if above is None or not isinstance(operation, Exec):
            return above is None
        return led_by_agent(operation.argv[0], above.envelope) != ""

    def _may_be_led(self, path: str, operation: Operation, task: _Task) -> bool:
        """Tell whether a command that was judged is an agent's now.

        By the profiles as they were it is not: had it been listed, then where a task could write it.
        """
        if self._policy.profile is None and not self._policy.parents:
            return False
        above = self._tasks.get(path.rpartition("/")[0])
        return above is not None and isinstance(operation, Exec) and led_by_agent(operation.argv[0], above.envelope) != ""

    # --- connections through the proxy

    def _connected(self, one: dict[str, Any]) -> Judged:
        """Judge as the proxy decides: a listed host is a place, and the permission is the ceiling's, or that of any grant of the task."""
        task = self._task(one)
        operation = operation_of(one.get("operation", {}))
        if not isinstance(operation, Connection):
            raise NotRecorded("a connection was not recorded as this version reads it")
        assessment = classify(operation, context_of(task.context))
        reach = (task.envelope.effects, *(grant.effects for grant in task.grants.values() if grant is not None))
        verdict: Allow | Deny = Allow(layer=Layer.PROFILE, rule="network.hosts", effects=assessment.effects)
        what = describe(operation)
        with reading("a host"):
            listed = host_listed(operation.address, operation.port, task.envelope.profile.hosts)
        if not listed:
            verdict = out_refused(what, "network.hosts", "")
        elif not any(Risk.NETWORK_EGRESS in effects for effects in reach):
            verdict = out_refused(what, "network.ceiling", "")
        return _compared(one, what, _answer(one), _answer(event.decided(operation, assessment, verdict)), moot=task.moot)

    # --- sub-tasks

    def _delegated(self, one: dict[str, Any]) -> Judged:
        task = self._task(one)
        operation = operation_of(one.get("operation", {}))
        if not isinstance(operation, Delegation):
            raise NotRecorded("a delegation was not recorded as this version reads it")
        what, was = describe(operation), _answer(one)
        rule = one.get("rule", "")
        if rule in _STAND:
            return _compared(one, what, was, was, moot=task.moot)
        levels = list(task.envelope.levels())
        denial = refuse_child(operation.profile, task.envelope, [Tally(below=depth) for depth in range(1, len(levels) + 1)], what)
        child: Envelope | None = None
        if "child" in one and isinstance(one.get("selected"), dict):
            child = child_of(task.envelope, self._in_place_of(profile_of(one["selected"])), wish_of(one.get("wish", {})))
            with reading("a delegation"):
                path = text(one["child"])
            self._tasks[path] = _Task(child, moot=task.moot or denial is not None)
        elif "child" in one:
            raise NotRecorded(OLD)
        if denial is not None:
            would = Answer(verdict="deny", rule=denial.rule, layer=denial.layer.value, effects=())
        else:
            opens = tuple(event.labels(child.effects)) if child is not None else None
            would = Answer(verdict="allow", rule="delegate.child", layer="profile", effects=(), opens=opens)
        return _compared(one, what, was, would, moot=task.moot)

    def _task(self, one: dict[str, Any]) -> _Task:
        task = self._tasks.get(one.get("task", ""))
        if task is None or not task.context:
            raise NotRecorded(OLD)
        return task


def as_recorded(profile: Profile) -> Profile:
    """Return a profile as it would be read from a record: without secrets, as the operations that are held against it."""
    data, _ = redact(event.plain(profile_data(profile)))  # type: ignore[arg-type]
    return replace(profile_of(data), delegate=profile.delegate, sandbox=profile.sandbox)


def same_classifier(one: Mapping[str, Any]) -> bool:
    """Tell whether a decision was recorded with the installed classifier and tables."""
    return one.get("classifier") == CLASSIFIER_VERSION and one.get("tables") == tables_digest()


def _anyway(classes: Iterable[str]) -> frozenset[str]:
    """Return what a task with these classes may do without any grant."""
    known = frozenset(classes)
    return known | {_UNRECOGNISED} if Risk.UNKNOWN.label in known else known


def _compared(one: dict[str, Any], what: str, was: Answer, would: Answer, *, moot: bool) -> Judged:
    return _judged(one, what, was, would, MOOT if moot else was.against(would))


def _judged(one: dict[str, Any], what: str, was: Answer, would: Answer, kind: str) -> Judged:
    return Judged(seq=one.get("seq", 0), task=one.get("task", ""), what=what, was=was, would=would, kind=kind)


def _answer(one: Mapping[str, Any]) -> Answer:
    """Return the answer that an event's fields hold."""
    with reading("a decision"):
        verdict, rule, layer = text(one.get("verdict", "")), text(one.get("rule", "")), text(one.get("layer", ""))
        effects = texts(one.get("effects", ()))
        if one.get("type") == event.DELEGATION_DECIDED:
            return Answer(verdict=verdict, rule=rule, layer=layer, effects=(), opens=effects if verdict == "allow" else None)
        grant = grant_of(one["grant"]) if "grant" in one else None
        return Answer(
            verdict=verdict, rule=rule, layer=layer, effects=effects, refused=texts(one.get("refused", ())),
            opens=None if grant is None else tuple(event.labels(grant.effects)),
            unrecognised=grant is not None and grant.unrecognised,
        )  # fmt: skip


def worst_class(answer: Answer) -> str:
    """Return the worst class of what was refused, else of all that it does."""
    known = [_RISKS[label] for label in answer.refused or answer.effects if label in _RISKS]
    return max(known, default=Risk.SAFE).label


_RISKS = {risk.label: risk for risk in Risk}
