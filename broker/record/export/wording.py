"""An event in a few words and on a scale, for formats that want a name, a sentence and a severity."""

from __future__ import annotations

from typing import Any

from broker.classify.risk import Risk
from broker.record import event

# Refusals by the guard, and what should never happen: worth somebody's attention whatever else is going on.
ALARMS = frozenset({event.EXEC_RACE, event.GUARD_LOST, event.LANDING_FAILED, "egress.used"})
_RISKS = {risk.label: risk for risk in Risk}
_GRAVE = frozenset({Risk.PERSISTENCE, Risk.DESTRUCTIVE, Risk.BLOCKED, Risk.SYSTEM_WRITE})
_NAMES = {
    "exec.decided": "Program start", "file.decided": "File change", "delegation.decided": "Sub-task", "connection.decided": "Connection",
    "task.denied": "Denied", "task.denied.repeated": "Denied again",
}  # fmt: skip


def name_of(one: dict[str, Any]) -> str:
    """Return an event's name for people: the same for all events of a kind."""
    kind = str(one.get("type", ""))
    verdict = one.get("verdict")
    name = _NAMES.get(kind) or kind.replace(".", " ").replace("_", " ").capitalize()
    return f"{name} {'denied' if verdict == 'deny' else 'allowed' if verdict == 'allow' else verdict}" if isinstance(verdict, str) else name


def operation_of(one: dict[str, Any]) -> dict[str, Any]:
    """Return the operation that an event holds, as it was recorded; {} where it holds none."""
    operation = one.get("operation")
    return operation if isinstance(operation, dict) else {}


def what_of(one: dict[str, Any]) -> str:
    """Return what an event is about, in words."""
    if isinstance(what := one.get("what"), str):
        return what
    if isinstance(visible := one.get("visible"), str):  # what stood in an agent's wrapper; the operation has the whole of it
        return visible
    operation = one.get("operation")
    if isinstance(operation, dict):
        match operation.get("kind"):
            case "exec" | "delegation":
                return command_line(operation.get("argv"))
            case "shell":
                return str(operation.get("text", ""))
            case "file_change":
                other = f" -> {operation['other']}" if operation.get("other") else ""
                return f"{operation.get('action', 'change')} {operation.get('path', '')}{other}"
            case "file_read":
                return f"read {operation.get('path', '')}"
            case "connection":
                return f"connect {operation.get('address', '')}:{operation.get('port', '')}"
    if isinstance(command := one.get("argv", one.get("command")), list):
        return command_line(command)
    return str(one.get("reason") or one.get("text") or "")


def command_line(argv: object) -> str:
    """Return an argv as a command line."""
    import shlex

    return shlex.join(map(str, argv)) if isinstance(argv, (list, tuple)) else ""


def worst(one: dict[str, Any]) -> Risk | None:
    """Return the worst class of what was refused, else of what was decided on."""
    labels = one.get("refused") or one.get("effects") or ([one["class"]] if "class" in one else [])
    known = [_RISKS[label] for label in labels if isinstance(label, str) and label in _RISKS] if isinstance(labels, list) else []
    return max(known, default=None)


def is_refusal(one: dict[str, Any]) -> bool:
    """Tell whether somebody was refused something."""
    return one.get("verdict") == "deny" or str(one.get("type", "")).startswith((event.TASK_DENIED, "call.refused", "exec.unreadable", "exec.too_large", "answer.timeout"))


def severity(one: dict[str, Any]) -> int:
    """Return 1 (informational) to 5 (critical), as OCSF has it: an alarm is critical, and a refusal as bad as what was refused."""
    if one.get("type") in ALARMS:
        return 5
    if not is_refusal(one):
        return 1
    risk = worst(one)
    if risk in _GRAVE:
        return 4
    return 3 if risk is None or risk >= Risk.INSTALL else 2
