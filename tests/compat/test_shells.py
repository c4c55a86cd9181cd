"""Shells: syntax, traps, jobs, pipelines under signals."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = pytest.mark.toolchain("base", "bash", "dash")


def test_true(both: SideBySide) -> None:
    both.same(["true"])  # the fixed cost of broker and sandbox, for the table of times


def test_bash_here_documents_substitutions_and_descriptors(both: SideBySide) -> None:
    ran = both.same(["bash", "syntax.sh"], project="shells")
    assert ran.exit_code == 42


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_traps_and_signals(both: SideBySide, shell: str) -> None:
    # Which ends of jobs dash reports depends on which it has seen by then, outside too.
    ran = both.same([shell, "traps.sh"], project="shells", stderr=shell == "bash")
    assert ran.exit_code == 6
    assert "exit trap 6" in ran.stdout


def test_job_control_without_a_terminal(both: SideBySide) -> None:
    ran = both.same(["bash", "jobs.sh"], project="shells", stderr=False)  # the order of reported ends
    assert "setsid 8" in ran.stdout


def test_300_pipelines_while_signals_arrive(both: SideBySide) -> None:
    # bash 5.2 sometimes complains about a trap that ran within `$(`; outside too.
    ran = both.same(["bash", "pipelines.sh"], project="shells", stderr=False)
    assert ran.stdout.startswith("ticked\n")


def test_a_shell_reads_its_script_from_stdin(both: SideBySide) -> None:
    ran = both.same(["bash", "-s", "word"], stdin=b"read -r line\nthis line\necho $1 $line\nexit 3\n")
    assert (ran.exit_code, ran.stdout) == (3, "word this line\n")


def test_a_shell_killed_by_a_signal(both: SideBySide) -> None:
    assert both.same(["sh", "-c", "echo before; kill -9 $$"]).exit_code == 137


def test_xargs_and_find_pass_long_lists(both: SideBySide) -> None:
    both.same(
        ["sh", "-c", "seq 100000 | xargs echo | md5sum; seq 3000 | xargs touch; find . -exec echo {} + | wc -w"], files=False
    )


def test_arguments_of_more_than_160_kib_are_too_long(both: SideBySide) -> None:
    both.fresh("")
    ran = both.inside(["sh", "-c", "/bin/echo $(seq 60000) | wc -c"])
    assert "Argument list too long" in ran.stderr
    assert [row["rule"] for row in ran.result["denials"]] == ["exec.too_large"]
