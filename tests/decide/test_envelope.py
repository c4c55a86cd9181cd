"""What a level permits by itself, and what a chain of levels does."""

from __future__ import annotations

from broker.classify.risk import Risk
from broker.decide import AllowEntry, Envelope, Profile, SandboxSettings, Trust
from broker.decide.envelope import GRANTED
from broker.decide.profile import up_to

WIDE = Profile(name="wide", max_risk=Risk.INSTALL, effects=frozenset(Risk))
NARROW = Profile(
    name="narrow",
    effects=up_to(Risk.CODE_EXECUTION),
    disabled_tools=frozenset({"shell"}),
    sandbox=SandboxSettings(workspace="read-only"),
)


def test_no_level_permits_blocked_even_if_its_profile_says_so() -> None:
    assert Envelope(profile=WIDE, trust=Trust.TRUSTED).own_effects == frozenset(Risk) - {Risk.BLOCKED}


def test_an_untrusted_level_permits_local_write_at_most() -> None:
    assert Envelope(profile=WIDE, trust=Trust.UNTRUSTED).own_effects == up_to(Risk.LOCAL_WRITE)


def test_trust_once_lost_is_not_regained() -> None:
    child = Envelope(profile=WIDE, trust=Trust.UNTRUSTED).narrow(WIDE, Trust.TRUSTED)
    assert child.effective_trust is Trust.UNTRUSTED
    assert child.own_effects == up_to(Risk.LOCAL_WRITE)
    assert child.grant_effects(AllowEntry(argv=("x",), effects=frozenset({Risk.INSTALL}))) == GRANTED


def test_a_chain_permits_what_each_level_permits_and_takes_away_what_any_takes_away() -> None:
    root = Envelope(profile=NARROW, trust=Trust.TRUSTED)
    child = root.narrow(WIDE, Trust.TRUSTED)
    assert child.effects == root.effects == up_to(Risk.CODE_EXECUTION)
    assert child.disabled_tools == {"shell"}
    assert child.read_only_workspace
    assert [level.profile.name for level in child.levels()] == ["wide", "narrow"]
