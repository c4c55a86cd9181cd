"""clang, with its sanitizers."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide
from test_c import built

pytestmark = [pytest.mark.toolchain("compat", "clang", "make"), pytest.mark.compat]


def test_make_with_clang(both: SideBySide) -> None:
    both.same(["make", "-j2", "CC=clang", "all", "check"], project="c")


@pytest.mark.parametrize(
    ("source", "flag", "finding"),
    [
        ("overflow.c", "-fsanitize=address", "heap-buffer-overflow"),
        ("undefined.c", "-fsanitize=undefined", "signed integer overflow"),
        ("race.c", "-fsanitize=thread", "data race"),
    ],
)
def test_sanitizers(both: SideBySide, source: str, flag: str, finding: str) -> None:
    both.fresh("c")
    outside = both.outside(built("clang", source, flag))
    both.fresh("c")
    inside = both.inside(built("clang", source, flag))
    assert inside.exit_code == outside.exit_code
    assert (finding in inside.stderr, finding in outside.stderr) == (True, True)
