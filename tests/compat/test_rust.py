"""Rust with cargo, offline: build script, tests, documentation tests."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide, without_times

pytestmark = [pytest.mark.toolchain("compat", "cargo"), pytest.mark.compat, pytest.mark.timeout(600)]


def test_cargo_build_and_run(both: SideBySide) -> None:
    ran = both.same(["cargo", "run", "--offline"], project="rust", files=False)
    assert (ran.exit_code, ran.stdout) == (5, "build-script 3\n")


def test_cargo_test(both: SideBySide) -> None:
    ran = both.same(["cargo", "test", "--offline", "--", "--test-threads=1"], project="rust", files=False, normal=without_times)
    assert ran.exit_code == 0
    assert "Doc-tests" in ran.stderr
