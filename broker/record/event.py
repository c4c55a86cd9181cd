"""Step 5: one event as one canonical line.

In: plain values and the words of the earlier steps (operations, risks, verdicts). Out: bytes that are the
same for the same event, for ever, because the next line holds their hash. Pure: no clock, no file.

An event has `seq`, `prev`, `time`, `run`, `task`, `type`, and fields of its own (docs/events.md). Contents of
files and whole environments never become part of one: bytes are recorded as their length and digest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from broker.classify.risk import Assessment, Risk
from broker.decide.given import NOTHING, Given
from broker.decide.verdict import Allow, Ask, Deny, Grant, Verdict
from broker.request.operation import (
    Connection,
    Delegation,
    Exec,
    FileChange,
    FileRead,
    Operation,
    ShellText,
)
from broker.sha256 import sha256

# The types of event. The set is open: a reader must pass over a type that it does not know.
RUN_STARTED = "run.started"
RUN_FINISHED = "run.finished"
JOURNAL_RESUMED = "journal.resumed"
TASK_CREATED = "task.created"
TASK_DENIED = "task.denied"
TASK_DENIED_REPEATED = "task.denied.repeated"
TASK_FINISHED = "task.finished"
TASK_KILLED = "task.killed"
DELEGATION_DECIDED = "delegation.decided"
CALL_REFUSED = "call.refused"
TOOL_CALLED = "tool.called"
PLAN_CREATED = "plan.created"
PLAN_REVISED = "plan.revised"
PLAN_BEGUN = "plan.begun"
PLAN_OBSERVED = "plan.observed"
PLAN_DENIED = "plan.denied"
PLAN_STALE = "plan.stale"
PLAN_WAIVED = "plan.waived"
PLAN_COMPLETED = "plan.completed"
PLAN_REFUSED = "plan.refused"
PLAN_SETTLED = "plan.settled"
BUDGET_EXCEEDED = "budget.exceeded"
GATEWAY_REQUESTED = "gateway.requested"
GATEWAY_ANSWERED = "gateway.answered"
CONNECTION_DECIDED = "connection.decided"
LAYERS_PROVEN = "layers.proven"
NETWORK_INSPECTED = "network.inspected"
EXEC_DECIDED = "exec.decided"
EXEC_RACE = "exec.race"
EXEC_UNREADABLE = "exec.unreadable"
EXEC_TOO_LARGE = "exec.too_large"
FILE_DECIDED = "file.decided"
SPAWN_STARTED = "spawn.started"
SPAWN_FAILED = "spawn.failed"
SPAWN_EXITED = "spawn.exited"
ANSWER_TIMEOUT = "answer.timeout"
APPROVAL_ASKED = "approval.asked"
APPROVAL_ANSWERED = "approval.answered"
APPROVAL_WITHDRAWN = "approval.withdrawn"
LIMITS_EXCEEDED = "limits.exceeded"
USAGE_MEASURED = "usage.measured"
SURVIVORS_KILLED = "survivors.killed"
GUARD_NOTE = "guard.note"
GUARD_LOST = "guard.lost"
SANDBOX_SWEPT = "sandbox.swept"
LANDING_INTENDED = "landing.intended"
LANDING_FINISHED = "landing.finished"
LANDING_FAILED = "landing.failed"
LAYER_KEPT = "layer.kept"
LAYER_DISCARDED = "layer.discarded"
PANEL_CONVENED = "panel.convened"
JUDGE_VERDICT = "judge.verdict"
PANEL_DECIDED = "panel.decided"
PANEL_CALIBRATED = "panel.calibrated"

ROOT = "root"  # the task path of the operator's own task
GENESIS = "0" * 64  # `prev` of a first line
SCHEMA = 1  # of the events; in the first one of a run. New types and fields do not change it
REQUIRED = frozenset({"seq", "prev", "time", "run", "task", "type"})
# `seal` is in the last event, `schema` and `chain` are in the first; an event's own fields cannot be called so.
ENVELOPE = REQUIRED | {"seal", "schema", "chain", "redacted"}

_KINDS = {
    ShellText: "shell",
    Exec: "exec",
    FileChange: "file_change",
    FileRead: "file_read",
    Connection: "connection",
    Delegation: "delegation",
}
_SCALARS = frozenset({str, int, bool, float, type(None)})

# ASCII only, so that no terminal, editor or transport can change the bytes; a lone surrogate (a byte that is
# not UTF-8, PEP 383) becomes \udcXX and is read back as the same surrogate. NaN has no JSON form: refused.
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def encode(event: Mapping[str, object]) -> bytes:
    """Return the event's canonical line, without its newline."""
    return _encoder.encode(event).encode("ascii")


def sealed(record: Mapping[str, object]) -> bytes:
    """Return the canonical line of a last event: it has no successor to hold its hash, so it holds one of itself."""
    return encode({**record, "seal": digest(encode(record))})


