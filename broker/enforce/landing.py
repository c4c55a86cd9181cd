"""Step 4: carrying changes from a layer into the real folders, all of them or none.

The way, and why it can be killed at any moment:

1. The intent is on disk before anything is touched (`landing.jsonl` in the layer).
2. Staging: a file of the layer that a rename can carry over stays where it is; of another, a clone or a copy is made
   in a folder of ours at the top of the real tree. The disk can fill up here: then the folder goes, and nothing was
   changed.
3. The intent gets `commit`. From here each step is one rename that either has happened or not, and nothing is lost by
   it: what is replaced or deleted changes places with what replaces it.
4. What was replaced or deleted goes, with the staging folder and the intent.

Killed before `commit`, the next start undoes it; after, it completes it. A step that fails for want of space is undone
with all the others. A path that is not what the task saw is a conflict: it stays as it is, and in the layer. Where the
file system cannot exchange two files, what is replaced gets a second name in the staging folder first.

INVARIANT: every path is reached from the real folder's descriptor, below it, on its mount, through no link
(tests/enforce/test_landing.py, tests/escape/test_landing_races.py).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field

from broker.enforce.changes import Change, Facts, Kind, Thing, is_whiteout
from broker.enforce.landing_intent import INTENT, Intent, Step, step_of
from broker.enforce.landing_step import do_step, undo_step
from broker.enforce.layer import Layer
from broker.enforce.opaque import say_each_deletion
from broker.enforce.staging import CONFLICTS, Tree, facts_of, stage
from broker.errors import BrokerError
from broker.values import dataclass


class LandingFailed(BrokerError):
    """The changes could not land. The workspace is as it was, unless `undone` is not: the next start tries again then."""

    def __init__(self, why: str, run: str, *, undone: bool = True) -> None:
        state = "the workspace is as it was" if undone else "what was begun could not be taken back; the next start goes on"
        super().__init__(f"the changes could not land, and {state}: {why}. They are kept: broker land {run}")
        self.why, self.run, self.undone = why, run, undone


@dataclass(slots=True)
class Landed:
    """What came of it: the changes that are in the workspace now, and the conflicts, each with its reason."""

    done: list[Change] = field(default_factory=list)
    conflicts: list[tuple[Change, str]] = field(default_factory=list)


def land(layer: Layer, changes: Iterable[Change], *, intend: Callable[[], None] = lambda: None) -> Landed:
    """Carry these changes into the real folders. The caller holds the layer's lock.

    `intend` is called once the intent is on disk and before anything is touched: it makes the record. Raises
    WorkspaceMoved, and LandingFailed when nothing could land; what `intend` raises goes through.
    """
    landed = Landed()
    steps = [Step(number, change) for number, change in enumerate(_in_order(changes))]
    if not steps:
        return landed
    with contextlib.ExitStack() as stack:
        try:
            with layer.acting():
                trees = [stack.enter_context(Tree(layer, part)) for part in sorted({step.change.part for step in steps})]
            Intent(layer).begin()
        except OSError as error:
            raise LandingFailed(error.strerror or "?", layer.run) from error
        by_part = {tree.part: tree for tree in trees}
        try:
            intend()
        except BaseException:
            Intent(layer).end()
            raise
        try:
            ready = []
            with layer.acting():
                for tree in trees:
                    tree.make_staging()
                for step in steps:
                    if why := stage(by_part[step.change.part], step):
                        landed.conflicts.append((step.change, why))
                    else:
                        ready.append(step)
            Intent(layer).commit(ready)
        except OSError as error:
            _forget(layer, trees)
            raise LandingFailed(error.strerror or "?", layer.run) from error
        _commit(layer, by_part, ready, landed)
        _finish(layer, trees, landed.done)
    return landed


def interrupted(layer: Layer) -> bool:
    """Whether a landing of this layer was begun and not finished."""
    return os.path.exists(layer.folder / INTENT)


def recover(layer: Layer) -> str:
    """Complete or undo a landing that was interrupted, and say which. The caller holds the layer's lock.

    Raises WorkspaceMoved, and LandingFailed when it can do neither now.
    """
    if layer.manifest.parent:
        # It landed in another task's layer, and that task died with its broker: an operator looks at what is there.
        Intent(layer).end()
        return "left as it was: the task that it was to land in is gone"
    try:
        lines, committed = Intent(layer).read()
        steps = [step_of(line) for line in lines]
    except (OSError, LookupError, ValueError, TypeError):
        raise LandingFailed("what it was about to do cannot be read (another version of broker?)", layer.run, undone=False) from None
    with contextlib.ExitStack() as stack:
        try:
            trees = [stack.enter_context(Tree(layer, part)) for part in range(len(layer.manifest.parts))]
            if not committed:
                _forget(layer, trees)
                return "undone"
            for tree in trees:
                tree.open_staging(again=True)
        except OSError as error:
            raise LandingFailed(error.strerror or "?", layer.run, undone=False) from error
        landed = Landed()
        _commit(layer, {tree.part: tree for tree in trees}, steps, landed, again=True)
        _finish(layer, trees, landed.done)
    return "completed"


def _in_order(changes: Iterable[Change]) -> list[Change]:
    """Deletions first (what is in a folder before the folder), then folders, files, and modes last.

    A folder that may be written to again is that before anything else, so that what is in it can land.
    """

    def rank(change: Change) -> tuple[int, int, str]:
        depth = change.path.count("/")
        if change.kind is Kind.DELETED:
            return (0, -depth, change.path)
        if change.kind is Kind.CREATED and change.thing is Thing.FOLDER:
            return (1, depth, change.path)
        if change.kind is Kind.MODE and change.thing is Thing.FOLDER and _opens(change):
            return (-1, depth, change.path)
        late = change.kind in (Kind.MODE, Kind.TIMES)
        return (3 if late else 2, -depth if late else 0, change.path)

    return sorted(changes, key=rank)


def _opens(change: Change) -> bool:
    assert change.new is not None
    assert change.old is not None
    return bool(change.new.mode & ~change.old.mode & stat.S_IRWXU)


def _commit(layer: Layer, trees: dict[int, Tree], steps: list[Step], landed: Landed, *, again: bool = False) -> None:
    """Do each step, or none: an error that is no conflict undoes what was done. `again`: some may be done."""
    done: list[Step] = []
    try:
        with layer.acting():
            for step in steps:
                try:
                    why = do_step(trees[step.change.part], step, again=again)
                except OSError as error:
                    if error.errno not in CONFLICTS:
                        raise
                    why = error.strerror or "?"
                if why:
                    landed.conflicts.append((step.change, why))
                else:
                    done.append(step)
                    landed.done.append(step.change)
    except OSError as error:
        landed.done.clear()
        undone = True
        with layer.acting():
            for step in reversed(done):
                try:
                    undo_step(trees[step.change.part], step)
                except OSError:
                    undone = False  # the intent stays, and what was replaced stays in the staging folder
        if undone:
            _remember(layer, trees, steps)
            _forget(layer, trees.values())
        raise LandingFailed(error.strerror or "?", layer.run, undone=undone) from error


def _remember(layer: Layer, trees: dict[int, Tree], steps: list[Step]) -> None:
    """Note what is as it was but for its ctime, for the next walk to know that nobody else changed it."""
    known = {(part, path): ctime for part, path, ctime in layer.manifest.put_back}
    for change in (step.change for step in steps if step.change.old is not None):
        with contextlib.suppress(OSError):
            folder, name = trees[change.part].real.parent(change.path)
            facts = facts_of(name, folder)
            if _is_as_it_was(facts, change):
                known[change.part, change.path] = facts.ctime
    with contextlib.suppress(OSError):
        layer.update(put_back=tuple((part, path, ctime) for (part, path), ctime in known.items()))


def _is_as_it_was(facts: Facts, change: Change) -> bool:
    old = change.old
    assert old is not None
    return facts.same_file(old) or (old.is_folder and (facts.inode, facts.mode) == (old.inode, old.mode))


def _forget(layer: Layer, trees: Iterable[Tree]) -> None:
    """The workspace is as it was: take away the staging folders, then the intent."""
    with layer.acting():
        for tree in trees:
            tree.remove_staging()
    Intent(layer).end()


def _finish(layer: Layer, trees: list[Tree], done: list[Change]) -> None:
    """Everything is in place. Take what landed out of the layer, then the staging folders, then the intent."""
    with layer.acting():
        _take_out(trees, done)
    Intent(layer).end()


def _take_out(trees: list[Tree], done: list[Change]) -> None:
    folders = {tree.part: tree.upper for tree in trees}
    for tree in trees:
        for top in {change.opaque for change in done if change.part == tree.part and change.opaque}:
            say_each_deletion(tree.upper, tree.real, top)
    for change in _upside_down(done):
        with contextlib.suppress(OSError):
            folder, name = folders[change.part].parent(change.path)
            if change.thing is Thing.FOLDER and change.new is not None:
                folders[change.part].moved(change.path)
                os.rmdir(name, dir_fd=folder)
            elif change.kind is not Kind.DELETED or is_whiteout(name, folder):
                os.unlink(name, dir_fd=folder)
    for tree in trees:
        tree.remove_staging()


def _upside_down(done: list[Change]) -> Iterator[Change]:
    """What is in a folder comes before it. A path that was deleted and made again has one entry in the layer."""
    made = {(change.part, change.path) for change in done if change.kind is not Kind.DELETED}
    for change in sorted(done, key=lambda change: -change.path.count("/")):
        if change.kind is not Kind.DELETED or (change.part, change.path) not in made:
            yield change
