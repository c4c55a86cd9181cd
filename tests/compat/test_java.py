"""A JVM: compile, package, run."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = [pytest.mark.toolchain("compat", "javac", "jar"), pytest.mark.compat, pytest.mark.timeout(300)]


def test_javac_jar_and_the_program(both: SideBySide) -> None:
    # Each JVM wants to choose what a core dump of it would hold. It is refused, is told so on stderr, and goes on.
    ran = both.same(["sh", "build.sh"], project="java", stderr=False, refused=r"write /proc/\d+/coredump_filter")
    assert ran.exit_code == 3
    assert "socket 7" in ran.stdout
