"""An agent's adapter: a small file that says how the agent is started in a task, and what it is known to do by itself.

In: a name. Out: an Adapter, or a sentence what is wrong. The operator's own come before ours:
/etc/broker/agents, ~/.config/broker/agents, then those that come with the broker; a name in an earlier folder hides the same
name in a later one. A file is read like a profile: only if nobody but the operator could have written it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from broker.classify.risk import Risk
from broker.decide.agent import Helper
from broker.decide.wrapper import Shape, shape_problem
from broker.errors import ProfileError
from broker.profiles.load import user_folder
from broker.profiles.schema import NAME
from broker.profiles.secure_open import Rules, read_operator_file
from broker.profiles.suggest import did_you_mean
from broker.values import dataclass

SHIPPED = Path(__file__).resolve().parent / "shipped"
SYSTEM = Path("/etc/broker/agents")


class AdapterError(ProfileError):
    """An adapter cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Where the agent's model is by default. `gateway` is the name that a profile gives its own; `headers` name variables.

    `env` are variables that the agent gets, with {url}; `key` is the operator's variable that holds the credential.
    """

    gateway: str
    upstream: str
    header: str
    key: str
    form: str = "{}"
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An agent as its file describes it. In texts, {url} is where the gateway listens inside.

    `arguments` come in front of the operator's, `env` into the environment, `files` to /run/broker. `unattended` is how it is
    given a task without anybody there ({prompt}). `seed` are files that a kept home begins with. The rest is as in broker.decide.agent.Agent; helpers' programs are names.
    """

    name: str
    title: str
    program: str
    install: str
    learnt: str
    arguments: tuple[str, ...] = ()
    unattended: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model: Model | None = None
    helpers: tuple[Helper, ...] = ()
    state: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    wrappers: tuple[Shape, ...] = ()
    sets: tuple[tuple[str, str], ...] = ()
    session: tuple[str, ...] = ()
    seed: Mapping[str, str] = field(default_factory=dict)


def folders() -> tuple[Path, ...]:
    """Return where adapters are searched."""
    return (SYSTEM, user_folder().parent / "agents", SHIPPED)


def known_agents() -> tuple[str, ...]:
    """Return the names of all adapters, sorted."""
    return tuple(sorted({path.stem for folder in folders() if folder.is_dir() for path in folder.glob("*.toml")}))


def load_adapter(name: str, workspace: Path | None = None) -> Adapter:
    """Return the adapter of this name. Raises ProfileError; AdapterError for what the file says."""
    if NAME.fullmatch(name):
        for folder in folders():
            path = folder / f"{name}.toml"
            if path.exists():
                shipped = folder == SHIPPED
                text, _ = read_operator_file(path, Rules(workspace=None if shipped else workspace, others_may_write=shipped))
                return _read(path, name, text)
    raise AdapterError(f"no agent is called {name!r}.{did_you_mean(name, known_agents())} docs/agents.md says how to add one")


_KEYS = {
    "title": str, "program": str, "install": str, "learnt": str, "arguments": list, "unattended": list, "env": dict,
    "files": dict, "model": dict, "helpers": list, "state": list, "settings": list, "wrappers": list, "sets": dict, "session": list,
    "seed": dict,
}  # fmt: skip
_NEEDED = ("title", "program", "install")
_MODEL = ("gateway", "upstream", "header", "key", "form", "paths")


def _read(path: Path, name: str, content: bytes) -> Adapter:
    try:
        table = tomllib.loads(content.decode())
    except ValueError as error:
        raise AdapterError(f"{path} is no TOML: {error}") from None
    for key, value in table.items():
        if key not in _KEYS:
            raise AdapterError(f"{path}: unknown key {key!r}.{did_you_mean(key, tuple(_KEYS))}")
        if not isinstance(value, _KEYS[key]):
            raise AdapterError(f"{path}: {key} must be {_WORDS[_KEYS[key]]}")
    for key in _NEEDED:
        if not table.get(key):
            raise AdapterError(f"{path}: {key} is missing")
    try:
        return Adapter(
            name=name, title=table["title"], program=table["program"], install=table["install"], learnt=table.get("learnt", ""),
            arguments=_texts(table, "arguments"), unattended=_texts(table, "unattended"), env=_pairs(table, "env"),
            files=_pairs(table, "files"), model=_model(table.get("model")), helpers=tuple(map(_helper, table.get("helpers", ()))),
            state=_texts(table, "state"), settings=_texts(table, "settings"), wrappers=tuple(map(_shape, table.get("wrappers", ()))),
            sets=tuple(_pairs(table, "sets").items()), session=_session(table), seed=_pairs(table, "seed"),
        )  # fmt: skip
    except ValueError as error:
        raise AdapterError(f"{path}: {error}") from None


_WORDS = {str: "a text", list: "a list", dict: "a table"}


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = table.get(key, ())
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} must be a list of texts")
    return tuple(values)


def _session(table: Mapping[str, Any]) -> tuple[str, ...]:
    paths = _texts(table, "session")
    for path in paths:
        if path.startswith("/") or ".." in path.split("/") or not path.strip("*/."):
            raise ValueError(f"session is of paths below the workspace, and {path!r} is none. Write it as in .name/ or .name*")
    return paths


def _pairs(table: Mapping[str, Any], key: str) -> Mapping[str, str]:
    values = table.get(key, {})
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError(f"the values of {key} must be texts")
    return MappingProxyType(dict(values))


def _model(table: Mapping[str, Any] | None) -> Model | None:
    if table is None:
        return None
    for key in table:
        if key not in _MODEL:
            raise ValueError(f"unknown key model.{key}.{did_you_mean(key, _MODEL)}")
    missing = [key for key in _MODEL[:4] if not isinstance(table.get(key), str)]
    if missing:
        raise ValueError(f"model.{missing[0]} is missing, or no text")
    return Model(
        gateway=table["gateway"], upstream=table["upstream"], header=table["header"], key=table["key"],
        form=str(table.get("form", "{}")), paths=_texts(table, "paths"),
    )  # fmt: skip


def _helper(table: object) -> Helper:
    if not isinstance(table, dict) or table.keys() != {"program", "effects"} or not isinstance(table["program"], str):
        raise ValueError('a helper is {program = "git", effects = ["code_execution"]}')
    try:
        return Helper(program=table["program"], effects=frozenset(map(Risk.parse, _texts(table, "effects"))))
    except KeyError as error:
        raise ValueError(f"helper {table['program']}: there is no class {error.args[0].lower()!r}") from None


def _shape(shape: object) -> Shape:
    if not isinstance(shape, list) or not all(isinstance(word, str) for word in shape):
        raise ValueError("a wrapper is a list of texts: its argv, with holes")
    found = tuple(shape)
    if problem := shape_problem(found):
        raise ValueError(f"a wrapper is wrong: {problem}")
    return found