def decode(line: bytes) -> dict[str, Any]:
    """Return the event of one line. Raises ValueError when it is no JSON object or holds a key twice."""
    try:
        event = _decoder.decode(line.decode("ascii"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(event, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - it is the text that is wrong, not a type
    return event


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    event = dict(pairs)
    if len(event) != len(pairs):
        raise ValueError("a key occurs twice")
    return event


_decoder = json.JSONDecoder(object_pairs_hook=_no_key_twice)  # `json.loads` would make one for each line


def digest(line: bytes) -> str:
    """Return what the next line's `prev` holds: sha256 of the line's bytes, without the newline."""
    return sha256(line).hexdigest()


def plain(value: object) -> object:
    """Return the value in the types that JSON has.

    Risks become their labels, sets are sorted, operations get a `kind`, bytes become length and digest.
    Raises TypeError for what has no such form.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, dict):  # to ask whether it is any other mapping costs as much as all the rest
        return {
            key if type(key) is str else _key(key): item if type(item) is str else plain(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [item if type(item) is str else plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, Risk):
        return value.label
    if isinstance(value, (set, frozenset)):
        return labels(value) if all(isinstance(item, Risk) for item in value) else _sorted(value)
    if isinstance(value, (bytes, bytearray)):
        import hashlib  # they can be a whole file

        return {"length": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if kind in _KINDS or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return _record(value)
    if isinstance(value, (str, int, float)):  # their subclasses, last: IntEnum is one
        return value
    raise TypeError(f"an event cannot hold a {type(value).__name__}")


def _key(key: object) -> str:
    if isinstance(key, Enum):
        return str(plain(key))
    if not isinstance(key, str):
        raise TypeError(f"an event's key must be text, not {type(key).__name__}")
    return key


def _sorted(values: set[object] | frozenset[object]) -> list[object]:
    return sorted((plain(item) for item in values), key=_encoder.encode)


def _record(value: Any) -> dict[str, object]:
    """Return a dataclass as an object, leaving out what is empty."""
    kind = _KINDS.get(type(value))
    record: dict[str, object] = {} if kind is None else {"kind": kind}
    for name in _names(type(value)):
        item = getattr(value, name)
        if item is None or item == "" or item == ():
            continue
        record[name] = item if type(item) is str else plain(item)
    return record


def _names(kind: type[Any]) -> tuple[str, ...]:
    """Return the field names of a dataclass, looked up once."""
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return names


_FIELDS: dict[type[Any], tuple[str, ...]] = {}


def labels(effects: set[Risk] | frozenset[Risk]) -> list[str]:
    """Return the classes' names, from harmless to forbidden."""
    return [risk.label for risk in sorted(effects)]


def decided(
    operation: Operation, assessment: Assessment, verdict: Verdict, given: Given = NOTHING, *, visible: str = ""
) -> dict[str, object]:
    """Return the fields of an `exec.decided` or `file.decided` event: all that the verdict hangs on (replay.py).

    `visible` is the command in an agent's wrapper, for people: the operation says what is really started.
    """
    fields: dict[str, object] = {
        "operation": plain(operation),
        "effects": labels(assessment.effects),
        "reasons": [
            {"rule": reason.rule, "class": reason.risk.label, "text": reason.text}
            for reason in assessment.reasons
        ],
        "classifier": assessment.classifier,
        "tables": assessment.tables,
        "rule": verdict.rule,
    }
    match verdict:
        case Allow():
            fields |= {"verdict": "allow", "layer": verdict.layer.value}
            if verdict.grant is not None:
                fields["grant"] = _grant(verdict.grant)
        case Ask():
            fields |= {"verdict": "ask", "reason": verdict.reason, "refused": labels(verdict.effects)}
        case Deny():
            fields |= {"verdict": "deny", "layer": verdict.layer.value, "reason": verdict.reason}
            fields |= {"refused": labels(verdict.effects), "approvable": verdict.approvable}
    if given is not NOTHING and (known := _given(given)):
        fields["given"] = known
    if visible:
        fields["visible"] = visible
    return fields


def _given(given: Given) -> dict[str, object]:
    """Return what is worth saying of it: what is not so, and empty, is left out."""
    known: dict[str, object] = {name: True for name in ("gate", "layered", "real", "interactive", "agent") if getattr(given, name)}
    for name in ("sha256", "cwd"):
        if text := getattr(given, name):
            known[name] = text
    if given.scope is not None:
        known["scope"] = _grant(given.scope)
    return known


def _grant(grant: Grant) -> dict[str, object]:
    told: dict[str, object] = {"entry": grant.entry, "effects": labels(grant.effects)}
    return {**told, "unrecognised": True} if grant.unrecognised else told
