"""Go: build, test, the race detector."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = pytest.mark.toolchain("go", "go", "gcc")


def test_go_build(both: SideBySide) -> None:
    build = "go build -o hello ./cmd/hello && echo 'b a b' | ./hello"
    ran = both.same(["sh", "-c", build], project="go")
    assert (ran.exit_code, ran.stdout) == (2, "a 1\nb 2\n")


def test_go_test(both: SideBySide) -> None:
    ran = both.same(["go", "test", "./..."], project="go")
    assert ran.exit_code == 0
    assert "ok" in ran.stdout


@pytest.mark.compat
@pytest.mark.timeout(600)
def test_the_race_detector_passes_what_is_right_and_finds_what_is_wrong(both: SideBySide) -> None:
    both.fresh("go")
    run = ["go", "test", "-race", "./..."]
    outside = both.outside(run)
    both.fresh("go")
    inside = both.inside(run)
    both.note_times(outside, inside)
    assert inside.result["denials"] == []
    assert inside.exit_code == outside.exit_code == 1
    for ran in (outside, inside):
        assert "WARNING: DATA RACE" in ran.stdout
        assert "ok  \texample.invalid/hello/words" in ran.stdout
        assert "FAIL\texample.invalid/hello/racy" in ran.stdout
