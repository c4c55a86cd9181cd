"""Step 3: the one doubt that a grant puts up with: a program that nobody has described is merely code."""

from __future__ import annotations

from broker.classify.risk import Part, Risk

UNRECOGNISED = "program.unrecognised"


def merely_unrecognised(part: Part) -> bool:
    """Tell whether the only doubt about a part is that nobody has described its program."""
    return {reason.rule for reason in part.reasons if reason.risk is Risk.UNKNOWN} == {UNRECOGNISED}
