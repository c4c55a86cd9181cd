"""Find what somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to `word`, or None if none is near."""
    import difflib  # slow to import, and wanted for errors only

    folded = {name.replace("-", "_").lower(): name for name in known}
    near = difflib.get_close_matches(word.replace("-", "_").lower(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


MOST_KNOWN = 25  # that are named in an error; of the rules that may land there are some 400


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?`, or else a list of what is known, to end an error with."""
    names = list(known)
    near = closest(word, names)
    if near:
        return f" Did you mean {near!r}?"
    more = f" … and {len(names) - MOST_KNOWN} more (docs/classifier-reference.md)" if len(names) > MOST_KNOWN else "."
    return f" Known: {', '.join(names[:MOST_KNOWN])}{more}"
