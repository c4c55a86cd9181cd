"""The classifier's answer: classes of risk, each with its reasons. Values only."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from broker.values import dataclass


class Risk(IntEnum):
    """One class of risk. The order serves `max_risk` and display; decisions look at the set."""

    SAFE = 0
    LOCAL_WRITE = 1
    CODE_EXECUTION = 2
    INSTALL = 3
    NETWORK_EGRESS = 4
    SYSTEM_WRITE = 5
    PERSISTENCE = 6
    DESTRUCTIVE = 7
    UNKNOWN = 8
    BLOCKED = 9

    @property
    def label(self) -> str:
        """The name people read and write: `local_write`, `network_egress` …"""
        return _LABELS[self]

    @classmethod
    def parse(cls, label: str) -> Risk:
        """Return the class with this label. Raises KeyError for any other text."""
        if label != label.lower():
            raise KeyError(label)
        return cls[label.upper()]


_LABELS = tuple(name.lower() for name in Risk.__members__)


class PartKind(StrEnum):
    """Which piece of the operation a part is."""

    COMMAND = "command"
    REDIRECT = "redirect"
    ASSIGNMENT = "assignment"
    FILE = "file"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a part has a class: a rule's id, and one sentence. `span` is (start, end) in characters."""

    rule: str
    risk: Risk
    text: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of an operation that is judged on its own.

    `argv` holds a command's words. `static` says that every word is known and that no assignment stands
    in front: only then can an allowlist entry match. `within` is the index of the part that this one is
    wrapped in (`timeout 5 make`: part 1 `make` lies within part 0), or None.
    """

    kind: PartKind
    argv: tuple[str, ...] = ()
    static: bool = False
    effects: frozenset[Risk]
    reasons: tuple[Reason, ...]
    span: tuple[int, int] | None = None
    within: int | None = None

    @property
    def risk(self) -> Risk:
        """The worst class of this part."""
        return max(self.effects, default=Risk.SAFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What the classifier says of one operation: the union of its parts' effects, with reasons.

    `classifier` is the version of the rules, `tables` the digest of the data they read: the same
    operation, context, version and digest give the same assessment, for ever.
    """

    parts: tuple[Part, ...]
    classifier: str
    tables: str

    @property
    def effects(self) -> frozenset[Risk]:
        """Every class that any part has."""
        if len(self.parts) == 1:  # a program start, nearly always
            return self.parts[0].effects
        return frozenset().union(*(part.effects for part in self.parts))

    @property
    def risk(self) -> Risk:
        """The worst class."""
        return max(self.effects, default=Risk.SAFE)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All reasons, in the order of the parts."""
        return tuple(reason for part in self.parts for reason in part.reasons)
