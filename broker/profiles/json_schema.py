"""The JSON Schema (2020-12) of profile files, for editors that complete and check while one types.

It says the same as `schema.py` and `normalise.py`, as far as a schema can: keys, types, values (tests compare both). What
needs a parser, such as whether a command line is exact, only loading tells.
"""

from __future__ import annotations

from typing import Any

from broker.classify.contents import landing_rules
from broker.classify.risk import Risk
from broker.decide.envelope import NEVER_GRANTED
from broker.decide.profile import LAYERS, TOOLS

_CEILINGS = [risk.label for risk in Risk if risk < Risk.UNKNOWN]
_ADDED = [risk.label for risk in Risk if risk is not Risk.BLOCKED]
_REMOVED = [risk.label for risk in Risk if risk is not Risk.SAFE]
_GRANTED = [risk.label for risk in Risk if risk not in NEVER_GRANTED]
_VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the schema of a profile file, TOML or JSON."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "broker profiles",
        "description": "Named permission envelopes. What a profile means: docs/profiles.md",
        "type": "object",
        "additionalProperties": False,
        "required": ["profiles"],
        "properties": {
            "profiles": {
                "type": "object",
                "description": "Profiles by name",
                "minProperties": 1,
                "propertyNames": {"pattern": "^[a-z0-9][a-z0-9._-]*$"},
                "additionalProperties": {"$ref": "#/$defs/profile"},
            }
        },
        "$defs": {
            "profile": _table("One permission envelope", _PROFILE()),
            "entry": _table("An allowlist entry with conditions", _ENTRY, required=["command"]),
            "size": {
                "description": 'Bytes, or a number with K, M, G or T (powers of 1024): "2G"',
                "anyOf": [
                    {"type": "integer", "minimum": 1},
                    {"type": "string", "pattern": r"^\s*[0-9]{1,15}(\.[0-9]{1,6})?\s*([kKmMgGtT]?)([iI]?[bB])?\s*$"},
                ],
            },
            "time": {
                "description": 'Seconds, or numbers with s, m, h or d: "1h30m"',
                "anyOf": [
                    {"type": "number", "exclusiveMinimum": 0},
                    {"type": "string", "pattern": r"^\s*([0-9]{1,12}(\.[0-9]{1,6})?|([0-9]{1,12}(\.[0-9]{1,6})?[sSmMhHdD])+)\s*$"},
                ],
            },
        },
    }


def _table(text: str, properties: Schema, *, required: list[str] | None = None) -> Schema:
    table: Schema = {"type": "object", "description": text, "additionalProperties": False, "properties": properties}
    return table | ({"required": required} if required else {})


def _text(text: str, **more: Any) -> Schema:
    return {"type": "string", "description": text, **more}


def _words(text: str, words: list[str] | tuple[str, ...] = (), **more: Any) -> Schema:
    items: Schema = {"type": "string", **more}
    return {"type": "array", "description": text, "items": items | ({"enum": list(words)} if words else {})}


def _number(text: str, kind: str = "integer", **more: Any) -> Schema:
    return {"type": kind, "description": text, **more}


def _like(name: str, text: str) -> Schema:
    return {"$ref": f"#/$defs/{name}", "description": text}


_LINE: dict[str, Any] = {"minLength": 1}

_ENTRY: Schema = {
    "command": _text("The exact command line: no wildcards, no prefixes, nothing that a shell would expand", **_LINE),
    "cwd": _text("The folder it must be started in, below the workspace or absolute", **_LINE),
    "sha256": _text("The SHA-256 of the program's file", pattern="^[0-9a-fA-F]{64}$"),
    "effects": _words("Classes that what it starts may have, beyond what every entry gives", _GRANTED),
}


