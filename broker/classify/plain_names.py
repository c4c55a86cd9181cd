"""Step 2: which file names nothing is known of. Of two such files in one folder, whatever is said of one is true of both.

Who judges ten thousand new files asks once a folder. A name is plain when no part of any catalogue, and no kind of file
whose content is looked into, could mean it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from broker.classify import paths
from broker.classify.tables import load

_ODD = re.compile(r"[*?\[\]\x00-\x1f\x7f\\]|[^\x00-\x7f]").search


class _Known(NamedTuple):
    """The components of every pattern. Those with a wildcard by what a name that fits one begins with, ends with or holds."""

    names: frozenset[str]
    beginnings: tuple[str, ...]
    endings: tuple[str, ...]
    pieces: tuple[str, ...]


def is_plain(name: str) -> bool:
    """Whether a file's name says nothing by itself."""
    lower = name.lower()
    known = _known()
    return (
        lower not in known.names
        and not lower.startswith(known.beginnings)
        and not lower.endswith(known.endings)
        and not any(piece in lower for piece in known.pieces)
        and _ODD(name) is None
    )


@cache
def _known() -> _Known:
    """Every component of every pattern. No expression is made of them: to compile it takes longer than to judge some files.

    INVARIANT: a name that fits a pattern is not plain (tests/classify/test_plain_names.py). More names than those are not:
    `tsconfig-notes.txt` begins as `tsconfig*.json` does.
    """
    texts = [*paths.watched_names(), *paths.protected_paths("persistence"), *paths.secret_names()]
    texts += [name for names in load()["contents"]["file"] for name in names.split()]
    words = {word.strip("^=").lower() for text in texts for word in text.split("/")} - {"", "*", "**"}
    words |= {"head", "objects", "refs", "commondir"}  # they make a repository of the folder that they come into
    beginnings, endings, pieces = set(), set(), set()
    for first, *inner, last in (word.split("*") for word in words if "*" in word):
        if first:
            beginnings.add(first)
        elif not any(inner):
            endings.add(last)
        else:
            pieces.add(max(inner, key=len))
    return _Known(frozenset(words), tuple(beginnings), tuple(endings), tuple(pieces))
