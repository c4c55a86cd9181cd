"""What people read when they ask why: the trees of commands that hide what they do, word for word.

`tests/golden/explain.txt` holds the commands and their trees. After a change of wording on purpose:

    .venv/bin/python tests/cli/test_explain_golden.py > new && mv new tests/golden/explain.txt

and read the difference: it is what operators will see.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broker.classify import classify
from broker.classify.context import Context
from broker.cli.explain import drawn
from broker.request.operation import ShellText

GOLDEN = Path(__file__).parents[1] / "golden" / "explain.txt"
RULE = "─" * 100
PROMPT = "$ "
CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")


def tree(text: str) -> str:
    """What `broker explain` draws, without the line that names the tables."""
    return "\n".join(drawn(text, classify(ShellText(text=text), CONTEXT))[1:-1])


def blocks() -> list[tuple[str, str]]:
    """The commands of the file, each with its tree: a prompt, the text, and from `= ` on the tree."""
    found = []
    for block in GOLDEN.read_text(encoding="utf-8").split(RULE + "\n")[1:]:
        text, _, expected = block.partition("\n= ")
        found.append((text.removeprefix(PROMPT), "= " + expected.rstrip("\n")))
    return found


@pytest.mark.parametrize(("text", "expected"), [pytest.param(*block, id=block[0][:40]) for block in blocks()])
def test_a_command_that_hides_what_it_does_is_explained_like_this(text: str, expected: str) -> None:
    assert tree(text) == expected


def test_no_sentence_is_said_twice_of_one_part() -> None:
    for text, _ in blocks():
        for part in classify(ShellText(text=text), CONTEXT).parts:
            said = [(reason.rule, reason.risk, reason.text) for reason in part.reasons]
            assert len(said) == len(set(said)), text


def test_every_part_stands_within_the_part_that_it_is_wrapped_in() -> None:
    for text, _ in blocks():
        parts = classify(ShellText(text=text), CONTEXT).parts
        for part in parts:
            around = parts[part.within] if part.within is not None else None
            assert part.span is not None and 0 <= part.span[0] < part.span[1] <= len(text), text
            if around is not None and around.span is not None:
                assert around.span[0] <= part.span[0] and part.span[1] <= around.span[1], (text, part.argv)


if __name__ == "__main__":
    head = GOLDEN.read_text(encoding="utf-8").split(RULE)[0]
    sys.stdout.write(head + "".join(f"{RULE}\n{PROMPT}{text}\n{tree(text)}\n" for text, _ in blocks()))
