"""Open Cybersecurity Schema Framework 1.5.0 (https://schema.ocsf.io/1.5.0): activities, and refusals as findings.

Process Activity 1007, File System Activity 1001, Network Activity 4001, Detection Finding 2004; with the profiles host and
security_control, which say what was allowed and what was blocked. Events that are about broker itself (how a run was set up, what
it used) have no class here, and are passed over. What OCSF has no name for is in `unmapped`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from broker import __version__
from broker.record import event
from broker.record.export import wording
from broker.record.export.facts import Facts
from broker.record.export.message import Body, Message
from broker.record.select import when

VERSION = "1.5.0"
_SEVERITIES = {1: "Informational", 2: "Low", 3: "Medium", 4: "High", 5: "Critical"}
_FILE_ACTIVITY = {  # FileAction -> activity_id
    "write": 3, "truncate": 3, "delete": 4, "rename": 5, "link": 1, "symlink": 1, "mkdir": 1, "mknod": 1, "mode": 7, "owner": 7,
    "xattr": 6, "times": 6, "created": 1, "changed": 3, "deleted": 4, "renamed": 5,
}  # fmt: skip
_FILE_NAMES = {1: "Create", 2: "Read", 3: "Update", 4: "Delete", 5: "Rename", 6: "Set Attributes", 7: "Set Security"}
_FILE_TYPES = {"mkdir": 2, "symlink": 7}
_UNMAPPED = ("rule", "layer", "effects", "refused", "reasons", "class", "approvable", "hint", "grant", "child", "of", "label",
             "tool", "max_risk", "decided_by", "status")  # fmt: skip
Made = tuple[int, str, int, str, dict[str, Any]]  # class id and name, activity id and name, the class's own attributes


class Ocsf:
    """Says events as OCSF's classes do."""

    name = "ocsf"

    def __init__(self) -> None:
        """Name the product, and the device that it works on."""
        product = {"name": "broker", "vendor_name": "Broker", "version": __version__}
        self._metadata = {"version": VERSION, "product": product, "profiles": ["host", "security_control"], "log_name": "broker journal"}
        self._device = {"hostname": socket.gethostname(), "type_id": 0, "type": "Unknown"}

    def messages(self, line: bytes, one: dict[str, Any], facts: Facts) -> Iterable[Message]:
        """Return the event, if there is a class for it; a landing is as many as it has paths."""
        kind = str(one.get("type", ""))
        make = _CLASSES.get(kind)
        if make is None:
            return
        id_ = f"{one.get('run', facts.run)}/{one.get('seq', 0)}"
        for number, made in enumerate(make(one, facts, id_)):
            own = f"{id_}/{number}" if number else id_
            yield Message(own, kind, self._encode(made, one, facts, own))

    def _encode(self, made: Made, one: dict[str, Any], facts: Facts, id_: str) -> bytes:
        class_uid, class_name, activity, activity_name, attributes = made
        severity, task = wording.severity(one), str(one.get("task", ""))
        known = facts.task(task)
        record: dict[str, Any] = {
            "class_uid": class_uid, "class_name": class_name, "category_uid": class_uid // 1000, "category_name": _CATEGORIES[class_uid // 1000],
            "activity_id": activity, "activity_name": activity_name, "type_uid": class_uid * 100 + activity,
            "type_name": f"{class_name}: {activity_name}", "time": when(one) // 1000, "severity_id": severity,
            "severity": _SEVERITIES[severity], "metadata": {**self._metadata, "uid": id_, "sequence": one.get("seq", 0),
                                                           "original_time": str(one.get("time", ""))},
            "device": self._device, "message": _message(one), **attributes,
        }  # fmt: skip
        if known.profile:
            record["policy"] = {"name": known.profile, "is_applied": True}
        unmapped = {name: one[name] for name in _UNMAPPED if name in one}
        if unmapped.get("child") is None and "status" in unmapped:
            del unmapped["status"]
        record["unmapped"] = {"run": facts.run, "task": task, "trust": known.trust, **unmapped}
        return json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    def single(self, message: Message) -> bytes:
        """Return one event."""
        data: bytes = message.content
        return data

    def lines(self, messages: Sequence[Message]) -> Iterator[bytes]:
        """Yield one event a line."""
        return map(self.single, messages)

    def bodies(self, messages: Sequence[Message]) -> Iterator[Body]:
        """Yield all events as JSON lines: what collectors of logs take."""
        yield Body("application/x-ndjson", b"".join(self.single(message) + b"\n" for message in messages))


