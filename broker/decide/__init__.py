"""Step 3: Assessment + Envelope -> Verdict. Pure: no files, no clock, no processes."""

from broker.decide.allowlist import needs_digest
from broker.decide.decide import decide
from broker.decide.envelope import Envelope
from broker.decide.profile import AllowEntry, Environment, Profile, SandboxSettings
from broker.decide.trust import Trust

__all__ = [
    "AllowEntry",
    "Envelope",
    "Environment",
    "Profile",
    "SandboxSettings",
    "Trust",
    "decide",
    "needs_digest",
]
