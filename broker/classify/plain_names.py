"""Step 2: which file names nothing is known of. Of two such files in one folder, whatever is said of one is true of both.

Who judges ten thousand new files asks once a folder. A name is plain when no part of any catalogue, and no kind of file
whose content is looked into, could mean it.
"""

from __future__ import annotations

import re
from functools import cache

from broker.classify import paths
from broker.classify.tables import load

_ODD = re.compile(r"[*?\[\]\x00-\x1f\x7f\\]|[^\x00-\x7f]").search


def is_plain(name: str) -> bool:
    """Whether a file's name says nothing by itself."""
    lower = name.lower()
    names, patterns = _known()
    return lower not in names and patterns.fullmatch(lower) is None and _ODD(name) is None


@cache
def _known() -> tuple[frozenset[str], re.Pattern[str]]:
    """Every component of every pattern: those without a wildcard, and one expression for the others."""
    texts = [*paths.watched_names(), *paths.protected_paths("persistence"), *paths.secret_names()]
    texts += [name for names in load()["contents"]["file"] for name in names.split()]
    words = {word.strip("^=").lower() for text in texts for word in text.split("/")} - {"", "*", "**"}
    words |= {"head", "objects", "refs", "commondir"}  # they make a repository of the folder that they come into
    stars = sorted(word for word in words if "*" in word)
    either = "|".join(re.escape(word).replace(r"\*", ".*") for word in stars)
    return frozenset(words), re.compile(either or r"(?!)", re.DOTALL)