_CATEGORIES = {1: "System Activity", 2: "Findings", 4: "Network Activity"}


def _message(one: dict[str, Any]) -> str:
    reason = one.get("reason")
    return f"{wording.name_of(one)}: {wording.what_of(one)}" + (f" ({reason})" if isinstance(reason, str) and reason else "")


def _decision(one: dict[str, Any]) -> dict[str, Any]:
    """Return what the profile security_control says of a decision, and how it went."""
    if wording.is_refusal(one):
        return {
            "action_id": 2, "action": "Denied", "disposition_id": 2, "disposition": "Blocked", "status_id": 2, "status": "Failure",
            "status_detail": str(one.get("reason", "")),
        }  # fmt: skip
    if one.get("verdict") == "allow":
        return {"action_id": 1, "action": "Allowed", "disposition_id": 1, "disposition": "Allowed", "status_id": 1, "status": "Success"}
    return {"action_id": 0, "action": "Unknown", "disposition_id": 0, "disposition": "Unknown", "status_id": 0, "status": "Unknown"}


def _actor(one: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """Return who did it: a task, for the user that broker runs as."""
    actor: dict[str, Any] = {"app_name": "broker task", "app_uid": f"{facts.run}/{one.get('task', '')}"}
    return {**actor, "user": {"uid": facts.user}} if facts.user else actor


def _process(argv: object, id_: str, *, program: str = "", cwd: str = "") -> dict[str, Any]:
    words = [str(word) for word in argv] if isinstance(argv, (list, tuple)) else []
    path = program or (words[0] if words else "")
    process: dict[str, Any] = {"uid": id_, "cmd_line": wording.command_line(words), "name": path.rpartition("/")[2] or "unknown"}
    if program:
        process["file"] = _file(program)
        process["path"] = program
    return {**process, "working_directory": cwd} if cwd else process


def _file(path: str, type_id: int = 1) -> dict[str, Any]:
    return {"name": path.rstrip("/").rpartition("/")[2] or "/", "path": path, "type_id": type_id}


# --- one function a kind of event; none for those that have no class


def _exec(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    operation = wording.operation_of(one)
    if operation.get("kind") == "shell":
        process = {**_process([], id_), "cmd_line": str(operation.get("text", "")), "name": str(operation.get("dialect", "sh"))}
    else:
        program = str(operation.get("program") or operation.get("path") or "")
        process = _process(operation.get("argv"), id_, program=program, cwd=str(operation.get("cwd", "")))
    yield 1007, "Process Activity", 1, "Launch", {"actor": _actor(one, facts), "process": process, **_decision(one)}


def _started(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    process = _process(one.get("argv"), id_)
    yield 1007, "Process Activity", 1, "Launch", {"actor": _actor(one, facts), "process": process, **_decision({"verdict": "allow"})}


def _exited(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    status = one.get("wait_status", 0)
    process = {**_process(facts.command, f"{facts.run}/{one.get('task', '')}"), "pid": one.get("pid", 0)}
    code = {"exit_code": status >> 8} if isinstance(status, int) and not status & 0x7F else {}
    ended = "Success" if status == 0 else "Failure"
    yield 1007, "Process Activity", 2, "Terminate", {
        "actor": _actor(one, facts), "process": process, "status_id": 1 if status == 0 else 2, "status": ended, **code,
    }  # fmt: skip


def _files(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    operation = wording.operation_of(one)
    action = str(operation.get("action", ""))
    activity = 2 if operation.get("kind") == "file_read" else _FILE_ACTIVITY.get(action, 99)
    attributes = {"actor": _actor(one, facts), "file": _file(str(operation.get("path", "")), _FILE_TYPES.get(action, 0)), **_decision(one)}
    if operation.get("other"):
        attributes["file_result"] = _file(str(operation["other"]), 0)
    yield 1001, "File System Activity", activity, _FILE_NAMES.get(activity, action or "Other"), attributes


def _landed(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    """A landing that is about to be: each of its paths."""
    changes = one.get("changes")
    for change in changes if isinstance(changes, list) else []:
        if isinstance(change, list) and len(change) == 2:
            action, path = map(str, change)
            activity = _FILE_ACTIVITY.get(action, 99)
            name = _FILE_NAMES.get(activity, action or "Other")
            attributes = {"actor": _actor(one, facts), "file": _file(path, 0), **_decision({"verdict": "allow"})}
            yield 1001, "File System Activity", activity, name, attributes


def _connection(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    operation = wording.operation_of(one)
    refused = wording.is_refusal(one)
    address, port = str(operation.get("address", one.get("host", "")) or "unknown"), operation.get("port", one.get("port"))
    endpoint: dict[str, Any] = {"ip": address} if _is_ip(address) else {"hostname": address, "name": address}
    if isinstance(port, int) and 0 < port < 65536:
        endpoint["port"] = port
    connection = {"direction_id": 2, "direction": "Outbound", "protocol_name": str(operation.get("protocol", "tcp"))}
    activity, name = (5, "Refuse") if refused else (1, "Open")
    yield 4001, "Network Activity", activity, name, {
        "actor": _actor(one, facts), "dst_endpoint": endpoint, "connection_info": connection, **_decision(one),
    }  # fmt: skip


def _is_ip(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _finding(one: dict[str, Any], facts: Facts, id_: str) -> Iterator[Made]:
    """A refusal, or what should never happen. Analysts see these; the decision itself is an activity of its own."""
    rule = str(one.get("rule") or one.get("note") or one.get("type", ""))
    title = wording.what_of(one) or wording.name_of(one)
    analytic = {"name": rule, "uid": rule, "type_id": 1, "type": "Rule"}
    info: dict[str, Any] = {"uid": id_, "title": title, "analytic": analytic, "desc": str(one.get("reason") or one.get("text") or "")}
    finding: dict[str, Any] = {
        "finding_info": info, "is_alert": wording.severity(one) >= 4, "status_id": 1, "status": "New",
        "evidences": [{"actor": _actor(one, facts), "data": {"what": wording.what_of(one)}}], "action_id": 2, "action": "Denied",
        "disposition_id": 2, "disposition": "Blocked",
    }  # fmt: skip
    if one.get("type") == event.TASK_DENIED_REPEATED:
        yield 2004, "Detection Finding", 2, "Update", {**finding, "count": one["count"]} if isinstance(one.get("count"), int) else finding
    else:
        yield 2004, "Detection Finding", 1, "Create", finding


_CLASSES: dict[str, Callable[[dict[str, Any], Facts, str], Iterator[Made]]] = {
    event.EXEC_DECIDED: _exec, event.DELEGATION_DECIDED: _exec, event.SPAWN_STARTED: _started, event.SPAWN_EXITED: _exited,
    event.FILE_DECIDED: _files, event.LANDING_INTENDED: _landed, event.TASK_DENIED: _finding, event.TASK_DENIED_REPEATED: _finding,
    event.EXEC_RACE: _finding, event.EXEC_UNREADABLE: _finding, event.EXEC_TOO_LARGE: _finding, event.ANSWER_TIMEOUT: _finding,
    event.GUARD_LOST: _finding, event.CALL_REFUSED: _finding, event.LIMITS_EXCEEDED: _finding, "budget.exceeded": _finding,
    "connection.decided": _connection,
}  # fmt: skip
