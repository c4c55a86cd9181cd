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
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.profiles.errors import ProfileInvalid
from broker.profiles.shapes import (
    Shape,
    WrongShape,
    list_of,
    one_of,
    read_keys,
    table_of,
    tables_by_name,
    texts_by_name,
)
from broker.profiles.suggest import closest, did_you_mean

if TYPE_CHECKING:
    from broker.profiles.places import Places

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
    "agents": "delegate.agents",
    "depth": "delegate.depth",
    "hosts": "network.hosts",
    "gateway": "gateways",
    "breadth": "delegate.breadth",
    "ask": "approvals.ask",
    "approver": "approvals.approver",
    "approval": "approvals",
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
    agents: tuple[str, ...] = ()
    depth: int | None = None
    breadth: int | None = None
    tasks: int | None = None
    cpu_time: int | float | str | None = None
    time: int | float | str | None = None
    memory: int | str | None = None


class ApprovalsTable(NamedTuple):
    """`approvals`: whether the operator is asked, how long a question waits (seconds or "2m"), and who may answer."""

    ask: bool = False
    timeout: int | float | str | None = None
    approver: str = "operator"


class SecretTable(NamedTuple):
    """Where a header's value comes from: exactly one of them, and the form that it is put into."""

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    form: str = "{}"


class GatewayTable(NamedTuple):
    """`gateways.NAME`: one upstream that the task may reach, and what of it."""

    upstream: str
    env: Mapping[str, str] = MappingProxyType({})
    headers: Mapping[str, str | SecretTable] = MappingProxyType({})
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    request_bytes: int | str | None = None
    response_bytes: int | str | None = None
    per_minute: int | None = None


class NetworkTable(NamedTuple):
    """`network`: hosts that the task may reach through the broker's proxy."""

    hosts: tuple[str, ...] = ()


class ProfileTable(NamedTuple):
    """One profile."""

    description: str = ""
    max_risk: str = "safe"
    tools: ToolsTable = ToolsTable()
    allowlist: tuple[str | EntryTable, ...] = ()
    denylist: tuple[str, ...] = ()
    permits: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()
    effects: EffectsTable = EffectsTable()
    land: LandTable = LandTable()
    env: EnvTable = EnvTable()
    sandbox: SandboxTable = SandboxTable()
    delegate: DelegateTable = DelegateTable()
    approvals: ApprovalsTable = ApprovalsTable()
    gateways: Mapping[str, GatewayTable] = MappingProxyType({})
    network: NetworkTable = NetworkTable()
    agent: str = ""
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
    "agents": _texts,
    "depth": one_of(int, None),
    "breadth": one_of(int, None),
    "tasks": one_of(int, None),
    "cpu_time": one_of(int, float, str, None),
    "time": one_of(int, float, str, None),
    "memory": _size,
}
_APPROVALS: Shape = {"ask": one_of(bool), "timeout": one_of(int, float, str, None), "approver": _text}
_SECRET: Shape = {"env": one_of(str, None), "file": one_of(str, None), "command": list_of(_text, or_none=True), "form": _text}
_GATEWAY: Shape = {
    "upstream": _text,
    "env": texts_by_name,
    "headers": tables_by_name(table_of(_SECRET, SecretTable, or_text=True)),
    "methods": list_of(_text, or_none=True),
    "paths": _texts,
    "models": _texts,
    "addresses": _texts,
    "request_bytes": _size,
    "response_bytes": _size,
    "per_minute": one_of(int, None),
}
_NETWORK: Shape = {"hosts": _texts}
_PROFILE: Shape = {
    "description": _text,
    "max_risk": _text,
    "tools": table_of(_TOOLS, ToolsTable),
    "allowlist": list_of(table_of(_ENTRY, EntryTable, needs=("command",), or_text=True)),
    "denylist": _texts,
    "permits": _texts,
    "denies": _texts,
    "effects": table_of(_EFFECTS, EffectsTable),
    "land": table_of(_LAND, LandTable),
    "env": table_of(_ENV, EnvTable),
    "sandbox": table_of(_SANDBOX, SandboxTable),
    "delegate": table_of(_DELEGATE, DelegateTable),
    "approvals": table_of(_APPROVALS, ApprovalsTable),
    "gateways": tables_by_name(table_of(_GATEWAY, GatewayTable, needs=("upstream",))),
    "network": table_of(_NETWORK, NetworkTable),
    "agent": _text,
    "requires": list_of(_text, or_none=True),
}
_INNER = {
    "tools": _TOOLS, "effects": _EFFECTS, "land": _LAND, "env": _ENV, "sandbox": _SANDBOX, "delegate": _DELEGATE,
    "network": _NETWORK, "approvals": _APPROVALS,
}  # fmt: skip


