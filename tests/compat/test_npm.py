"""npm: scripts of a package, with what runs before and after."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = [pytest.mark.toolchain("compat", "npm", "node"), pytest.mark.compat]


@pytest.fixture(autouse=True)
def no_notices(both: SideBySide) -> None:
    """Keep npm from asking the network, outside, for a newer npm."""
    both.environment = {"npm_config_update_notifier": "false"}


def test_scripts_with_pre_and_post(both: SideBySide) -> None:
    ran = both.same(["npm", "run", "build"], project="node")
    assert "BUILT\n" in ran.stdout
    assert "after the build" in ran.stdout


def test_a_script_that_fails(both: SideBySide) -> None:
    ran = both.same(["npm", "run", "--silent", "fails"], project="node")
    assert ran.exit_code == 7


def test_the_environment_of_scripts(both: SideBySide) -> None:
    ran = both.same(["npm", "run", "--silent", "environment"], project="node")
    assert ran.stdout == "hello environment\n"


def test_npm_test(both: SideBySide) -> None:
    ran = both.same(["npm", "test"], project="node", normal=_without_durations)
    assert ran.exit_code == 0


def _without_durations(text: str) -> str:
    import re

    return re.sub(r"duration_ms:? [\d.]+", "DURATION", re.sub(r"\(?\d+(\.\d+)?ms\)?", "TIME", text))
