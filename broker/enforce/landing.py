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
with all the others. A path that is not what the task saw is a conflict: it stays as it is, and in the layer.

INVARIANT: every path is reached from the real folder's descriptor, below it, on its mount, through no link
(tests/enforce/test_landing.py, tests/escape/test_landing_races.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from broker.enforce.beneath import FOLDER, RENAME_EXCHANGE, Folders, rename
from broker.enforce.changes import STAGING, Change, Facts, Kind, Thing, open_part
from broker.enforce.layer import Layer, remove_tree, write_whole
from broker.errors import BrokerError

INTENT = "landing.jsonl"
FICLONE = 0x40049409
_CHUNK = 1 << 30
# A path for which one of these comes is not what the task saw; anything else ends the landing, and undoes it.
_CONFLICTS = {
    errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EXDEV, errno.ENOTEMPTY, errno.EACCES,
    errno.EPERM, errno.ENAMETOOLONG, errno.ESTALE,
}  # fmt: skip


class LandingFailed(BrokerError):
    """The changes could not land; the workspace is as it was."""

    def __init__(self, why: str, run: str) -> None:
        super().__init__(
            f"the changes could not land, and the workspace is as it was: {why}. They are kept: broker land {run}"
        )
        self.why, self.run = why, run


@dataclass(slots=True)
class Landed:
    """What came of it: the changes that are in the workspace now, and the conflicts, each with its reason."""

    done: list[Change] = field(default_factory=list)
    conflicts: list[tuple[Change, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """One change, and what has to be known to finish or undo it after a crash."""

    number: int
    change: Change
    staged: int = 0  # the inode that takes its place; 0: none
    in_layer: bool = False  # that inode is the layer's own file, and a rename carries it over

    @property
    def name(self) -> str:
        """Its name in the staging folder."""
        return str(self.number)

    def as_line(self) -> dict[str, Any]:
        """Return it for the intent."""
        change = self.change
        return {
            "n": self.number, "part": change.part, "path": change.path, "kind": change.kind, "thing": change.thing,
            "target": change.target, "staged": self.staged, "in_layer": self.in_layer,
            "old": change.old, "new": change.new,
        }  # fmt: skip


def land(layer: Layer, changes: Iterable[Change], *, intend: Callable[[], None] = lambda: None) -> Landed:
    """Carry these changes into the real folders. The caller holds the layer's lock.

    `intend` is called once the intent is on disk and before anything is touched: it makes the record. Raises
    LandingFailed when nothing could land; what `intend` raises goes through.
    """
    landed = Landed()
    steps = [_Step(number, change) for number, change in enumerate(_in_order(changes))]
    if not steps:
        return landed
    with contextlib.ExitStack() as stack:
        _Intent(layer).begin()
        intend()
        trees = [stack.enter_context(_Tree(layer, part)) for part in sorted({step.change.part for step in steps})]
        by_part = {tree.part: tree for tree in trees}
        try:
            for tree in trees:
                tree.make_staging()
            ready = [step for step in steps if _stage(by_part[step.change.part], step, landed)]
            _Intent(layer).commit(ready)
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

    Raises LandingFailed when it can do neither now.
    """
    lines, committed = _Intent(layer).read()
    with contextlib.ExitStack() as stack:
        try:
            trees = [stack.enter_context(_Tree(layer, part)) for part in range(len(layer.manifest.parts))]
            if not committed:
                _forget(layer, trees)
                return "undone"
            for tree in trees:
                tree.open_staging()
        except OSError as error:
            raise LandingFailed(error.strerror or "?", layer.run) from error
        landed = Landed()
        steps = [_step_of(line) for line in lines]
        _commit(layer, {tree.part: tree for tree in trees}, steps, landed, again=True)
        _finish(layer, trees, landed.done)
    return "completed"


def _in_order(changes: Iterable[Change]) -> list[Change]:
    """Deletions first (what is in a folder before the folder), then folders, files, and modes last."""

    def rank(change: Change) -> tuple[int, int, str]:
        depth = change.path.count("/")
        if change.kind is Kind.DELETED:
            return (0, -depth, change.path)
        if change.kind is Kind.CREATED and change.thing is Thing.FOLDER:
            return (1, depth, change.path)
        late = change.kind in (Kind.MODE, Kind.TIMES)
        return (3 if late else 2, -depth if late else 0, change.path)

    return sorted(changes, key=rank)


class _Intent:
    """The file that says what a landing is about to do, and how far it has come."""

    def __init__(self, layer: Layer) -> None:
        self.path = layer.folder / INTENT
        self.head = {"format": 1, "run": layer.run}

    def begin(self) -> None:
        write_whole(self.path, (json.dumps(self.head) + "\n").encode("ascii"))

    def commit(self, steps: list[_Step]) -> None:
        lines = [self.head, *(step.as_line() for step in steps), {"commit": True}]
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in lines).encode("ascii"))

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        lines = [json.loads(line) for line in self.path.read_bytes().splitlines()]
        return lines[1:-1], lines[-1] == {"commit": True}

    def end(self) -> None:
        self.path.unlink(missing_ok=True)


class _Tree:
    """A real folder, the staging folder in it, and the layer's folder with its changes."""

    def __init__(self, layer: Layer, part: int) -> None:
        self.layer, self.part = layer, part
        self.owner = (layer.manifest.uid, layer.manifest.gid)
        self.staging_name = STAGING + layer.run
        self.staging = -1
        self.links: dict[int, str] = {}  # inode in the layer: its name in the staging folder
        self.renames = False  # whether a rename can carry a file over from the layer
        self._root = open_part(layer, part)
        self._upper = os.open(layer.upper(part), FOLDER)
        self.real, self.upper = Folders(self._root), Folders(self._upper)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.real.close()
        self.upper.close()
        for descriptor in (self._root, self._upper, self.staging):
            if descriptor >= 0:
                os.close(descriptor)

    def make_staging(self) -> None:
        os.mkdir(self.staging_name, 0o700, dir_fd=self._root)
        self.open_staging()
        with contextlib.suppress(OSError):  # another file system, or the same mounted twice
            work = self.layer.folder / str(self.part) / "probe"
            work.mkdir()
            try:
                os.rename(work, "probe", dst_dir_fd=self.staging)
                os.rmdir("probe", dir_fd=self.staging)
                self.renames = True
            finally:
                if not self.renames:
                    work.rmdir()

    def source(self, step: _Step) -> tuple[int, str]:
        """Return where the thing lies that takes a path's place, and afterwards what was there."""
        return self.upper.parent(step.change.path) if step.in_layer else (self.staging, step.name)

    def open_staging(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.staging = os.open(self.staging_name, FOLDER, dir_fd=self._root)

    def remove_staging(self) -> None:
        """Remove the staging folder, with what is in it: staged files, or what was replaced."""
        from pathlib import Path

        remove_tree(Path(f"/proc/self/fd/{self._root}", self.staging_name))


def _stage(tree: _Tree, step: _Step, landed: Landed) -> bool:
    """Have ready what takes a path's place. False: the layer has something else there now."""
    change = step.change
    if change.kind not in (Kind.CREATED, Kind.CHANGED) or change.thing is Thing.FOLDER:
        return True
    assert change.new is not None
    folder, name = tree.upper.parent(change.path)
    # A file with other names in the layer is copied: what stays in the layer must not change with the real one.
    step.in_layer = tree.renames and (change.thing is Thing.LINK or change.new.links == 1)
    if step.in_layer:
        if change.marked:
            _unmark(f"/proc/self/fd/{folder}/{name}")
    elif change.thing is Thing.LINK:
        os.symlink(change.target, step.name, dir_fd=tree.staging)
        if os.geteuid() == 0:
            os.chown(step.name, *tree.owner, dir_fd=tree.staging, follow_symlinks=False)
    elif (earlier := tree.links.get(change.new.inode)) is not None:
        os.link(earlier, step.name, src_dir_fd=tree.staging, dst_dir_fd=tree.staging)
    else:
        _copy(tree, step.name, folder, name, change.new)
        tree.links[change.new.inode] = step.name
    facts = _facts(name, folder) if step.in_layer else _facts(step.name, tree.staging)
    step.staged = facts.inode
    if change.thing is Thing.LINK or (facts.mode, facts.size, facts.mtime) == change.new[:1] + change.new[2:4]:
        return True
    landed.conflicts.append((change, "it was changed in the layer meanwhile"))
    return False


def _unmark(place: str) -> None:
    """Take overlayfs's own attributes off a file."""
    for attribute in os.listxattr(place, follow_symlinks=False):
        if attribute.startswith(("user.overlay.", "trusted.overlay.")):
            os.removexattr(place, attribute, follow_symlinks=False)


def _facts(name: str, folder: int) -> Facts:
    return Facts.of(os.stat(name, dir_fd=folder, follow_symlinks=False))


def _copy(tree: _Tree, new: str, folder: int, name: str, facts: Facts) -> None:
    """Clone a file, or copy it with its holes."""
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        target = os.open(
            new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=tree.staging
        )
        try:
            _fill(source, target)
            if os.geteuid() == 0:
                os.fchown(target, *tree.owner)
            os.fchmod(target, stat.S_IMODE(facts.mode))
            for attribute in os.listxattr(source):
                if attribute.startswith("user.") and not attribute.startswith("user.overlay."):
                    os.setxattr(target, attribute, os.getxattr(source, attribute))
            os.utime(target, ns=(facts.atime, facts.mtime))
        finally:
            os.close(target)
    finally:
        os.close(source)


def _fill(source: int, target: int) -> None:
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        pass
    else:
        return
    size = os.fstat(source).st_size
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole is left
                raise
            break
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            copied = _copy_some(source, target, at, min(end - at, _CHUNK))
            if not copied:
                break
            at += copied
    os.ftruncate(target, size)


def _copy_some(source: int, target: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, at, at)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    block = os.pread(source, min(count, 1 << 20), at)
    return os.pwrite(target, block, at) if block else 0


def _commit(layer: Layer, trees: dict[int, _Tree], steps: list[_Step], landed: Landed, *, again: bool = False) -> None:
    """Do each step, or none: an error that is no conflict undoes what was done. `again`: some may be done."""
    done: list[_Step] = []
    try:
        for step in steps:
            try:
                why = _do(trees[step.change.part], step, again=again)
            except OSError as error:
                if error.errno not in _CONFLICTS:
                    raise
                why = error.strerror or "?"
            if why:
                landed.conflicts.append((step.change, why))
            else:
                done.append(step)
                landed.done.append(step.change)
    except OSError as error:
        for step in reversed(done):
            _undo(trees[step.change.part], step)
        _forget(layer, trees.values())
        landed.done.clear()
        raise LandingFailed(error.strerror or "?", layer.run) from error


def _do(tree: _Tree, step: _Step, *, again: bool) -> str:
    """Do one step. Returns '' or why the path is a conflict; then nothing of it was done."""
    change = step.change
    folder, name = tree.real.parent(change.path)
    if change.kind is Kind.DELETED:
        return _take_away(tree, step, folder, name, again=again)
    if change.kind in (Kind.MODE, Kind.TIMES):
        return _set_facts(folder, name, change, again=again)
    if change.thing is Thing.FOLDER:
        return _make_folder(tree, change, folder, name, again=again)
    if again and not _is_staged(tree, step):
        return ""
    place, new = tree.source(step)
    if change.old is None:
        rename(place, new, folder, name)
        return ""
    if not _facts(name, folder).same_file(change.old):
        return "the real one changed since the task began"
    rename(place, new, folder, name, RENAME_EXCHANGE)
    if _facts(new, place).same_file(change.old):
        return ""
    rename(place, new, folder, name, RENAME_EXCHANGE)
    return "the real one changed while it landed"


def _is_staged(tree: _Tree, step: _Step) -> bool:
    """Whether what takes the path's place is still where it was (and not what it replaced)."""
    place, new = tree.source(step)
    try:
        return _facts(new, place).inode == step.staged
    except FileNotFoundError:
        return False


def _take_away(tree: _Tree, step: _Step, folder: int, name: str, *, again: bool) -> str:
    if again and _lies_in(tree.staging, step.name):
        return ""
    old = step.change.old
    assert old is not None
    facts = _facts(name, folder)
    if not (facts.is_folder and facts.inode == old.inode if old.is_folder else facts.same_file(old)):
        return "the real one changed since the task began"
    tree.real.moved(step.change.path)
    rename(folder, name, tree.staging, step.name)
    taken = _facts(step.name, tree.staging)
    if old.is_folder:
        if taken.inode == old.inode and not os.listdir(f"/proc/self/fd/{tree.staging}/{step.name}"):
            return ""
        why = "there is something in it that the task did not delete"
    else:
        if taken.same_file(old):
            return ""
        why = "the real one changed while it landed"
    rename(tree.staging, step.name, folder, name)
    return why


def _lies_in(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make_folder(tree: _Tree, change: Change, folder: int, name: str, *, again: bool) -> str:
    assert change.new is not None
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        if not again or not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
    if os.geteuid() == 0:
        os.chown(name, *tree.owner, dir_fd=folder, follow_symlinks=False)
    os.chmod(f"/proc/self/fd/{tree.real.at(change.path)}", stat.S_IMODE(change.new.mode) & 0o777 | 0o700)
    return ""


def _set_facts(folder: int, name: str, change: Change, *, again: bool) -> str:
    """Give a path another mode, or other times, and its folder's content is as it was."""
    assert change.new is not None
    assert change.old is not None
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        facts = Facts.of(os.fstat(descriptor))
        if facts.inode != change.old.inode or stat.S_IFMT(facts.mode) != stat.S_IFMT(change.old.mode):
            return "the real one changed since the task began"
        if not again and change.thing is Thing.FILE and not facts.same_file(change.old):
            return "the real one changed since the task began"
        place = f"/proc/self/fd/{descriptor}"
        if change.kind is Kind.MODE:
            os.chmod(place, stat.S_IMODE(change.new.mode))
        else:
            os.utime(place, ns=(change.new.atime, change.new.mtime))
    finally:
        os.close(descriptor)
    return ""


def _undo(tree: _Tree, step: _Step) -> None:
    """Take one step back. What cannot be taken back stays in the staging folder, whose name the error says."""
    change = step.change
    folder, name = tree.real.parent(change.path)
    if change.kind is Kind.DELETED:
        rename(tree.staging, step.name, folder, name)
    elif change.kind in (Kind.MODE, Kind.TIMES):
        assert change.old is not None
        _set_facts(folder, name, change._replace(new=change.old), again=True)
    elif change.thing is Thing.FOLDER:
        tree.real.moved(change.path)
        os.rmdir(name, dir_fd=folder)
    elif change.old is None:
        rename(folder, name, *tree.source(step))
    else:
        rename(*tree.source(step), folder, name, RENAME_EXCHANGE)


def _forget(layer: Layer, trees: Iterable[_Tree]) -> None:
    """The workspace is as it was: take away the staging folders, then the intent."""
    for tree in trees:
        tree.remove_staging()
    _Intent(layer).end()


def _finish(layer: Layer, trees: list[_Tree], done: list[Change]) -> None:
    """Everything is in place. Take what landed out of the layer, then the staging folders, then the intent."""
    folders = {tree.part: tree.upper for tree in trees}
    for change in _upside_down(done):
        with contextlib.suppress(OSError):
            folder, name = folders[change.part].parent(change.path)
            if change.thing is Thing.FOLDER and change.new is not None:
                folders[change.part].moved(change.path)
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
    for tree in trees:
        tree.remove_staging()
    _Intent(layer).end()


def _upside_down(done: list[Change]) -> Iterator[Change]:
    """What is in a folder comes before it. A path that was deleted and made again has one entry in the layer."""
    made = {(change.part, change.path) for change in done if change.kind is not Kind.DELETED}
    for change in sorted(done, key=lambda change: -change.path.count("/")):
        if change.kind is not Kind.DELETED or (change.part, change.path) not in made:
            yield change


def _step_of(line: dict[str, Any]) -> _Step:
    """Return a step as the intent's line has it."""

    def facts(values: list[int] | None) -> Facts | None:
        return None if values is None else Facts(*values)

    change = Change(
        line["part"], line["path"], Kind(line["kind"]), Thing(line["thing"]), facts(line["new"]), facts(line["old"]),
        line["target"],
    )  # fmt: skip
    return _Step(line["n"], change, line["staged"], line["in_layer"])
