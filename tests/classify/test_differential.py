"""bash, behind a gate that sees every program start, starts nothing that the classifier did not say could start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from benchmarks.differential import (
    Bash,
    Grammar,
    against_shfmt,
    bash_in_sandbox,
    is_open,
    is_unread,
    unforeseen,
)
from broker.classify import classify
from broker.classify.context import Context
from broker.request.operation import ShellText

CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")


@pytest.fixture(scope="module")
def bash() -> Iterator[Bash]:
    """One sandbox for all texts: each is a spawn of its own in it."""
    with bash_in_sandbox() as running:
        yield running


def texts(seed: int, count: int) -> list[str]:
    grammar = Grammar(seed)
    return [grammar.text() for _ in range(count)]


@pytest.mark.needs_bubblewrap
def test_bash_starts_only_what_was_foreseen(bash: Bash) -> None:
    started = shown = 0
    for text in texts(20, 250):
        starts = bash.run(text)
        answer = classify(ShellText(text=text), bash.context)
        assert unforeseen(answer, starts) == [], text
        started += len(starts)
        shown += not is_open(answer)
    # Otherwise the comparison says nothing: programs must start, and most texts must be said to show what they run.
    assert started > 500
    assert shown > 150


@pytest.mark.needs_bubblewrap
@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("p1 a; p2 'b c'", [("p1", "a"), ("p2", "b c")]),
        ('eval "p1 $(p2 x)"', [("p2", "x"), ("p1", "x")]),
        ("exec -a other p1 a", [("p1", "a")]),
        ("echo p1 a | sh", [("sh",), ("p1", "a")]),
    ],
)
def test_the_gate_sees_what_bash_starts(bash: Bash, text: str, starts: list[tuple[str, ...]]) -> None:
    assert bash.run(text) == starts


def test_a_start_that_nobody_named_is_found_out() -> None:
    answer = classify(ShellText(text="p1 a 'b c'; p2 $unset; p1 *.txt"), CONTEXT)
    assert unforeseen(answer, [("p1", "a", "b c"), ("p2",), ("p2", "x", "y"), ("p1", "a.txt", "b.txt")]) == []
    wrong = [("p1", "a", "b", "c"), ("p1", "a"), ("p3",), ("p2x",), ("sh", "-c", "p1 a")]
    assert unforeseen(answer, wrong) == wrong


@pytest.mark.needs_bubblewrap
def test_where_another_parser_finds_other_commands_the_answer_is_unknown_or_right(bash: Bash) -> None:
    differing: list[str] = []
    figures = against_shfmt(
        itertools.chain(DIFFERENT, texts(21, 300)),
        lambda text, how: differing.append(f"{text!r}: {how}"),
        bash.context,
        bash.agrees,
    )
    assert differing == []
    assert figures["commands that shfmt found"] > 900
    assert figures["texts that are read in two ways"] >= len(DIFFERENT)
    assert figures["texts that could not be read"] < 10


# shfmt takes the second for a name and a program called `x=1`, and the first for the keyword.
DIFFERENT = ["p1 |\ntime p3", "coproc x=1 p1 a; wait"]


def test_most_texts_of_the_grammar_are_read() -> None:
    answers = [classify(ShellText(text=text), CONTEXT) for text in texts(22, 500)]
    assert sum(map(is_unread, answers)) < 15
