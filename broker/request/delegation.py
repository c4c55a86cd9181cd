"""Step 1: a request for another task, as an agent writes it.

In: a JSON object that nobody trusts. Out: a TaskRequest, or RequestRefused with the key that is wrong. A request may
select a profile that an operator defined, and narrow it; there is no key in it that could define or widen anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from broker.values import dataclass

MOST_BYTES = 256 * 1024  # of a request; its goal and context are texts for an agent
MOST_WORDS = 4_096
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEYS = ("goal", "context", "command", "profile", "trust_level", "max_risk", "limits", "label", "tools_disabled")
_LIMITS = ("memory", "cpus", "pids", "time", "output")


class RequestRefused(ValueError):
    """A request that cannot be meant, or that asks for what no request can have. `key` says where."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}" if key else why)
        self.key, self.why = key, why


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """What somebody wants delegated. Empty: not said.

    `limits` are (name, value) as they were written; what they mean is said by whoever reads profiles. `goal` and
    `context` are texts for the agent of the new task, and no more.
    """

    profile: str
    argv: tuple[str, ...]
    trust: str = ""
    max_risk: str = ""
    limits: tuple[tuple[str, str | int | float], ...] = ()
    tools_disabled: tuple[str, ...] = ()
    label: str = ""
    goal: str = ""
    context: str = ""


def read_request(text: bytes | str) -> TaskRequest:
    """Read a task file's content. Raises RequestRefused."""
    return request_of(read_json(text, "request"))


def read_json(text: bytes | str, what: str) -> object:
    """Read JSON that nobody trusts; `what` is what it is meant to be, for the message. Raises RequestRefused."""
    if isinstance(text, bytes):
        if len(text) > MOST_BYTES:
            raise RequestRefused("", f"the {what} has {len(text)} bytes, and at most {MOST_BYTES} are read")
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RequestRefused("", f"the {what} is not UTF-8 (byte {error.start})") from None
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except RecursionError:
        raise RequestRefused("", f"the {what} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise RequestRefused("", f"the {what} is not JSON: {error.msg} (line {error.lineno})") from None
    except RequestRefused:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise RequestRefused("", f"the {what} cannot be read: {error}") from None


def request_of(table: object) -> TaskRequest:
    """Return the request that an object means. Raises RequestRefused for an unknown key, and for a wrong type."""
    if not isinstance(table, Mapping):
        raise RequestRefused("", "a request is one object")
    for key in table:
        if key not in _KEYS:
            raise RequestRefused(_shown(key), _unknown(key))
    profile = _text(table, "profile", 64)
    if not NAME.fullmatch(profile):
        raise RequestRefused("profile", "write the name of a profile that the operator defined" if profile else "it is missing")
    argv = _command(table.get("command"))
    return TaskRequest(
        profile=profile, argv=argv, trust=_one_of(table, "trust_level", ("trusted", "untrusted")),
        max_risk=_text(table, "max_risk", 64), limits=_limits(table.get("limits")),
        tools_disabled=_texts(table, "tools_disabled"), label=_text(table, "label", 200),
        goal=_text(table, "goal", MOST_BYTES), context=_text(table, "context", MOST_BYTES),
    )  # fmt: skip


def _command(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise RequestRefused("command", 'write it as a list of words: ["go", "vet", "./..."]')
    if not isinstance(value, (list, tuple)) or not value:
        raise RequestRefused("command", "it is missing: a list of words")
    if len(value) > MOST_WORDS:
        raise RequestRefused("command", f"it has {len(value)} words, and at most {MOST_WORDS} are taken")
    words = tuple(a_word(word, "command") for word in value)
    if not words[0]:
        raise RequestRefused("command", "its first word is empty")
    return words


def a_word(value: object, key: str) -> str:
    """Return a word of a command. Raises RequestRefused for what has no form as bytes."""
    if not isinstance(value, str):
        raise RequestRefused(key, f"each word must be text, not {type(value).__name__}")
    if "\0" in value:
        raise RequestRefused(key, "a word holds a NUL")
    return _whole(value, key)


def _whole(value: str, key: str) -> str:
    """Refuse half of a surrogate pair: it has no form as bytes, so nothing could record or start it."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise RequestRefused(key, "it holds half of a character (a lone surrogate)") from None
    return value


def _text(table: Mapping[str, Any], key: str, most: int) -> str:
    value = table.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestRefused(key, f"it must be text, not {type(value).__name__}")
    if len(value) > most:
        raise RequestRefused(key, f"it has {len(value)} characters, and at most {most} are taken")
    return _whole(value, key)


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key) or ()
    if not isinstance(value, (list, tuple)) or len(value) > MOST_WORDS:
        raise RequestRefused(key, "it must be a list of words")
    return tuple(a_word(word, key) for word in value)


def _one_of(table: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = _text(table, key, 64)
    if value and value not in known:
        raise RequestRefused(key, f"it is {' or '.join(known)}")
    return value


def _limits(value: object) -> tuple[tuple[str, str | int | float], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise RequestRefused("limits", "it must be an object")
    found = []
    for name, limit in value.items():
        if name not in _LIMITS:
            raise RequestRefused(f"limits.{_shown(name)}", f"there is no such limit. There are: {', '.join(_LIMITS)}")
        if isinstance(limit, bool) or not isinstance(limit, (str, int, float)):
            raise RequestRefused(f"limits.{name}", "write a number, or a text such as 2G or 30s")
        found.append((name, limit))
    return tuple(found)


def _unknown(key: object) -> str:
    if key in ("allowlist", "allow", "effects", "sandbox", "land", "env", "profiles", "delegate", "tools", "requires", "denylist"):
        return "a request selects a profile and narrows it; only an operator's file can say this"
    return f"there is no such key. There are: {', '.join(_KEYS)}"


def _shown(key: object) -> str:
    text = str(key)[:64]
    return text if text.isprintable() else ascii(text)[1:-1]


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise RequestRefused("", "a key occurs twice in one object")
    return table


def _no_constant(name: str) -> float:
    raise RequestRefused("", f"{name} is not a number that means anything here")
