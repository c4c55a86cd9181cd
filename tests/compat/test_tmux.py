"""tmux: a server, terminals, a socket."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = [pytest.mark.toolchain("compat", "tmux"), pytest.mark.compat]


def test_a_session(both: SideBySide) -> None:
    ran = both.same(["bash", "session.sh"], project="tmux")
    assert "typed 42" in ran.stdout
