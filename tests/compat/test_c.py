"""gcc and make, sanitizers, and what the gate takes from them: tracing, and with it leak checking."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

# The image `go` has a C compiler, for cgo.
pytestmark = pytest.mark.toolchain("go", "gcc", "make")


def built(compiler: str, source: str, *flags: str) -> list[str]:
    """Return a command that compiles one file of the project `c` and runs it."""
    return ["sh", "-c", f"{compiler} -g -O1 {' '.join(flags)} -o program {source} && ./program"]


def test_make_builds_in_parallel_and_checks(both: SideBySide) -> None:
    both.same(["make", "-j2", "all", "check"], project="c")


def test_address_sanitizer_finds_an_overflow(both: SideBySide) -> None:
    both.fresh("c")
    command = built("gcc", "overflow.c", "-fsanitize=address")
    outside = both.outside(command)
    both.fresh("c")
    inside = both.inside(command)
    assert inside.exit_code == outside.exit_code == 1
    for ran in (outside, inside):
        assert "ERROR: AddressSanitizer: heap-buffer-overflow" in ran.stderr
        assert "overflow.c:7" in ran.stderr


def test_undefined_behaviour_sanitizer(both: SideBySide) -> None:
    ran = both.same(built("gcc", "undefined.c", "-fsanitize=undefined"), project="c")
    assert "signed integer overflow" in ran.stderr


def test_thread_sanitizer_finds_a_race(both: SideBySide) -> None:
    both.fresh("c")
    command = built("gcc", "race.c", "-fsanitize=thread")
    outside = both.outside(command)
    both.fresh("c")
    inside = both.inside(command)
    assert inside.exit_code == outside.exit_code
    assert ("data race" in inside.stderr) == ("data race" in outside.stderr)


def test_leak_checking_fails_and_says_why(both: SideBySide) -> None:
    both.fresh("c")
    command = built("gcc", "leak.c", "-fsanitize=address")
    outside = both.outside(command)
    assert "detected memory leaks" in outside.stderr
    both.fresh("c")
    inside = both.inside(command)
    assert inside.exit_code != 0
    assert "LeakSanitizer has encountered a fatal error" in inside.stderr
    assert "ptrace" in inside.stderr


def test_without_leak_checking_address_sanitizer_is_whole(both: SideBySide) -> None:
    """The remedy of docs/compatibility.md: `env.set` in the profile."""
    both.environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    ran = both.same(built("gcc", "leak.c", "-fsanitize=address"), project="c")
    assert ran.exit_code == 0


def test_tracing_is_refused(both: SideBySide) -> None:
    """strace and gdb begin with this call."""
    both.fresh("c")
    ran = both.inside(built("gcc", "trace.c"))
    assert (ran.exit_code, ran.stdout) == (1, "not traced: Operation not permitted\n")
