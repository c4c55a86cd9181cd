"""Step 1: a plan, as somebody writes it: steps, and for each the checks that have to be seen succeeding.

In: a JSON object that nobody trusts. Out: steps, or RequestRefused with the key that is wrong. A check is one exact
invocation: words and a folder, or a text for the tool `shell`. There is no key that could say that a check has succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from broker.request.delegation import MOST_WORDS, RequestRefused, a_word, read_json
from broker.values import dataclass

MOST_STEPS = 50
MOST_CHECKS = 4  # of a step
MOST_TITLE = 200  # characters
MOST_SHELL = 64 * 1024
MOST_PATH = 4_095
SECONDS, MOST_SECONDS = 600.0, 3_600.0  # that a check may take
ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_STEP_KEYS = ("id", "title", "checks")
_CHECK_KEYS = ("argv", "shell", "cwd", "owner", "seconds")


class Owner(IntEnum):
    """Whose a check is: somebody further down the list may revise it, nobody further up may."""

    WORKER = 0
    JUDGE = 1
    OPERATOR = 2

    @property
    def label(self) -> str:
        """Its name in files, events and messages."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What is run, exactly. `words` of the tool shell are one text. `cwd` is relative to the workspace ('': the top)."""

    words: tuple[str, ...]
    tool: str = "exec"
    cwd: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """What starts: the tool shell gives its text to bash."""
        return ("/bin/bash", "-c", *self.words) if self.tool == "shell" else self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One invocation that must be seen ending with 0, within so many seconds."""

    invocation: Invocation
    owner: Owner = Owner.WORKER
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan."""

    id: str
    title: str
    checks: tuple[Check, ...]


def read_steps(text: bytes | str, by: Owner) -> tuple[Step, ...]:
    """Read a plan's text, as somebody's (`by`). Raises RequestRefused."""
    return steps_of(read_json(text, "plan"), by)


def steps_of(table: object, by: Owner) -> tuple[Step, ...]:
    """Return the steps that an object means: `{"steps": [{"id", "title", "checks": […]}]}`. Raises RequestRefused.

    What has no owner is of whoever wrote it, and nobody writes for somebody above him.
    """
    if not isinstance(table, Mapping):
        raise RequestRefused("", 'a plan is one object: {"steps": [...]}')
    _known(table, ("steps",), "")
    rows = _list(table.get("steps"), "steps", MOST_STEPS, "steps")
    steps = tuple(_step(row, number, by) for number, row in enumerate(rows, 1))
    if twice := _twice(step.id for step in steps):
        raise RequestRefused("steps", f"two steps are called {twice}. Give each an id of its own")
    return steps


def as_data(step: Step) -> dict[str, Any]:
    """Return a step in the form that `steps_of` reads."""
    return {"id": step.id, "title": step.title, "checks": [check_data(check) for check in step.checks]}


def check_data(check: Check) -> dict[str, Any]:
    """Return a check in the form that `steps_of` reads."""
    invocation = check.invocation
    words: dict[str, Any] = {"shell": invocation.words[0]} if invocation.tool == "shell" else {"argv": list(invocation.words)}
    cwd = {"cwd": invocation.cwd} if invocation.cwd else {}
    return {**words, **cwd, "owner": check.owner.label, "seconds": check.seconds}


def _step(row: object, number: int, by: Owner) -> Step:
    key = f"steps[{number}]"
    if not isinstance(row, Mapping):
        raise RequestRefused(key, "a step is an object with a title and checks")
    _known(row, _STEP_KEYS, key)
    name = row.get("id", str(number))
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise RequestRefused(f"{key}.id", "write a short name of a-z, 0-9, _ and -")
    title = _text(row.get("title"), f"{key}.title", MOST_TITLE)
    rows = _list(row.get("checks"), f"{key}.checks", MOST_CHECKS, "checks")
    checks = tuple(_check(one, f"{key}.checks[{place}]", by) for place, one in enumerate(rows, 1))
    if _twice(check.invocation for check in checks):
        raise RequestRefused(f"{key}.checks", "the same invocation is there twice")
    return Step(id=name, title=title, checks=checks)


def _check(row: object, key: str, by: Owner) -> Check:
    if not isinstance(row, Mapping):
        raise RequestRefused(key, 'a check is an object: {"argv": ["go", "test", "./..."]}')
    _known(row, _CHECK_KEYS, key)
    if ("argv" in row) == ("shell" in row):
        raise RequestRefused(key, "write what is to be run: argv (a list of words) or shell (a text), one of both")
    words: tuple[str, ...]
    if "shell" in row:
        tool, words = "shell", (a_word(_text(row["shell"], f"{key}.shell", MOST_SHELL), f"{key}.shell"),)
    else:
        found = row["argv"]
        if not isinstance(found, (list, tuple)) or not found or len(found) > MOST_WORDS:
            raise RequestRefused(f"{key}.argv", 'write it as a list of words: ["go", "test", "./..."]')
        tool, words = "exec", tuple(a_word(word, f"{key}.argv") for word in found)
        if not words[0]:
            raise RequestRefused(f"{key}.argv", "its first word is empty")
    return Check(
        invocation=Invocation(words=words, tool=tool, cwd=_cwd(row.get("cwd", ""), f"{key}.cwd")),
        owner=_owner(row.get("owner"), f"{key}.owner", by), seconds=_seconds(row.get("seconds"), f"{key}.seconds"),
    )  # fmt: skip


def _cwd(value: object, key: str) -> str:
    if not isinstance(value, str) or len(value) > MOST_PATH:
        raise RequestRefused(key, "write the path of a folder")
    names = [name for name in a_word(value, key).split("/") if name not in ("", ".")]
    if value.startswith("/") or ".." in names:
        raise RequestRefused(key, "write a folder of the workspace, relative to its top")
    return "/".join(names)


def _owner(value: object, key: str, by: Owner) -> Owner:
    if value is None:
        return by
    owner = next((one for one in Owner if one.label == value), None)
    if owner is None:
        raise RequestRefused(key, f"it is {', '.join(one.label for one in Owner)}")
    if owner > by:
        raise RequestRefused(key, f"only the {owner.label} says what is the {owner.label}'s. Leave it out")
    return owner


def _seconds(value: object, key: str) -> float:
    if value is None:
        return SECONDS
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_SECONDS:
        raise RequestRefused(key, f"write a number of seconds, at most {MOST_SECONDS:.0f}")
    return float(value)


def _text(value: object, key: str, most: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RequestRefused(key, "it is missing: a text")
    if len(value) > most:
        raise RequestRefused(key, f"it has {len(value)} characters, and at most {most} are taken")
    return a_word(value, key)


def _list(value: object, key: str, most: int, what: str) -> list[object]:
    if not isinstance(value, (list, tuple)) or not value:
        raise RequestRefused(key, f"it is missing: a list of 1 to {most} {what}")
    if len(value) > most:
        raise RequestRefused(key, f"there are {len(value)}, and at most {most} are taken")
    return list(value)


def _known(table: Mapping[Any, Any], keys: tuple[str, ...], at: str) -> None:
    for key in table:
        if key not in keys:
            shown = ascii(str(key)[:64])[1:-1]
            raise RequestRefused(f"{at}.{shown}" if at else shown, f"there is no such key. There are: {', '.join(keys)}")


def _twice(values: Iterable[Any]) -> Any:
    """Return a value that is there twice, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
