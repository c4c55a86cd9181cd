"""Node: its tests, and processes of every kind."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = pytest.mark.toolchain("node", "node")


def test_child_processes_workers_and_servers(both: SideBySide) -> None:
    assert both.same(["node", "processes.js"], project="node").exit_code == 6


def test_a_script(both: SideBySide) -> None:
    both.same(["node", "build.js"], project="node")
