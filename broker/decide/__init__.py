"""Step 3: Assessment + Envelope -> Verdict. Pure: no files, no clock, no processes.

Names are loaded on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from broker.decide.allowlist import needs_digest
    from broker.decide.envelope import Envelope
    from broker.decide.profile import AllowEntry, Environment, Profile, SandboxSettings
    from broker.decide.trust import Trust

_HOMES = {
    "AllowEntry": "profile",
    "Envelope": "envelope",
    "Environment": "profile",
    "Profile": "profile",
    "SandboxSettings": "profile",
    "Trust": "trust",
    "needs_digest": "allowlist",
}

__all__ = [
    "AllowEntry",
    "Envelope",
    "Environment",
    "Profile",
    "SandboxSettings",
    "Trust",
    "needs_digest",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
