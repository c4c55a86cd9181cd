"""zsh: what bash does not have."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = [pytest.mark.toolchain("compat", "zsh"), pytest.mark.compat]


def test_syntax(both: SideBySide) -> None:
    ran = both.same(["zsh", "zsh.zsh"], project="shells", normal=_without_temporary_names)
    assert ran.exit_code == 12


def _without_temporary_names(text: str) -> str:
    import re

    return re.sub(r"/\S*/zsh\w+", "FILE", text)
