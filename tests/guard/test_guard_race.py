"""The race that a single check loses: the words of an exec change after they were looked at."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from broker.enforce import wire
from guard_harness import Sandbox

TRIES = 300


def refuse_evil(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
    """What a broker would say: nothing with "evil" in it, and not the other program."""
    assert isinstance(question, wire.ExecAsked)
    evil = "evil" in question.argv or ("LD_X", "evil") in question.env or question.program == "/usr/bin/date"
    return wire.Answer(request=question.request, allow=not evil)


def test_the_attack_works_against_a_supervisor_that_looks_once(attacks: Path) -> None:
    done = subprocess.run(
        [attacks / "notify_supervisor", attacks / "race", "thread", str(TRIES)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Counter(done.stdout.split())["evil"] > TRIES // 20


@pytest.mark.parametrize("mode", ["thread", "vm", "shared", "vfork", "env", "path"])
def test_no_unapproved_program_runs_whoever_flips_the_words(box: Sandbox, mode: str) -> None:
    box.policy = refuse_evil
    result = box.run("/attacks/race", mode, str(TRIES), timeout=110)
    lines = Counter(result.out.decode().split("\n"))
    assert result.code == 0
    ran_evil = lines["evil"] + lines["LD_X=evil"] + sum(n for line, n in lines.items() if ":" in line)
    assert ran_evil == 0, lines
    races = box.notes(wire.NoteKind.EXEC_RACE)
    assert len(races) == lines["killed"]
    assert races, lines  # the attack was live
    assert all(note.spawn == 1 for note in races)
