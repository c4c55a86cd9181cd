"""What a profile file may say, decoded strictly. In: a file's bytes. Out: tables, not yet judged.

A file is JSON or TOML and holds one table, `profiles`, of profiles by name. An unknown key is an error that
suggests the right one: a misspelt `denylist` that is silently ignored would permit what it was to deny.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from broker.profiles.errors import ProfileInvalid
from broker.profiles.shapes import Shape, WrongShape, list_of, one_of, read_keys, table_of, texts_by_name
from broker.profiles.suggest import closest, did_you_mean

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")

# Where people look for a key by another tool's, or another section's, name.
_ELSEWHERE = {
    "allow": "allowlist",
    "deny": "denylist",
    "disabled": "tools.disabled",
    "disabled_tools": "tools.disabled",
    "lands": "land.allow",
    "engine": "sandbox.engine",
    "image": "sandbox.image",
    "workspace": "sandbox.workspace",
    "memory": "sandbox.memory",
    "timeout": "sandbox.time",
    "time": "sandbox.time",
    "environment": "env",
    "pass": "env.pass",
    "max_class": "max_risk",
    "subagents": "delegate.profiles",
    "depth": "delegate.depth",
    "breadth": "delegate.breadth",
}


class ToolsTable(NamedTuple):
    """`tools`: which tools a task does not have."""

    disabled: tuple[str, ...] = ()


class EntryTable(NamedTuple):
    """An allowlist entry with conditions."""

    command: str
    cwd: str | None = None
    sha256: str | None = None
    effects: tuple[str, ...] = ()


class EffectsTable(NamedTuple):
    """`effects`: single classes added to, or removed from, the ceiling's."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class LandTable(NamedTuple):
    """`land`: which rules of persistence may land."""

    allow: tuple[str, ...] = ()


class EnvTable(NamedTuple):
    """`env`: names passed in from the operator's environment, and values set."""

    passed: tuple[str, ...] = ()
    set: Mapping[str, str] = MappingProxyType({})


class SandboxTable(NamedTuple):
    """`sandbox`: the container. Sizes as bytes or "2G", times as seconds or "30m"."""

    engine: str = "auto"
    image: str = ""
    workspace: str = "overlay"
    read_only: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    memory: int | str | None = None
    cpus: int | float | None = None
    pids: int | None = None
    time: int | float | str | None = None
    tmp_size: int | str | None = None
    shm_size: int | str | None = None
    output: int | str | None = None
    layer_size: int | str | None = None


class DelegateTable(NamedTuple):
    """`delegate`: what a task may hand on. Times as seconds or "30m", memory as bytes or "2G"."""

    profiles: tuple[str, ...] | None = None
    depth: int | None = None
    breadth: int | None = None
    tasks: int | None = None
    cpu_time: int | float | str | None = None
    time: int | float | str | None = None
    memory: int | str | None = None


class ProfileTable(NamedTuple):
    """One profile."""

    description: str = ""
    max_risk: str = "safe"
    tools: ToolsTable = ToolsTable()
    allowlist: tuple[str | EntryTable, ...] = ()
    denylist: tuple[str, ...] = ()
    effects: EffectsTable = EffectsTable()
    land: LandTable = LandTable()
    env: EnvTable = EnvTable()
    sandbox: SandboxTable = SandboxTable()
    delegate: DelegateTable = DelegateTable()
    requires: tuple[str, ...] | None = None


_text, _texts = one_of(str), list_of(one_of(str))
_size = one_of(int, str, None)

_ENTRY: Shape = {
    "command": _text,
    "cwd": one_of(str, None),
    "sha256": one_of(str, None),
    "effects": _texts,
}
_TOOLS: Shape = {"disabled": _texts}
_EFFECTS: Shape = {"add": _texts, "remove": _texts}
_LAND: Shape = {"allow": _texts}
_ENV: Shape = {"pass": _texts, "set": texts_by_name}
_SANDBOX: Shape = {
    "engine": _text,
    "image": _text,
    "workspace": _text,
    "read_only": _texts,
    "show": _texts,
    "memory": _size,
    "cpus": one_of(int, float, None),
    "pids": one_of(int, None),
    "time": one_of(int, float, str, None),
    "tmp_size": _size,
    "shm_size": _size,
    "output": _size,
    "layer_size": _size,
}
_DELEGATE: Shape = {
    "profiles": list_of(_text, or_none=True),
    "depth": one_of(int, None),
    "breadth": one_of(int, None),
    "tasks": one_of(int, None),
    "cpu_time": one_of(int, float, str, None),
    "time": one_of(int, float, str, None),
    "memory": _size,
}
_PROFILE: Shape = {
    "description": _text,
    "max_risk": _text,
    "tools": table_of(_TOOLS, ToolsTable),
    "allowlist": list_of(table_of(_ENTRY, EntryTable, needs=("command",), or_text=True)),
    "denylist": _texts,
    "effects": table_of(_EFFECTS, EffectsTable),
    "land": table_of(_LAND, LandTable),
    "env": table_of(_ENV, EnvTable),
    "sandbox": table_of(_SANDBOX, SandboxTable),
    "delegate": table_of(_DELEGATE, DelegateTable),
    "requires": list_of(_text, or_none=True),
}
_INNER = {"tools": _TOOLS, "effects": _EFFECTS, "land": _LAND, "env": _ENV, "sandbox": _SANDBOX, "delegate": _DELEGATE}


