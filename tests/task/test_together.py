"""What stays because something else does: all of it, however the changes hang together."""

from __future__ import annotations

from broker.enforce.changes import Change, Facts, Kind, Thing
from broker.task.together import BEFORE_IT, HOLDS, IN_IT, held_back

FILE = Facts(0o100644, 1, 1, 1, 1, 1, 1)
FOLDER = Facts(0o40755, 1, 1, 1, 1, 1, 1)


def created(path: str, thing: Thing = Thing.FILE, source: str = "") -> Change:
    """A new file or folder."""
    return Change(0, path, Kind.CREATED, thing, FOLDER if thing is Thing.FOLDER else FILE, None, source=source)


def deleted(path: str) -> Change:
    """A file that is gone."""
    return Change(0, path, Kind.DELETED, Thing.FILE, None, FILE)


def test_a_chain_of_renames_is_followed_to_its_end() -> None:
    """Each file is replaced by a folder in which the next one lies: quadratic work would take an hour here."""
    links = 20_000
    landing = [
        change for at in range(links)
        for change in (deleted(f"p{at}"), created(f"p{at}", Thing.FOLDER), created(f"p{at}/x", source=f"p{at + 1}"))
    ]  # fmt: skip
    assert len(held_back(landing, [(created("first", source="p0"), None)])) == 3 * links
    assert held_back(landing, [(created("first", source="elsewhere"), None)]) == {}


def test_names_that_only_begin_alike_have_nothing_to_do_with_each_other() -> None:
    landing = [created(path) for path in ("a-b", "a.b", "a/b", "a/b/c", "a0", "ab", "b/a")]
    held = held_back(landing, [(created("a", Thing.FOLDER), None)])
    assert {change.path for change in held} == {"a/b", "a/b/c"}


def test_each_is_told_why() -> None:
    landing = [deleted("d"), created("d"), created("new/in"), deleted("other")]
    held = held_back(landing, [(deleted("d/in"), None), (created("new", Thing.FOLDER), None)])
    assert {(change.path, why) for change, (_, why) in held.items()} == {("d", IN_IT), ("d", BEFORE_IT), ("new/in", HOLDS)}
