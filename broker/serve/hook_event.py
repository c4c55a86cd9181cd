"""What an agent says before it uses a tool. In: the bytes on stdin. Out: an Event, or NotUnderstood.

Three agents have hooks, and say it alike: a JSON object with `hook_event_name`, `tool_name`, `tool_input`, `session_id`
and `cwd`. The plugin that we write for OpenCode does the same. Anything else on stdin is no event, and blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from broker.values import dataclass

MOST_BYTES = 16 << 20  # of one event: it holds the whole content of a file that is written
_LONGEST_NAME = 500


class Dialect(StrEnum):
    """Whose event it is."""

    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"


class NotUnderstood(ValueError):
    """What came is no event of any agent that we know: the tool must not run. `str` of it is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One use of a tool that is about to happen; or, with `begins` or `ends`, a session does.

    `cwd` is absolute. `agent` is the sub-agent's id, where it is one of them. `mode` is the agent's own word for
    who answers its questions.
    """

    dialect: Dialect
    session: str
    cwd: str
    tool: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    call: str = ""
    agent: str = ""
    mode: str = ""
    begins: bool = False
    ends: bool = False

    def text(self, *names: str) -> str:
        """Return the first of these inputs that is there. Raises NotUnderstood when none is, or it is no text."""
        for name in names:
            if (value := self.input.get(name)) is not None:
                return _text(value, f"tool_input.{name}")
        raise NotUnderstood(f"the tool {self.tool} was called without {names[0]}")


_BEFORE = {"PreToolUse": Dialect.CLAUDE, "BeforeTool": Dialect.GEMINI, "tool.execute.before": Dialect.OPENCODE}
_BEGINS, _ENDS = "SessionStart", "SessionEnd"


def understood(data: bytes) -> Event:
    """Return the event. Raises NotUnderstood with a sentence."""
    if len(data) > MOST_BYTES:
        raise NotUnderstood(f"the event on stdin is larger than {MOST_BYTES >> 20} MiB")
    if not data.strip():
        raise NotUnderstood("nothing came on stdin. An agent starts this; by hand: broker hook < event.json")
    try:
        said = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise NotUnderstood("the event on stdin is not UTF-8") from None
    except RecursionError:
        raise NotUnderstood("the event on stdin is nested too deeply") from None
    except ValueError as error:
        raise NotUnderstood(f"the event on stdin is no JSON ({error})") from None
    if not isinstance(said, dict):
        raise NotUnderstood("the event on stdin is no JSON object")
    return _event(said)


def _event(said: dict[str, Any]) -> Event:
    name = _text(said.get("hook_event_name"), "hook_event_name")
    session = _short(said, "session_id")
    cwd = _text(said.get("cwd"), "cwd")
    if not cwd.startswith("/") or "\0" in cwd:
        raise NotUnderstood("the event's cwd is no absolute path")
    if name in (_BEGINS, _ENDS):  # whose it is does not matter: nothing is answered
        return Event(dialect=Dialect.CLAUDE, session=session, cwd=cwd, begins=name == _BEGINS, ends=name == _ENDS)
    dialect = _BEFORE.get(name)
    if dialect is None:
        raise NotUnderstood(f"{name[:60]!r} is no event before a tool. Let `broker install` write the agent's hooks")
    if dialect is Dialect.CLAUDE and "turn_id" in said:
        dialect = Dialect.CODEX  # it speaks as Claude Code does, and of turns besides
    arguments = said.get("tool_input")
    if not isinstance(arguments, dict):
        raise NotUnderstood("the event's tool_input is no JSON object")
    return Event(
        dialect=dialect, session=session, cwd=cwd, tool=_short(said, "tool_name"), input=arguments,
        call=_short(said, "tool_use_id", needed=False), agent=_short(said, "agent_id", needed=False),
        mode=_short(said, "permission_mode", needed=False),
    )  # fmt: skip


def _short(said: dict[str, Any], name: str, *, needed: bool = True) -> str:
    """Return a name or an id: text of a reasonable length."""
    value = said.get(name)
    if value is None and not needed:
        return ""
    text = _text(value, name)
    if (needed and not text) or len(text) > _LONGEST_NAME:
        raise NotUnderstood(f"the event's {name} is {'empty' if not text else 'too long'}")
    return text


def _text(value: object, name: str) -> str:
    if value is None:
        raise NotUnderstood(f"the event has no {name}")
    if not isinstance(value, str):
        raise NotUnderstood(f"the event's {name} is no text")
    return value