class Source:
    """A file's text, to find lines in."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text

    def wrong(self, problem: str, *keys: str) -> ProfileInvalid:
        """Return the error for what stands at this path of keys, with the line if it can be told."""
        return ProfileInvalid(self.path, problem, line=self._line(keys))

    def _line(self, keys: tuple[str, ...]) -> int | None:
        # Comment lines keep their length, so that positions stay right.
        text = re.sub(r"(?m)^[ \t]*#.*$", lambda found: " " * len(found[0]), self.text)
        start = position = 0
        for key in keys:
            quoted = re.escape(json.dumps(key)[1:-1])
            found = re.compile(rf"(?<![\w-])[\"']?{quoted}[\"']?\s*(?=[=:.\]\"',}}])").search(text, position)
            if found is None:
                return None
            start, position = found.span()
        return text.count("\n", 0, start) + 1 if keys else None


def decode_file(path: Path, content: bytes) -> tuple[Source, dict[str, dict[str, Any]]]:
    """Return the file's profiles as tables by name, the tables not yet decoded.

    Raises ProfileInvalid if the file as a whole is not a profile file.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ProfileInvalid(path, "it is not UTF-8 text. Save it as UTF-8", line=line) from None
    source = Source(path, text)
    if not text.strip():
        raise ProfileInvalid(path, "it is empty; a profile file holds a table 'profiles'")
    table = _parse(source)
    if not isinstance(table, dict):
        raise ProfileInvalid(path, "it must hold an object with the key 'profiles'")
    for key in table:
        if key != "profiles":
            raise source.wrong(f"unknown key {key!r} at the top.{_top_level_hint(key)}", key)
    profiles = table.get("profiles")
    if not isinstance(profiles, dict):
        raise ProfileInvalid(path, "it must hold a table 'profiles' of profiles by name")
    if not profiles:
        raise ProfileInvalid(path, "its table 'profiles' defines no profile")
    for name, profile in profiles.items():
        if not NAME.fullmatch(name):
            raise source.wrong(
                f"{name!r} cannot be a profile's name: use lower-case letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit",
                name,
            )
        if not isinstance(profile, dict):
            raise source.wrong(f"profile {name!r} must be a table", name)
    return source, profiles


def _top_level_hint(key: str) -> str:
    if key in ProfileTable._fields:
        return f" It belongs into a profile: profiles.NAME.{key}"
    near = closest(key, ("profiles",))
    return f" Did you mean {near!r}?" if near else " The only key there is 'profiles'."


def _parse(source: Source) -> Any:
    path, text = source.path, source.text
    try:
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
        if path.suffix == ".toml":
            return tomllib.loads(text)
    except json.JSONDecodeError as error:
        problem = f"it is not JSON: {error.msg} (column {error.colno})"
        raise ProfileInvalid(path, problem, line=error.lineno) from None
    except _DuplicateKey as error:
        raise source.wrong(
            f"the key {error.key!r} stands twice in one object; remove one", error.key
        ) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), ", str(error))
        raise ProfileInvalid(
            path, f"it is not TOML: {error}", line=int(found[1]) if found else None
        ) from None
    except RecursionError:
        raise ProfileInvalid(path, "it is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits, NaN
        raise ProfileInvalid(path, f"it cannot be read: {error}") from None
    raise ProfileInvalid(path, "a profile file's name must end in .toml or .json")


class _DuplicateKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what `json` would silently settle in favour of the last."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise _DuplicateKey(key)
        table[key] = value
    return table


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that means anything here")


def decode_profile(source: Source, name: str, table: dict[str, Any]) -> ProfileTable:
    """Return one profile's table, decoded. Raises ProfileInvalid for unknown keys and wrong types."""
    _refuse_unknown(source, (name,), table, _PROFILE)
    for key, inner in _INNER.items():
        if isinstance(table.get(key), dict):
            _refuse_unknown(source, (name, key), table[key], inner)
    entries = table.get("allowlist")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            _refuse_unknown(source, (name, "allowlist"), entry, _ENTRY)
    try:
        return ProfileTable(**read_keys(_PROFILE, table, ()))
    except WrongShape as wrong:
        where = ".".join(wrong.keys)
        said = f"{where}: {wrong.problem}" if where else wrong.problem
        keys = [key.partition("[")[0] for key in wrong.keys]
        raise source.wrong(f"profile {name!r}: {said}", name, *keys) from None


def _refuse_unknown(source: Source, keys: tuple[str, ...], table: dict[str, Any], known: Shape) -> None:
    for key in table:
        if key in known:
            continue
        section = ".".join(keys[1:])
        inside = f"{section!r} of profile {keys[0]!r}" if section else f"profile {keys[0]!r}"
        raise source.wrong(
            f"unknown key {key!r} in {inside}.{_meant(key, known, top=not section)}", *keys, key
        )


def _meant(key: str, known: Shape, *, top: bool) -> str:
    near = closest(key, known)
    if near is None and top and key.lower() in _ELSEWHERE:
        return f" Did you mean {_ELSEWHERE[key.lower()]!r}?"
    return did_you_mean(key, known)
