"""A profile being made of another tool's permissions, and the account of what became of each of them.

INVARIANT: a draft never permits what its source does not, beyond what is merely safe, which every profile permits
(tests/profiles/test_importers.py). An exact command is carried over; a prefix or a pattern is not, because an entry is exact; a
denial that cannot be said is said too widely, or lowers the ceiling.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from typing import Any

from broker.classify.risk import Risk
from broker.decide.profile import up_to
from broker.decide.wording import shorten
from broker.profiles.command_line import CommandLineError, parse_command_line
from broker.profiles.judge import judge
from broker.profiles.proposal import entry_text
from broker.profiles.write import comment, literal
from broker.values import dataclass

PREFIX = "a prefix or a pattern: entries are exact. List the commands that are meant (broker profile suggest finds them in a run)"


class Fate(StrEnum):
    """What became of a permission."""

    IMPORTED = "imported"
    NARROWED = "narrowed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the account."""

    fate: Fate
    what: str
    why: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return it as plain data."""
        return {"fate": self.fate.value, "what": self.what, "why": self.why}


@dataclass(slots=True)
class Draft:
    """The profile so far. `ceiling` only ever goes up by `raise_to` and down by `lower_to`; the lowest word counts."""

    name: str
    description: str
    ceiling: Risk = Risk.SAFE
    most: Risk = Risk.DESTRUCTIVE
    entries: dict[tuple[str, ...], None] = field(default_factory=dict)
    denied: dict[tuple[str, ...], None] = field(default_factory=dict)
    removed: set[Risk] = field(default_factory=set)
    disabled: dict[str, None] = field(default_factory=dict)
    passed: dict[str, None] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    sandbox: dict[str, Any] = field(default_factory=dict)
    denies: dict[str, None] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def imported(self, what: str, why: str = "") -> None:
        """Account for what is carried over as it was."""
        self._row(Fate.IMPORTED, what, why)

    def narrowed(self, what: str, why: str) -> None:
        """Account for what is carried over in part."""
        self._row(Fate.NARROWED, what, why)

    def dropped(self, what: str, why: str) -> None:
        """Account for what is not carried over."""
        self._row(Fate.DROPPED, what, why)

    def _row(self, fate: Fate, what: str, why: str) -> None:
        row = Row(fate=fate, what=shorten(what, 160), why=why)
        if row not in self.rows:
            self.rows.append(row)

    def raise_to(self, risk: Risk) -> None:
        """Permit the classes up to this one, as far as nothing lowered it."""
        self.ceiling = max(self.ceiling, risk)

    def lower_to(self, risk: Risk) -> None:
        """Never permit more than this, whatever else is said."""
        self.most = min(self.most, risk)

    @property
    def max_risk(self) -> Risk:
        """The ceiling that counts."""
        return min(self.ceiling, self.most)

    def list_exact(self, command: str, what: str) -> bool:
        """Put one exact command on the allowlist, or account for why it cannot be."""
        try:
            argv = parse_command_line(command)
        except CommandLineError as error:
            self.dropped(what, f"{error}")
            return False
        if "/" in argv[0] and not argv[0].startswith("/"):
            self.dropped(what, f"{argv[0]} lies in the workspace, where the task can rewrite it: such an entry never matches")
            return False
        if Risk.BLOCKED in judge(argv, _plain()).assessment.effects:
            self.dropped(what, "it is blocked, which nothing permits")
            return False
        self.entries.setdefault(argv)
        self.imported(what, "an exact entry")
        return True

    def deny_beginning(self, words: Iterable[str], what: str, *, exactly: bool) -> None:
        """Put the beginning of a command on the denylist. `exactly`: it denies no more than the source did."""
        argv = tuple(words)
        self.denied.setdefault(argv)
        shown = f"denylist `{entry_text(argv)}`"
        if exactly:
            self.imported(what, shown)
        else:
            self.narrowed(what, f"{shown}, which denies more: every command that starts so")

    def as_table(self) -> dict[str, Any]:
        """Return the profile as a file would hold it."""
        table: dict[str, Any] = {"description": self.description, "max_risk": self.max_risk.label}
        removed = sorted(self.removed & up_to(self.max_risk) - {Risk.SAFE})
        sections: dict[str, Any] = {
            "effects": {"remove": [risk.label for risk in removed]} if removed else {},
            "tools": {"disabled": list(self.disabled)} if self.disabled else {},
            "allowlist": [entry_text(argv) for argv in self.entries],
            "denylist": [entry_text(argv) for argv in self.denied],
            "denies": list(self.denies),
            "env": ({"pass": list(self.passed)} if self.passed else {}) | ({"set": self.env} if self.env else {}),
            "sandbox": self.sandbox,
        }
        table |= {key: value for key, value in sections.items() if value}
        return table

    def as_toml(self, origin: str) -> str:
        """Return the profile's part of a file, with the account as comments."""
        table = self.as_table()
        key = self.name if "." not in self.name else literal(self.name)
        lines = [f"# Imported from {origin}. It permits what was exact there, and nothing that was not permitted."]
        for row in self.rows:
            if row.fate is not Fate.IMPORTED:
                lines.append(f"#   {row.fate.value}: {comment(row.what)}{': ' if row.why else ''}{comment(row.why)}")
        lines += ["", f"[profiles.{key}]"]
        for name in ("description", "max_risk"):
            lines.append(f"{name} = {literal(table[name])}")
        for name in ("allowlist", "denylist", "denies"):
            if name in table:
                lines += [f"{name} = [", *(f"    {literal(each)}," for each in table[name]), "]"]
        for name in ("effects", "tools", "env", "sandbox"):
            if name in table:
                lines += ["", f"[profiles.{key}.{name}]"]
                lines += [f"{inner} = {_value(value)}" for inner, value in table[name].items()]
        return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    match value:
        case str():
            return literal(value)
        case dict():
            return "{ " + ", ".join(f"{literal(key)} = {_value(each)}" for key, each in value.items()) + " }"
        case list():
            return "[" + ", ".join(_value(each) for each in value) + "]"
        case _:
            return json.dumps(value)


def _plain() -> Any:
    from broker.decide.profile import Profile

    return Profile(name="plain")
