"""A name that any pattern could mean is never plain."""

from __future__ import annotations

import pytest

from broker.classify import paths
from broker.classify.plain_names import is_plain
from broker.classify.tables import load


def components() -> list[str]:
    """Every component of every pattern that a file's name could fit."""
    texts = [*paths.watched_names(), *paths.protected_paths("persistence"), *paths.secret_names()]
    texts += [name for names in load()["contents"]["file"] for name in names.split()]
    return sorted({word.strip("^=") for text in texts for word in text.split("/")} - {"", "*", "**"})


@pytest.mark.parametrize("between", ["", "x", "some.thing-else"])
def test_no_name_that_fits_a_pattern_is_plain(between: str) -> None:
    names = [component.replace("*", between) for component in components()]
    assert len(names) > 1000
    assert [name for name in names if is_plain(name) or is_plain(name.upper())] == []


@pytest.mark.parametrize("name", ["HEAD", "refs", "a*b", "a\nb", "naïve.txt", "back\\slash"])
def test_what_git_reads_and_odd_characters_are_not_plain(name: str) -> None:
    assert not is_plain(name)


@pytest.mark.parametrize(
    "name", ["main.c", "notes.txt", "data.json", "test_things.py", "README.md", "a", "image.png"]
)
def test_most_names_are_plain(name: str) -> None:
    assert is_plain(name)
