"""What is noticed about a profile: how serious, where, what, and what to do."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from broker.values import dataclass


class Severity(IntEnum):
    """How much it matters. The order is the order of a report."""

    NOTE = 0  # true, and perhaps meant
    WARNING = 1  # probably not meant
    ERROR = 2  # the profile cannot be used

    @property
    def label(self) -> str:
        """The word people read."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark. `rule` is its id, `keys` lead to its place below the profile."""

    severity: Severity
    rule: str
    text: str
    remedy: str
    keys: tuple[str | int, ...] = ()
    line: int | None = None
    column: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "severity": self.severity.label,
            "rule": self.rule,
            "text": self.text,
            "remedy": self.remedy,
            "keys": list(self.keys),
            "line": self.line,
            "column": self.column,
        }


def note(rule: str, text: str, remedy: str, *keys: str | int) -> Finding:
    """Return a remark on something that is perhaps meant."""
    return Finding(severity=Severity.NOTE, rule=rule, text=text, remedy=remedy, keys=keys)


def warning(rule: str, text: str, remedy: str, *keys: str | int) -> Finding:
    """Return a remark on something that is probably not meant."""
    return Finding(severity=Severity.WARNING, rule=rule, text=text, remedy=remedy, keys=keys)
