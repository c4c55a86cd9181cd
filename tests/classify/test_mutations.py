"""A row of the tables that is moved one class down is noticed by a case (tests/classify/mutation.py says what a row is).

The suite tries a part of the rows, another part each time the tables grow; `make mutants` tries all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutation import Cases, down, effects_of, mutants, telling

from broker.classify.risk import Risk

EVERY = 1 if os.environ.get("BROKER_MUTANTS") == "all" else 15


@pytest.mark.timeout(900 if EVERY == 1 else 120)
def test_a_row_that_says_less_than_it_should_is_noticed() -> None:
    cases = Cases()
    tried = [mutant for at, mutant in enumerate(mutants()) if at % EVERY == 0]
    survivors = [mutant for mutant in tried if not cases.notice(mutant)]
    # What no command line can tell from the original is no mistake.
    told = [(mutant.title, telling(mutant)) for mutant in survivors]
    unnoticed = [f"{title}   {command}" for title, command in told if command is not None]
    assert len(unnoticed) <= len(tried) // 20, "\n".join(unnoticed)


def test_a_mutant_leaves_nothing_behind() -> None:
    for mutant in list(mutants())[::50]:
        before = [effects_of(command) for command in mutant.tries[:4]]
        mutant.apply()()
        assert [effects_of(command) for command in mutant.tries[:4]] == before, mutant.title


def test_a_mutant_is_told_from_the_original_where_its_program_does_something() -> None:
    first = {
        mutant.programs[0]: mutant for mutant in mutants() if not mutant.sub and "effects" in mutant.title
    }
    for program in ("curl", "sudo", "shutdown"):
        if program in first:
            command = telling(first[program])
            assert command is not None, program


def test_one_class_down() -> None:
    assert down((Risk.DESTRUCTIVE,)) == (Risk.PERSISTENCE,)
    assert down((Risk.NETWORK_EGRESS, Risk.LOCAL_WRITE)) == (Risk.LOCAL_WRITE, Risk.INSTALL)
    assert down((Risk.LOCAL_WRITE,)) == (Risk.SAFE,)
