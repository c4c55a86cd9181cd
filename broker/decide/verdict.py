"""Step 3's answers: Allow, Ask and Deny. They are values; a Deny carries all that its reader needs."""

from __future__ import annotations

from enum import StrEnum

from broker.classify.risk import Risk
from broker.values import dataclass


class Layer(StrEnum):
    """Who decided."""

    OPERATOR = "operator"  # the command after `--`: the operator's own choice
    CLASSIFIER = "classifier"  # blocked, always
    PROFILE = "profile"  # the ceiling, the effects, a disabled tool
    ALLOWLIST = "allowlist"
    DENYLIST = "denylist"
    GRANT = "grant"
    APPROVAL = "approval"
    KERNEL = "kernel"
    LANDING = "landing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The scope opened by an allowlisted invocation: what the processes below it may do.

    `unrecognised` says that programs which nobody knows may start in it: they are no more than the code
    that the operator agreed to. It is false where an ancestor task would not let them.
    """

    entry: str
    effects: frozenset[Risk]
    unrecognised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """Go on. `grant` is the scope the started process opens, or None to stay in the caller's scope."""

    layer: Layer
    rule: str
    effects: frozenset[Risk]
    grant: Grant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An approval could change this."""

    effects: frozenset[Risk]
    reason: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """No. `what` is the tried thing in words, `reason` one sentence, `hint` what to do instead."""

    what: str
    effects: frozenset[Risk]
    layer: Layer
    rule: str
    reason: str
    hint: str
    approvable: bool = False

    @property
    def risk(self) -> Risk:
        """The worst class that was refused."""
        return max(self.effects, default=Risk.UNKNOWN)


Verdict = Allow | Ask | Deny