def _PROFILE() -> Schema:  # noqa: N802 - a table like the others, with rules that are read from elsewhere
    return {
        "description": _text("One sentence, for `broker profile list`"),
        "max_risk": _text("The ceiling: every class up to it is permitted", enum=_CEILINGS),
        "tools": _table("Tools", {"disabled": _words("Tools that the task does not have", TOOLS)}),
        "allowlist": {
            "type": "array",
            "description": "Exact commands that are permitted, whatever their class",
            "items": {"anyOf": [_text("The exact command line", **_LINE), {"$ref": "#/$defs/entry"}]},
        },
        "denylist": _words("Beginnings of commands that are denied, compared word by word", **_LINE),
        "permits": _words("Examples that must be permitted: tried whenever the profile is loaded", **_LINE),
        "denies": _words("Examples that must be refused: tried whenever the profile is loaded", **_LINE),
        "effects": _table(
            "Single classes more or fewer than the ceiling's",
            {"add": _words("Classes that are permitted as well", _ADDED), "remove": _words("Classes that are not permitted", _REMOVED)},
        ),
        "land": _table("What may land", {"allow": _words("Rules of persistence that may land", landing_rules())}),
        "env": _table(
            "The task's environment",
            {
                "pass": _words("Names handed in from the operator's environment", pattern=_VARIABLE),
                "set": {
                    "type": "object",
                    "description": "Variables that are set",
                    "propertyNames": {"pattern": _VARIABLE},
                    "additionalProperties": {"type": "string"},
                },
            },
        ),
        "sandbox": _table("The container", _SANDBOX),
        "delegate": _table("What the task may hand on to tasks of its own", _DELEGATE),
        "approvals": _table("Whether somebody is asked about what an approval could permit", _APPROVALS),
        "gateways": {
            "type": "object",
            "description": "Upstreams that the task may reach, by name: the only ways out of a task without a network",
            "propertyNames": {"pattern": "^[a-z0-9][a-z0-9._-]*$"},
            "additionalProperties": _table("One upstream, and what of it", _GATEWAY, required=["upstream"]),
        },
        "network": _table("What the task may reach through the broker's proxy", _NETWORK),
        "agent": {"description": "The agent that it is meant for: broker run starts it (docs/agents.md)", "type": "string"},
        "requires": _words("Layers that must be effective, or the task does not start (all of them)", LAYERS),
    }


_SANDBOX: Schema = {
    "engine": _text("Who makes the container", enum=["auto", "docker", "bubblewrap"]),
    "image": _text("The image that Docker starts", pattern="^([A-Za-z0-9][A-Za-z0-9._/:@-]*)?$"),
    "workspace": _text("overlay: copy-on-write; direct: the real files; read-only", enum=["overlay", "direct", "read-only"]),
    "read_only": _words("More host paths to show, read-only", pattern="^/"),
    "show": _words("Files that look like secrets and are shown all the same", pattern="^[^/~]"),
    "memory": _like("size", "Memory of all processes together"),
    "cpus": _number("Processors' worth of time", "number", minimum=0.01, maximum=4096),
    "pids": _number("Processes and threads at once", minimum=1, maximum=1 << 22),
    "time": _like("time", "How long the task may take"),
    "tmp_size": _like("size", "The size of /tmp, and of the task's home"),
    "shm_size": _like("size", "The size of /dev/shm"),
    "output": _like("size", "How much it may write to stdout and stderr"),
    "layer_size": _like("size", "How much its changes may take on disk"),
}

_APPROVALS: Schema = {
    "ask": {"type": "boolean", "description": "broker run on a terminal asks without --ask"},
    "timeout": _like("time", "How long a question waits; then it is denied (120s)"),
    "approver": _text("Who may answer; client: whoever uses the tools over MCP, in the operator's place", enum=["operator", "client"]),
}

_SECRET: Schema = {
    "env": _text("The broker's environment variable that holds it", pattern=_VARIABLE),
    "file": _text("The file that holds it", **_LINE),
    "command": _words("The command that prints it"),
    "form": _text("What the header says, with {} in the place of the secret", pattern=r"\{\}"),
}

_GATEWAY: Schema = {
    "upstream": _text("https://host; http:// for this machine only", pattern="^https?://"),
    "env": {
        "type": "object",
        "description": "Variables that the task gets; {url} is where the gateway listens inside",
        "propertyNames": {"pattern": _VARIABLE},
        "additionalProperties": {"type": "string"},
    },
    "headers": {
        "type": "object",
        "description": "Headers that are set on each request, outside: the task never sees them",
        "additionalProperties": {"anyOf": [{"type": "string"}, _table("Where its value comes from", _SECRET)]},
    },
    "methods": _words("HTTP methods (GET, POST)", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    "paths": _words("Beginnings of paths that may be asked for (any)", pattern="^/"),
    "models": _words("Models that a request may name (any)"),
    "addresses": _words("Private networks in which the host may lie, as 10.0.0.0/8"),
    "request_bytes": _like("size", "The largest request"),
    "response_bytes": _like("size", "The largest answer"),
    "per_minute": _number("Requests in a minute", minimum=1),
}

_NETWORK: Schema = {
    "hosts": _words("Hosts, as pypi.org:443 or *.example.com:443", pattern=r"^(\*\.)?[a-z0-9.-]+(:[0-9]{1,5})?$"),
}

_DELEGATE: Schema = {
    "profiles": _words("Profiles that its children may have (any)", pattern="^[a-z0-9][a-z0-9._-]*$"),
    "agents": _words("Programs, by absolute path, that lead sub-tasks: their start is not judged", pattern="^/"),
    "depth": _number("Levels of tasks below it", minimum=0, maximum=10_000),
    "breadth": _number("Children at once", minimum=0, maximum=10_000),
    "tasks": _number("Descendants in all", minimum=0, maximum=10_000),
    "cpu_time": _like("time", "Processor time of all descendants together"),
    "time": _like("time", "Time of all descendants together"),
    "memory": _like("size", "Memory of all descendants at once"),
}
