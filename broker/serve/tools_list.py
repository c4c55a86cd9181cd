"""How the tools are shown to an agent: names, sentences, what each takes and returns. Data, always in this order.

What a tool takes is checked against its schema before it runs. What it returns always has a `code`; with `ok` come the
tool's own fields, with anything else a `message`, and with `denied` all that a refusal has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.classify.risk import Risk
from broker.decide.plan import State
from broker.request.plan import MOST_CHECKS, MOST_SECONDS, MOST_STEPS, MOST_TITLE, SECONDS, Owner
from broker.serve.tools_schema import Schema, flag, listing, number, table, text
from broker.values import dataclass

MOST_PATH = 4_095
MOST_TEXT = 64 * 1024  # of a command; with the environment it must fit into what the gate can judge
MOST_CONTENT = 1 << 20  # characters of a file that is written
MOST_EDITS = 50
MOST_PARTS = 200

CODES = (
    "ok", "denied", "invalid", "not_found", "changed", "no_match", "not_permitted", "too_large", "timeout", "cancelled", "busy",
    "failed", "incomplete", "internal",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How one tool is shown. The hints are the protocol's: whether it only reads, may destroy, may be repeated."""

    name: str
    title: str
    about: str
    takes: Schema
    gives: Schema
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False


_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_TRUTH: Schema = {"type": "boolean"}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_RISK: Schema = {"enum": [risk.label for risk in Risk]}
_DENIAL: Schema = {
    "type": "object",
    "properties": {
        "tool": _TEXT, "what": _TEXT, "class": _RISK, "effects": _TEXTS, "reason": _TEXT, "rule": _TEXT, "layer": _TEXT,
        "hint": _TEXT, "approvable": _TRUTH, "count": _WHOLE, "of": _TEXT,
    },
    "required": ["tool", "what", "class", "reason", "rule", "hint", "approvable", "count"],
}  # fmt: skip
_DENIALS: Schema = {"type": "array", "items": _DENIAL}
_OUTCOME: Schema = {
    "type": "object",
    "properties": {
        "task": _TEXT, "status": _TEXT, "exit_code": _WHOLE, "reason": _TEXT, "profile": _TEXT, "trust": _TEXT, "label": _TEXT,
        "stdout": _TEXT, "stderr": _TEXT, "denials": _DENIALS, "narrowed": _TEXTS,
    },
    "required": ["task", "status"],
}  # fmt: skip


def _gives(properties: Mapping[str, Schema], *required: str) -> Schema:
    """Return what a tool returns: its own fields, or a problem."""
    problem: dict[str, Schema] = {
        "code": {"enum": list(CODES)}, "message": _TEXT, "what": _TEXT, "class": _RISK, "ceiling": _RISK, "effects": _TEXTS,
        "rule": _TEXT, "layer": _TEXT, "hint": _TEXT, "approvable": _TRUTH,
    }  # fmt: skip
    return {
        "type": "object", "properties": {**problem, **properties}, "required": ["code"],
        "if": {"properties": {"code": {"const": "ok"}}},
        "then": {"required": list(required)},
        "else": {
            "required": ["message"],
            "if": {"properties": {"code": {"const": "denied"}}},
            "then": {"required": ["class", "ceiling", "rule", "approvable", "hint"]},
        },
    }  # fmt: skip


_PATH = text("A path, absolute or relative to the workspace.", most=MOST_PATH, least=1)
_CWD = text("Where it starts: a folder, absolute or relative to the workspace (default: the workspace).", most=MOST_PATH, least=1)
_EDIT: dict[str, Schema] = {
    "path": _PATH,
    "old_string": text("The exact text to replace.", most=MOST_CONTENT, least=1, nul=True),
    "new_string": text("What takes its place (default: nothing).", most=MOST_CONTENT, nul=True),
    "count": number("How often old_string occurs in the file; all of them are replaced.", 1, 100_000, 1),
    "diff": text("Instead of old_string: a unified diff of this one file. Hunks must match exactly.", most=MOST_CONTENT, least=1, nul=True),
}
_EDITED: dict[str, Schema] = {"path": _TEXT, "edits": _WHOLE, "bytes": _WHOLE}
_VERDICT: dict[str, Schema] = {
    "verdict": {"enum": ["allow", "ask", "deny"]}, "effects": _TEXTS, "refused": _TEXTS, "reason": _TEXT,
}  # fmt: skip

