"""Step 2: what the tables say of a program. In goes a name; out comes its Entry, parsed once.

The language of options and operands is described at the top of tables/coreutils.toml.
"""

from __future__ import annotations

import re
from dataclasses import field
from functools import cache
from typing import Any, NamedTuple

from broker.classify.risk import Risk
from broker.classify.tables import program_table
from broker.values import dataclass


class Option(NamedTuple):
    """One option: whether it takes a value (`=`, or `?`: only attached), what the value is, what it does."""

    name: str
    takes: str  # "", "=", "?"
    role: str
    effects: tuple[Risk, ...]
    marks: frozenset[str]
    operands: str  # replaces the entry's operand pattern when this option is given


@dataclass(slots=True)
class Entry:
    """A program, or one of its sub-commands."""

    name: str
    effects: tuple[Risk, ...]
    why: str
    options: dict[str, Option]
    numbers: bool  # -5 is fine, as in `head -5`
    prefix: tuple[str, ...]
    repeated: str
    suffix: tuple[str, ...]
    style: str
    loose: bool
    reader: str
    commands: dict[str, tuple[Risk, ...]]
    sub: dict[str, Any]
    subs: dict[str, Entry] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def stops_at_operand(self) -> bool:
        """Whether option parsing ends at the first operand, because a command follows."""
        return (
            self.style == "posix"
            or "command" in self.prefix
            or self.repeated == "command"
            or bool(self.commands or self.sub)
        )


_OPTION = re.compile(r"((?:-\?|[^=?!>])+)(?:([=?])([a-z_]*))?((?:![a-z_]+)*)(?:>(\S*))?")
_NOT_WORSE = {Risk.CODE_EXECUTION, Risk.NETWORK_EGRESS, Risk.INSTALL, Risk.SYSTEM_WRITE, Risk.DESTRUCTIVE}


_SPECIAL = frozenset("=?!>")
_TAIL = _SPECIAL - {"="}
_NO_MARKS: frozenset[str] = frozenset()


def _risks(text: str) -> tuple[Risk, ...]:
    return tuple(Risk.parse(label) for label in text.split())


def parse_options(text: str) -> dict[str, Option]:
    """Read the little language of the tables: `-o,--output=write`, `-i?!local_write`, `-e=>read...`."""
    options: dict[str, Option] = {}
    for token in text.split():
        if _SPECIAL.isdisjoint(token):  # most are names and no more
            for name in token.split(","):
                options[name] = Option(name, "", "", (), _NO_MARKS, "")
            continue
        if _TAIL.isdisjoint(token):  # and most others take a value and no more
            names, _, role = token.partition("=")
            if not role or role.isidentifier():
                for name in names.split(","):
                    options[name] = Option(name, "=", role, (), _NO_MARKS, "")
                continue
        match = _OPTION.fullmatch(token)
        if match is None:
            raise ValueError(f"cannot read the option {token!r}")
        names, takes, role, tail, operands = match.groups()
        risks: tuple[Risk, ...] = ()
        others = _NO_MARKS
        if tail:
            marks = tail[1:].split("!")
            risks = tuple([Risk[mark.upper()] for mark in marks if mark.upper() in Risk.__members__])
            others = frozenset([mark for mark in marks if mark.upper() not in Risk.__members__])
        for name in names.split(","):
            options[name] = Option(
                name, takes or "", role or "", risks, others, (operands or "").replace(",", " ")
            )
    return options


def operand_roles(text: str) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """`text read... write` → what comes first, what repeats, what comes last."""
    prefix: list[str] = []
    suffix: list[str] = []
    repeated = ""
    for role in text.split():
        if role.endswith("..."):
            repeated = role[:-3]
        elif repeated:
            suffix.append(role)
        else:
            prefix.append(role)
    return tuple(prefix), repeated, tuple(suffix)


def _undescribed(raw: dict[str, Any], effects: tuple[Risk, ...]) -> str:
    """What operands are of which an entry says nothing: files, for a program that writes files."""
    if effects == (Risk.LOCAL_WRITE,):
        return "either..."
    return "read..." if raw.get("loose") and effects == (Risk.SAFE,) else "text..."


def parse_entry(name: str, raw: dict[str, Any]) -> Entry:
    """Turn a table's entry into what the judge reads."""
    effects = _risks(raw.get("effects", "safe"))
    prefix, repeated, suffix = operand_roles(raw.get("operands") or _undescribed(raw, effects))
    commands: dict[str, tuple[Risk, ...]] = {}
    for labels, names in raw.get("commands", {}).items():
        risks = _risks(labels)
        for one in names.split():
            commands[one.replace("~", " ")] = risks
    options = parse_options(raw.get("options", ""))
    numbers = options.pop("-NUM", None) is not None
    return Entry(
        name=name,
        effects=effects,
        why=raw.get("why", ""),
        options=options,
        numbers=numbers,
        prefix=prefix,
        repeated=repeated,
        suffix=suffix,
        style=raw.get("style", "gnu"),
        loose=raw.get("loose", "options" not in raw or bool(_NOT_WORSE & set(effects))),
        reader=raw.get("reader", ""),
        commands=commands,
        sub=raw.get("sub", {}),
        raw=raw,
    )


@cache
def entry_of(name: str) -> Entry | None:
    """The entry of a program, parsed once."""
    raw = program_table(name)
    if raw is None:
        return None
    if "same" in raw:
        base = entry_of(raw["same"])
        if base is None or len(raw) == 1:
            return base
        return parse_entry(name, {**base.raw, **{key: value for key, value in raw.items() if key != "same"}})
    return parse_entry(name, raw)


def sub_entry(entry: Entry, name: str) -> Entry | None:
    """The entry of a sub-command that has one of its own."""
    if name in entry.subs:
        return entry.subs[name]
    raw = entry.sub.get(name)
    if raw is None:
        return None
    if "same" in raw:
        base = entry.sub[raw["same"]]
        raw = {**base, **{key: value for key, value in raw.items() if key != "same"}}
    parsed = parse_entry(f"{entry.name} {name}", raw)
    entry.subs[name] = parsed
    return parsed
