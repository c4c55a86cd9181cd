"""git: a day's work, worktrees, submodules."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = pytest.mark.toolchain("base", "git")


def test_a_day_with_git(both: SideBySide) -> None:
    # Cloning from a folder is labelled as egress too: what a path is for git is decided by git's settings.
    both.effects = (*both.effects, "network_egress")
    ran = both.same(["bash", "everyday.sh"], project="git")
    assert "hook ran" in ran.stderr + ran.stdout