SHELL = Shape(
    name="shell", title="Run a shell command", destructive=True,
    about="Run a text with bash in the task's sandbox: no network, a copy-on-write workspace, an empty stdin. Each program "
    "that it starts is judged; what was refused is in `denials`, with the reason and what to do instead. The exit code of the "
    "command is in exit_code. Of long output the beginning and the end are returned.",
    takes=table({
        "command": text("The text, as bash reads it.", most=MOST_TEXT, least=1), "cwd": _CWD,
        "timeout": number("Seconds after which all of it is ended.", 0.1, 3_600, 120, whole=False),
    }, "command"),
    gives=_gives({
        "status": {"enum": ["finished", "signalled"]}, "exit_code": _WHOLE, "signal": _TEXT,
        "seconds": {"type": "number"}, "left_running": _TRUTH, "stdout": _TEXT, "stderr": _TEXT, "stdout_bytes": _WHOLE,
        "stderr_bytes": _WHOLE, "denials": _DENIALS,
    }, "status", "exit_code", "stdout", "stderr", "denials"),
)  # fmt: skip
READ_FILE = Shape(
    name="read_file", title="Read a file", read_only=True, idempotent=True,
    about="Read a file, or a piece of it, as the task sees it. Text is in `text`, anything else in `base64`. next_offset is "
    "there when the file goes on. `version` can be given to write_file, so that nothing newer is overwritten.",
    takes=table({
        "path": _PATH, "offset": number("The first byte.", 0, 1 << 50, 0), "length": number("At most so many bytes.", 1, 256 * 1024, 65_536),
    }, "path"),
    gives=_gives({
        "path": _TEXT, "size": _WHOLE, "version": _TEXT, "mode": _TEXT, "offset": _WHOLE, "bytes": _WHOLE, "text": _TEXT,
        "base64": _TEXT, "next_offset": _WHOLE,
    }, "path", "size", "version", "offset", "bytes"),
)  # fmt: skip
WRITE_FILE = Shape(
    name="write_file", title="Write a file", destructive=True, idempotent=True,
    about="Write a whole file, at once or not at all. A file that is there keeps its permissions.",
    takes=table({
        "path": _PATH, "content": text("The new content.", most=MOST_CONTENT, nul=True),
        "base64": text("Instead of content: bytes that are no text.", most=MOST_CONTENT),
        "parents": flag("Make the folders above that are missing.", default=True),
        "create_only": flag("Only if there is no such file yet.", default=False),
        "version": text("Only while the file is the one that read_file returned this `version` of.", most=64),
    }, "path"),
    gives=_gives({"path": _TEXT, "bytes": _WHOLE}, "path", "bytes"),
)  # fmt: skip
PATCH = Shape(
    name="patch", title="Change a file", destructive=True,
    about="Change one file: replace an exact text (old_string, new_string, count), or apply a unified diff (diff). Written at "
    "once, and only if nobody changed the file meanwhile.",
    takes=table(_EDIT, "path"), gives=_gives(_EDITED, *_EDITED),
)  # fmt: skip
BATCH_PATCH = Shape(
    name="batch_patch", title="Change several files", destructive=True,
    about="Change several files, or none: all edits are computed before the first file is written, and what was written is put "
    "back when a later file cannot be. Several edits of one file are applied in their order.",
    takes=table({"edits": listing("The changes, each as patch takes it.", table(_EDIT, "path"), most=MOST_EDITS)}, "edits"),
    gives=_gives({
        "files": {"type": "array", "items": {"type": "object", "properties": _EDITED, "required": [*_EDITED]}},
        "path": _TEXT, "put_back": _WHOLE, "not_put_back": _TEXTS,
    }, "files"),
)  # fmt: skip
_LIMIT: Schema = {"anyOf": [{"type": "string", "maxLength": 64}, {"type": "number"}]}
# Keys that are not here are refused by whoever reads the request, with a reason of their own: see request/delegation.py.
_TASK: Schema = {
    "type": "object",
    "properties": {
        "profile": text("A profile of the operator's, by its name (list_subagent_profiles).", most=64, least=1),
        "command": listing("The command, as a list of words.", text("", most=128 * 1024), most=4_096),
        "trust_level": {"enum": ["trusted", "untrusted"], "description": "Default: untrusted. Never more than this task's own."},
        "max_risk": text("A lower ceiling than the profile's.", most=64),
        "limits": {"type": "object", "description": "Less than the profile's: 2G, 30s, 0.5.", "properties": {
            "memory": _LIMIT, "cpus": _LIMIT, "pids": _LIMIT, "time": _LIMIT, "output": _LIMIT}},
        "tools_disabled": {"type": "array", "items": text("", most=64), "description": "Tools that it is not to have."},
        "label": text("What people see in the tree of tasks.", most=200),
        "goal": text("For its agent, in $BROKER_TASK.", most=128 * 1024, nul=True),
        "context": text("For its agent, in $BROKER_TASK.", most=128 * 1024, nul=True),
    },
    "required": ["profile", "command"],
}  # fmt: skip
DELEGATE_TASKS = Shape(
    name="delegate_tasks", title="Run sub-tasks", destructive=True,
    about="Run one to eight sub-tasks in parallel, each in a sandbox of its own on this task's files, under a profile that the "
    "operator defined, and never with more rights than this task has. Returns their results: status, exit_code, stdout, stderr, "
    "denials, changes. With wait false it returns at once, and task_result has the results.",
    takes=table({
        "tasks": listing("The sub-tasks.", _TASK, most=8), "wait": flag("Wait until all of them have ended.", default=True),
    }, "tasks"),
    gives=_gives({"tasks": {"type": "array", "items": _OUTCOME}}, "tasks"),
)  # fmt: skip
TASK_RESULT = Shape(
    name="task_result", title="Get a sub-task's result", read_only=True, idempotent=True,
    about="Return the result of a sub-task that this client started; while it runs, its status is `running`.",
    takes=table({
        "task": text("Its place in the tree, as delegate_tasks returned it: root/1.", most=200, least=1),
        "wait": number("Seconds to wait for its end.", 0, 600, 0, whole=False),
    }, "task"),
    gives=_gives({"task": _OUTCOME}, "task"),
)  # fmt: skip
LIST_SUBAGENT_PROFILES = Shape(
    name="list_subagent_profiles", title="List profiles for sub-tasks", read_only=True, idempotent=True,
    about="List the profiles that a sub-task may have, and what is left of each below this task.",
    takes=table({}),
    gives=_gives({"profiles": {"type": "array", "items": {"type": "object", "required": ["name", "description", "max_risk", "here", "tools"]}}}, "profiles"),
)  # fmt: skip
CAN_I = Shape(
    name="can_i", title="Ask whether a command may run", read_only=True, idempotent=True,
    about="Say whether a command (a list of words) or a shell text may run here, and why. Nothing is run.",
    takes=table({
        "command": listing("A command, as a list of words.", text("", most=MOST_TEXT), most=4_096),
        "shell": text("Or a shell text.", most=MOST_TEXT, least=1), "cwd": _CWD,
    }),
    gives=_gives(_VERDICT, "verdict", "effects", "rule"),
)  # fmt: skip
EXPLAIN = Shape(
    name="explain", title="Explain a shell text", read_only=True, idempotent=True,
    about="Say how a shell text is understood, part by part, with the classes of risk and the rules. Nothing is run.",
    takes=table({"text": text("The shell text.", most=MOST_TEXT, least=1)}, "text"),
    gives=_gives({**_VERDICT, "parts": {"type": "array"}, "parts_left_out": _WHOLE}, "verdict", "effects", "rule", "parts"),
)  # fmt: skip
DENIALS = Shape(
    name="denials", title="List what was refused", read_only=True, idempotent=True,
    about="List what was refused so far, in this task and in its sub-tasks, with the reason and what to do instead.",
    takes=table({}),
    gives=_gives({"denials": _DENIALS, "denials_below": _DENIALS}, "denials", "denials_below"),
)  # fmt: skip


