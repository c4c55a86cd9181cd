"""Counting words: what is a word, how often each occurs, and which occur most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


@dataclass(frozen=True, order=True)
class WordCount:
    """A word and how often it occurs."""

    word: str
    count: int


def words(lines: Iterable[str]) -> Iterator[str]:
    """Yield each word of the lines, in lower case. An apostrophe or hyphen inside a word belongs to it."""
    for line in lines:
        for found in WORD.finditer(line):
            yield found.group()


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs."""
    return Counter(words(lines))


def most_common(lines: Iterable[str], limit: int) -> list[WordCount]:
    """Return the `limit` most frequent words; equally frequent ones in alphabetical order."""
    ordered = sorted(count_words(lines).items(), key=lambda item: (-item[1], item[0]))
    return [WordCount(word, count) for word, count in ordered[:limit]]
