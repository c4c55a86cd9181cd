"""Which changes cannot land because others do not.

In: the changes that are to land, and those that are kept back, each with its denial (None: it is a conflict). Out: what
goes with these, and why. A task chooses how its changes hang together: each is looked at once, however long the chain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from broker.decide.verdict import Deny
from broker.enforce.changes import Change, Kind

Held = dict[Change, tuple[Deny | None, str]]
HOLDS = "what holds it, or takes its place, cannot land"
IN_IT = "something in it changed since the task began"
BEFORE_IT = "what it took the place of changed since the task began"


def held_back(landing: Sequence[Change], kept: Iterable[tuple[Change, Deny | None]]) -> Held:
    """Return the changes of `landing` that cannot land, with the denial of what keeps them back, if any, and why."""
    pending = deque(kept)
    if not pending:
        return {}
    by_path = _ByPath(landing)
    held: Held = {}
    seen: set[tuple[str, int, str]] = set()
    while pending:
        change, denial = pending.popleft()
        for other, why in _with(change, by_path, seen):
            if other not in held:
                held[other] = (denial, why)
                pending.append((other, denial))
    return held


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that hold a path, nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _with(change: Change, by_path: _ByPath, seen: set[tuple[str, int, str]]) -> Iterator[tuple[Change, str]]:
    """Yield what stays because this one does. `seen`: what was asked for before gives nothing new."""
    made, gone = change.kind is Kind.CREATED, change.kind is Kind.DELETED
    unknown = change.new is None and not gone  # nobody knows what is there in the layer
    # A renamed file's old name goes with the new one.
    for path in filter(None, (change.path, change.source) if made else (change.path,) if unknown else ()):
        if _new(seen, "made", change.part, path):
            yield from ((other, HOLDS) for other in by_path.at(change.part, path) if other.kind is Kind.DELETED)
            yield from ((other, HOLDS) for other in by_path.below(change.part, path))
    for path in (change.path, *folders_above(change.path)) if gone or unknown else ():
        if not _new(seen, "gone" if gone else "unknown", change.part, path):
            break  # and so were the folders above
        for other in by_path.at(change.part, path):
            if other.kind is Kind.DELETED:
                yield other, IN_IT
            elif other.kind is Kind.CREATED and gone:
                yield other, BEFORE_IT


def _new(seen: set[tuple[str, int, str]], what: str, part: int, path: str) -> bool:
    key = (what, part, path)
    if key in seen:
        return False
    seen.add(key)
    return True


class _ByPath:
    """Changes, found by their path, and by the folder above."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = sorted(changes, key=lambda change: (change.part, change.path))
        self._keys = [(change.part, change.path) for change in self._changes]

    def at(self, part: int, path: str) -> Iterator[Change]:
        """Yield what happened to this path."""
        first = bisect_left(self._keys, (part, path))
        while first < len(self._keys) and self._keys[first] == (part, path):
            yield self._changes[first]
            first += 1

    def below(self, part: int, path: str) -> Iterator[Change]:
        """Yield what happened to what lies in a folder, however deep."""
        first, end = (bisect_left(self._keys, (part, path + mark)) for mark in ("/", "0"))  # "0" comes next after "/"
        yield from self._changes[first:end]