_PLAN_CHECK = table({
    "argv": listing("The command, as a list of words.", text("", most=128 * 1024), most=4_096),
    "shell": text("Or a text, as the tool shell takes it.", most=MOST_TEXT, least=1),
    "cwd": text("The folder that it runs in, relative to the workspace's top.", most=MOST_PATH),
    "seconds": {"type": "number", "description": "The longest that it may take.", "maximum": MOST_SECONDS, "default": SECONDS},
    "owner": {"enum": [owner.label for owner in Owner], "description": "Yours is worker's, and you say of nothing else whose it is."},
})  # fmt: skip
_PLAN_STEP = table({
    "id": text("A short name of a-z, 0-9, _ and -. Default: its number.", most=40, least=1),
    "title": text("What is to be done.", most=MOST_TITLE, least=1),
    "checks": listing("What must be seen succeeding: exact invocations.", _PLAN_CHECK, most=MOST_CHECKS),
}, "title", "checks")  # fmt: skip
PLAN = Shape(
    name="plan", title="Plan, with evidence", destructive=True,
    about="Make a plan (create, revise with steps), show it, begin a step, have its checks run (check), and say that it is done "
    "(complete). A step is done only when broker itself has seen each of its checks ending with 0, after the step began, and the "
    "workspace is still the same: to say so is not enough, and a command that you run yourself does not count. With code "
    "incomplete comes what is missing.",
    takes=table({
        "action": {"enum": ["create", "revise", "show", "begin", "check", "complete"]},
        "step": text("For begin, check, complete: the step's id; for check, STEP.N is one of its checks.", most=60),
        "steps": listing("For create and revise: the steps. Those of the operator or a judge stay whatever you say.", _PLAN_STEP,
                         most=MOST_STEPS),
    }, "action"),
    gives=_gives({
        "done": _TRUTH, "workspace": _TEXT, "steps": {"type": "array", "items": {
            "type": "object", "required": ["id", "title", "state", "checks"], "properties": {"state": {"enum": [str(one) for one in State]}},
        }},
        "checks": {"type": "array", "items": {"type": "object", "required": ["check", "what", "state"]}}, "missing": _TEXTS,
    }, "done", "steps"),
)  # fmt: skip


def as_data(shape: Shape) -> dict[str, Any]:
    """Return a tool as the protocol lists it."""
    return {
        "name": shape.name, "title": shape.title, "description": shape.about, "inputSchema": dict(shape.takes),
        "outputSchema": dict(shape.gives),
        "annotations": {
            "title": shape.title, "readOnlyHint": shape.read_only, "destructiveHint": shape.destructive,
            "idempotentHint": shape.idempotent, "openWorldHint": False,
        },
    }  # fmt: skip