class Source:
    """A file's text, to find lines and columns in."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self._places: Places | None = None

    @property
    def places(self) -> Places:
        """Where everything stands. Made when it is first wanted: a file without mistakes needs none."""
        if self._places is None:
            from broker.profiles.places import Places

            self._places = Places(self.text, self.path.suffix)
        return self._places

    def wrong(self, problem: str, *keys: str | int) -> ProfileInvalid:
        """Return the error for what stands at this path of keys below `profiles`, or at the top."""
        line, column = self.position(*keys)
        return ProfileInvalid(self.path, problem, line=line, column=column)

    def position(self, *keys: str | int) -> tuple[int | None, int | None]:
        """Return line and column of what stands at this path of keys, or near it."""
        places = self.places
        found = places.nearest(("profiles", *keys)) if keys and ("profiles", keys[0]) in places else None
        found = found or (places.nearest(keys) if keys else None)
        return (None, None) if found is None else places.position(found.key)


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
        raise ProfileInvalid(path, problem, line=error.lineno, column=error.colno) from None
    except _DuplicateKey as error:
        last = source.places.ending_in(error.key)
        line, column = source.places.position(last.key) if last else (None, None)
        problem = f"the key {error.key!r} stands twice in one object; remove one"
        raise ProfileInvalid(path, problem, line=line, column=column) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(found[1]), int(found[2])) if found else (None, None)
        raise ProfileInvalid(path, f"it is not TOML: {error}", line=line, column=column) from None
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
    for at, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            _refuse_unknown(source, (name, "allowlist", at), entry, _ENTRY)
    gateways = table.get("gateways")
    for gateway, inside in gateways.items() if isinstance(gateways, dict) else ():
        if isinstance(inside, dict):
            _refuse_unknown(source, (name, "gateways", gateway), inside, _GATEWAY)
            headers = inside.get("headers")
            for header, secret in headers.items() if isinstance(headers, dict) else ():
                if isinstance(secret, dict):
                    _refuse_unknown(source, (name, "gateways", gateway, "headers", header), secret, _SECRET)
    try:
        return ProfileTable(**read_keys(_PROFILE, table, ()))
    except WrongShape as wrong:
        where = ".".join(wrong.keys)
        said = f"{where}: {wrong.problem}" if where else wrong.problem
        raise source.wrong(f"profile {name!r}: {said}", name, *_steps(wrong.keys)) from None


def _steps(keys: tuple[str, ...]) -> list[str | int]:
    """Turn `allowlist[2]` into two steps."""
    steps: list[str | int] = []
    for key in keys:
        found = re.fullmatch(r"(.+)\[(\d+)\]", key)
        steps += [found[1], int(found[2])] if found else [key]
    return steps


def _refuse_unknown(source: Source, keys: tuple[str | int, ...], table: dict[str, Any], known: Shape) -> None:
    for key in table:
        if key in known:
            continue
        section = ".".join(str(each) for each in keys[1:] if isinstance(each, str))
        inside = f"{section!r} of profile {keys[0]!r}" if section else f"profile {keys[0]!r}"
        raise source.wrong(
            f"unknown key {key!r} in {inside}.{_meant(key, known, top=not section)}", *keys, key
        )


def _meant(key: str, known: Shape, *, top: bool) -> str:
    near = closest(key, known)
    if near is None and top and key.lower() in _ELSEWHERE:
        return f" Did you mean {_ELSEWHERE[key.lower()]!r}?"
    return did_you_mean(key, known)
