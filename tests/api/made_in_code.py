"""A profile that is made in code, for the tests of the Python interface."""

from __future__ import annotations

from typing import Any

from broker import Profile, define_profile

LAYERS = ["network", "seccomp", "landlock", "exec_gate", "file_labels"]


def a_profile(name: str = "any", **keys: Any) -> Profile:
    """Permit everything that a test wants to do, so that policy does not stand in the way, and what is said here."""
    sandbox = {"image": "python", **keys.pop("sandbox", {})}
    return define_profile(
        name, **{"max_risk": "code_execution", "effects": {"add": ["unknown"]}, "requires": LAYERS, "sandbox": sandbox, **keys}
    )
