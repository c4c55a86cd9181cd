"""Step 3: what a task may do, as the conjunction of its own profile, its trust, and its parent's envelope.

In: profiles and trust. Out: sets of classes. There is no rule but conjunction, so no chain of delegation
can widen anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.classify.risk import Risk
from broker.decide.profile import AllowEntry, Profile, up_to
from broker.decide.trust import Trust
from broker.values import dataclass

# What the processes below any allowlisted invocation may have: they are the code the operator agreed to.
GRANTED = frozenset({Risk.SAFE, Risk.LOCAL_WRITE, Risk.CODE_EXECUTION})

# What no grant covers, whatever its entry says: these outlive the invocation, or nobody knows what they are.
NEVER_GRANTED = frozenset({Risk.PERSISTENCE, Risk.UNKNOWN, Risk.BLOCKED})

_UNTRUSTED_CEILING = up_to(Risk.LOCAL_WRITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a task may do: its profile, its trust, and everything its ancestors may do.

    INVARIANT: a child permits nothing that its parent does not (tests/property/test_narrowing.py).
    """

    profile: Profile
    trust: Trust
    parent: Envelope | None = None

    def levels(self) -> Iterator[Envelope]:
        """Yield this envelope and its ancestors, own first."""
        level: Envelope | None = self
        while level is not None:
            yield level
            level = level.parent

    def narrow(self, profile: Profile, trust: Trust) -> Envelope:
        """Return the envelope of a child of this task."""
        return Envelope(profile=profile, trust=trust, parent=self)

    @property
    def effective_trust(self) -> Trust:
        """The least trust from here up to the root."""
        return min(level.trust for level in self.levels())

    @property
    def own_effects(self) -> frozenset[Risk]:
        """The classes that this level's profile permits, blocked never; an untrusted task's are clamped."""
        permitted = self.profile.effects - {Risk.BLOCKED}
        if self.effective_trust is Trust.UNTRUSTED:
            return permitted & _UNTRUSTED_CEILING
        return permitted

    @property
    def effects(self) -> frozenset[Risk]:
        """The classes that every level permits."""
        return frozenset.intersection(*(level.own_effects for level in self.levels()))

    @property
    def lands(self) -> frozenset[str]:
        """The rules of persistence that this level lets land: the operator named what may be planted, and where.

        Only where each change is judged again before it is real, and never for an untrusted task.
        """
        if self.profile.sandbox.workspace != "overlay" or self.effective_trust is Trust.UNTRUSTED:
            return frozenset()
        return self.profile.lands

    def grant_effects(self, entry: AllowEntry) -> frozenset[Risk]:
        """Return what this level lets the processes below `entry` have.

        An untrusted task may run what the operator listed, but gets none of the entry's extra effects.
        """
        if self.effective_trust is Trust.UNTRUSTED:
            return GRANTED
        return GRANTED | (entry.effects - NEVER_GRANTED)

    @property
    def disabled_tools(self) -> frozenset[str]:
        """Every tool that some level has disabled."""
        return frozenset().union(*(level.profile.disabled_tools for level in self.levels()))

    @property
    def read_only_workspace(self) -> bool:
        """Whether some level shows the workspace read-only."""
        return any(level.profile.sandbox.workspace == "read-only" for level in self.levels())
