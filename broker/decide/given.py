"""Step 3: what was known of one question besides the operation, the context and the envelope. A value, recorded with the verdict."""

from __future__ import annotations

from broker.decide.verdict import Grant
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was known of one question besides the operation, the context and the envelope.

    `gate`: what a shell starts will be asked about again, one by one (deferral.py), and what is written to a file whose content
    decides is looked at when it lands. `scope`: the grant that the asking process lives in. `sha256`: of the program's file, where
    an entry pins one. `layered`: the change goes to a copy-on-write layer. `real`: what is deleted is there in the real workspace.
    `interactive`: somebody is there to be asked. `cwd`: where it was asked, if neither the operation nor the context says so. `agent`: the agent's own process asks.
    """

    gate: bool = False
    scope: Grant | None = None
    sha256: str = ""
    layered: bool = False
    real: bool = False
    interactive: bool = False
    cwd: str = ""
    agent: bool = False


NOTHING = Given()
