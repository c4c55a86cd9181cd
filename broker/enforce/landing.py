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
import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from broker.enforce.beneath import FOLDER, NO_SUCH_FLAG, RENAME_EXCHANGE, Folders, hard_link, lies_in, rename
from broker.enforce.changes import OVERLAYS_OWN, STAGING, Change, Facts, Kind, Thing, is_whiteout, open_part
from broker.enforce.layer import Layer, remove_tree, write_whole
from broker.enforce.opaque import say_each_deletion
from broker.errors import BrokerError

INTENT = "landing.jsonl"
FICLONE = 0x40049409
_CHUNK = 1 << 30
_ACL = "system.posix_acl_access"
# A path for which one of these comes is not what the task saw; anything else ends the landing, and undoes it.
_CONFLICTS = {
    errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EXDEV, errno.ENOTEMPTY, errno.EACCES,
    errno.EPERM, errno.ENAMETOOLONG, errno.ESTALE,
}  # fmt: skip


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

    @property
    def kept(self) -> str:
        """The name there of what it replaces, while the two change places step by step."""
        return f"{self.number}.kept"

    def as_line(self) -> dict[str, Any]:
        """Return it for the intent."""
        change = self.change
        return {
            "n": self.number, "part": change.part, "path": change.path, "kind": change.kind, "thing": change.thing,
            "target": change.target, "staged": self.staged, "in_layer": self.in_layer,
            "old": change.old, "new": change.new, "marked": change.marked, "opaque": change.opaque,
        }  # fmt: skip


def land(layer: Layer, changes: Iterable[Change], *, intend: Callable[[], None] = lambda: None) -> Landed:
    """Carry these changes into the real folders. The caller holds the layer's lock.

    `intend` is called once the intent is on disk and before anything is touched: it makes the record. Raises
    WorkspaceMoved, and LandingFailed when nothing could land; what `intend` raises goes through.
    """
    landed = Landed()
    steps = [_Step(number, change) for number, change in enumerate(_in_order(changes))]
    if not steps:
        return landed
    with contextlib.ExitStack() as stack:
        try:
            trees = [stack.enter_context(_Tree(layer, part)) for part in sorted({step.change.part for step in steps})]
            _Intent(layer).begin()
        except OSError as error:
            raise LandingFailed(error.strerror or "?", layer.run) from error
        by_part = {tree.part: tree for tree in trees}
        try:
            intend()
        except BaseException:
            _Intent(layer).end()
            raise
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

    Raises WorkspaceMoved, and LandingFailed when it can do neither now.
    """
    try:
        lines, committed = _Intent(layer).read()
        steps = [_step_of(line) for line in lines]
    except (OSError, LookupError, ValueError, TypeError):
        raise LandingFailed("what it was about to do cannot be read (another version of broker?)", layer.run, undone=False) from None
    with contextlib.ExitStack() as stack:
        try:
            trees = [stack.enter_context(_Tree(layer, part)) for part in range(len(layer.manifest.parts))]
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
            work.mkdir(exist_ok=True)
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

    def open_staging(self, *, again: bool = False) -> None:
        """Open the staging folder; `again`: after a crash, when it may be gone. Raises OSError when it is not ours."""
        if again:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.staging_name, 0o700, dir_fd=self._root)
        self.staging = os.open(self.staging_name, FOLDER, dir_fd=self._root)
        if os.fstat(self.staging).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "somebody else put a folder in the place of the staging folder")

    def holds(self, name: str) -> bool:
        """Whether something of this name is in the staging folder."""
        return lies_in(self.staging, name)

    def remove_staging(self) -> None:
        """Remove the staging folder, with what is in it: staged files, or what was replaced."""
        from pathlib import Path

        remove_tree(Path(f"/proc/self/fd/{self._root}", self.staging_name))


def _stage(tree: _Tree, step: _Step, landed: Landed) -> bool:
    """Have ready what takes a path's place. False: the layer has something else there now."""
    change = step.change
    if change.kind not in (Kind.CREATED, Kind.CHANGED):
        return True
    assert change.new is not None
    try:
        folder, name = tree.upper.parent(change.path)
        # A file with other names in the layer is copied: what stays in the layer must not change with the real one.
        # And one in a folder that the task closed, out of which only root could take it.
        step.in_layer = tree.renames and _is_open(folder) and (
            change.thing is Thing.LINK or (change.thing is Thing.FILE and change.new.links == 1)
        )
        if not step.in_layer:
            _make(tree, step.name, folder, name, change)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        same = change.thing is Thing.FOLDER or Facts.of(found).same_file(change.new)
        if same and change.thing is Thing.LINK:
            same = os.readlink(name, dir_fd=folder) == change.target
    except OSError as error:
        if error.errno not in _CONFLICTS:
            raise
        landed.conflicts.append((change, f"it cannot be read in the layer: {error.strerror}"))
        return False
    if not same:
        landed.conflicts.append((change, "it was changed in the layer meanwhile"))
        return False
    step.staged = found.st_ino if step.in_layer else _facts(step.name, tree.staging).inode
    return True


def _is_open(folder: int) -> bool:
    return os.geteuid() == 0 or bool(os.fstat(folder).st_mode & stat.S_IWUSR)


def _make(tree: _Tree, new: str, folder: int, name: str, change: Change) -> None:
    """Make in the staging folder what is to take a path's place."""
    assert change.new is not None
    if change.thing is Thing.FOLDER:
        os.mkdir(new, 0o700, dir_fd=tree.staging)
        descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=tree.staging)
        try:
            _belong(tree, descriptor, os.stat(name, dir_fd=folder, follow_symlinks=False))
            os.fchmod(descriptor, stat.S_IMODE(change.new.mode) & (0o777 | stat.S_ISGID) | 0o700)
        finally:
            os.close(descriptor)
    elif change.thing is Thing.LINK:
        os.symlink(change.target, new, dir_fd=tree.staging)
        if os.geteuid() == 0:
            os.chown(new, *tree.owner, dir_fd=tree.staging, follow_symlinks=False)
    elif (earlier := tree.links.get(change.new.inode)) is not None:
        os.link(earlier, new, src_dir_fd=tree.staging, dst_dir_fd=tree.staging)
    else:
        _copy(tree, new, folder, name, change.new)
        tree.links[change.new.inode] = new


def _belong(tree: _Tree, descriptor: int, like: os.stat_result) -> None:
    """Give what we made to the task's user, and to the group that it has in the layer (of a setgid folder, say)."""
    if os.geteuid() == 0:
        os.fchown(descriptor, tree.owner[0], like.st_gid)
    elif like.st_gid != os.getegid():
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, -1, like.st_gid)


def _unmark(place: str) -> None:
    """Take overlayfs's own attributes off a file."""
    for attribute in os.listxattr(place, follow_symlinks=False):
        if attribute.startswith(OVERLAYS_OWN):
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
            found = os.fstat(source)
            if os.geteuid() == 0 and found.st_uid != tree.owner[0] and (found.st_nlink > 1 or not found.st_mode & stat.S_IROTH):
                # Root can read it, but the task's user perhaps not: it was linked or moved here to be read.
                raise PermissionError(errno.EPERM, "it belongs to somebody else")
            _fill(source, target)
            _belong(tree, target, found)
            os.fchmod(target, stat.S_IMODE(facts.mode))
            _copy_attributes(source, target)
            os.utime(target, ns=(facts.atime, facts.mtime))
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_attributes(source: int, target: int) -> None:
    """Copy the attributes of the file's own, and its ACL, as far as the other file system keeps any."""
    for attribute in os.listxattr(source):
        if attribute == _ACL or (attribute.startswith("user.") and not attribute.startswith(OVERLAYS_OWN)):
            try:
                os.setxattr(target, attribute, os.getxattr(source, attribute))
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise


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
        landed.done.clear()
        undone = True
        for step in reversed(done):
            try:
                _undo(trees[step.change.part], step)
            except OSError:
                undone = False  # the intent stays, and what was replaced stays in the staging folder
        if undone:
            _remember(layer, trees, steps)
            _forget(layer, trees.values())
        raise LandingFailed(error.strerror or "?", layer.run, undone=undone) from error


def _do(tree: _Tree, step: _Step, *, again: bool) -> str:
    """Do one step. Returns '' or why the path is a conflict; then nothing of it was done."""
    change = step.change
    folder, name = tree.real.parent(change.path)
    if not again and change.kind not in (Kind.MODE, Kind.TIMES) and not _could_change(tree, folder, name):
        return "its folder belongs to somebody else"
    if change.kind is Kind.DELETED:
        return _take_away(tree, step, folder, name, again=again)
    if change.kind in (Kind.MODE, Kind.TIMES):
        return _set_facts(tree, folder, name, change, again=again)
    place, new = tree.source(step)
    if again:
        _complete_swap(tree, step, folder, name)
        if not _is_staged(tree, step):
            return _is_placed(tree, step, folder, name)
        if lies_in(folder, name) and _facts(name, folder).inode == step.staged:  # killed between link and unlink
            os.unlink(new, dir_fd=place)
            return ""
    if change.old is not None and not _facts(name, folder).same_file(change.old):
        return "the real one changed since the task began"
    if step.in_layer and change.marked:
        _unmark(f"/proc/self/fd/{place}/{new}")
    if change.old is None:
        rename(place, new, folder, name)
        return ""
    _swap(tree, step, folder, name)
    if _facts(new, place).same_file(change.old):
        return ""
    _swap(tree, step, folder, name)
    return "the real one changed while it landed"


def _could_change(tree: _Tree, folder: int, name: str) -> bool:
    """Whether the task's user could make, replace or remove this name. Root does no more here than they could.

    What they cannot the task could not either; but another process of theirs can put anything into the layer.
    """
    if os.geteuid() != 0 or tree.owner[0] == 0:
        return True
    facts, (uid, gid) = os.fstat(folder), tree.owner
    if facts.st_uid == uid:
        return True
    bits = stat.S_IWGRP if facts.st_gid == gid or _ACL in os.listxattr(f"/proc/self/fd/{folder}") else stat.S_IWOTH
    if not facts.st_mode & bits:
        return False
    if not facts.st_mode & stat.S_ISVTX or not lies_in(folder, name):
        return True
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == uid


def _swap(tree: _Tree, step: _Step, folder: int, name: str) -> None:
    """Let a path, and what takes its place, change places.

    Where the file system cannot exchange, in three steps, each of which leaves the old and the new one with a name.
    """
    place, new = tree.source(step)
    try:
        rename(place, new, folder, name, RENAME_EXCHANGE)
        return
    except OSError as error:
        if error.errno not in NO_SUCH_FLAG:
            raise
    if not hard_link(folder, name, tree.staging, step.kept):
        os.rename(name, step.kept, src_dir_fd=folder, dst_dir_fd=tree.staging)
    try:
        os.rename(new, name, src_dir_fd=place, dst_dir_fd=folder)
    except OSError:
        _complete_swap(tree, step, folder, name)
        raise
    os.rename(step.kept, new, src_dir_fd=tree.staging, dst_dir_fd=place)


def _complete_swap(tree: _Tree, step: _Step, folder: int, name: str) -> None:
    """Complete or undo an exchange in three steps that ended in the middle."""
    if not tree.holds(step.kept):
        return
    place, new = tree.source(step)
    if not lies_in(place, new):
        os.rename(step.kept, new, src_dir_fd=tree.staging, dst_dir_fd=place)
    elif not lies_in(folder, name):
        os.rename(step.kept, name, src_dir_fd=tree.staging, dst_dir_fd=folder)
    else:
        os.unlink(step.kept, dir_fd=tree.staging)


def _is_staged(tree: _Tree, step: _Step) -> bool:
    """Whether what takes the path's place is still where it was (and not what it replaced)."""
    if not step.in_layer and not tree.holds(step.name):
        return False
    place, new = tree.source(step)
    try:
        return _facts(new, place).inode == step.staged
    except FileNotFoundError:
        return False


def _is_placed(tree: _Tree, step: _Step, folder: int, name: str) -> str:
    """Look, after a crash, at what a step did before it: what it replaced may have changed in between."""
    old = step.change.old
    if not step.in_layer and not tree.holds(step.name):
        # What was replaced is gone already, or somebody removed the staging folder before it was empty.
        there = lies_in(folder, name) and _facts(name, folder).inode == step.staged
        return "" if there else "what was to land is gone from the staging folder"
    place, new = tree.source(step)
    if old is None or not lies_in(place, new) or _facts(new, place).same_file(old):
        return ""
    _swap(tree, step, folder, name)
    return "the real one changed while it landed"


def _take_away(tree: _Tree, step: _Step, folder: int, name: str, *, again: bool) -> str:
    old = step.change.old
    assert old is not None
    if again and tree.holds(step.name):
        taken = _facts(step.name, tree.staging)
        if not old.is_folder and lies_in(folder, name) and _facts(name, folder).inode == taken.inode:
            os.unlink(name, dir_fd=folder)  # killed between link and unlink
    else:
        facts = _facts(name, folder)
        if not (facts.is_folder and facts.inode == old.inode if old.is_folder else facts.same_file(old)):
            return "the real one changed since the task began"
        tree.real.moved(step.change.path)
        try:
            rename(folder, name, tree.staging, step.name)
        except OSError as error:
            if error.errno != errno.EXDEV or not old.is_folder:
                raise
            # The workspace is an overlay itself, which moves no folder of a lower layer.
            os.rmdir(name, dir_fd=folder)
            return ""
        taken = _facts(step.name, tree.staging)
    if old.is_folder:
        if taken.inode == old.inode and _is_empty(tree.staging, step.name):
            return ""
        why = "there is something in it that the task did not delete"
    else:
        if taken.same_file(old):
            return ""
        why = "the real one changed while it landed"
    rename(tree.staging, step.name, folder, name)
    return why


def _set_facts(tree: _Tree, folder: int, name: str, change: Change, *, again: bool) -> str:
    """Give a path another mode, or other times. Root does no more here than the task's user could."""
    assert change.new is not None
    assert change.old is not None
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if os.geteuid() == 0 and found.st_uid != tree.owner[0]:
            return "it belongs to somebody else"
        facts = Facts.of(found)
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


def _is_empty(folder: int, name: str) -> bool:
    """Whether a folder is known to be empty."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        return not os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _undo(tree: _Tree, step: _Step) -> None:
    """Take one step back. What cannot be taken back stays in the staging folder, whose name the error says."""
    change = step.change
    folder, name = tree.real.parent(change.path)
    if change.kind is Kind.DELETED:
        _put_back(tree, step, folder, name)
    elif change.kind in (Kind.MODE, Kind.TIMES):
        assert change.old is not None
        _set_facts(tree, folder, name, change._replace(new=change.old), again=True)
    elif change.old is not None:
        _swap(tree, step, folder, name)
    else:
        tree.real.moved(change.path)
        place, new = tree.source(step)
        rename(folder, name, place, new)
        if change.thing is Thing.FOLDER and not _is_empty(place, new):
            rename(place, new, folder, name)  # somebody put something in it meanwhile: that stays


def _remember(layer: Layer, trees: dict[int, _Tree], steps: list[_Step]) -> None:
    """Note what is as it was but for its ctime, for the next walk to know that nobody else changed it."""
    known = {(part, path): ctime for part, path, ctime in layer.manifest.put_back}
    for change in (step.change for step in steps if step.change.old is not None):
        with contextlib.suppress(OSError):
            folder, name = trees[change.part].real.parent(change.path)
            facts = _facts(name, folder)
            if _is_as_it_was(facts, change):
                known[change.part, change.path] = facts.ctime
    with contextlib.suppress(OSError):
        layer.update(put_back=tuple((part, path, ctime) for (part, path), ctime in known.items()))


def _is_as_it_was(facts: Facts, change: Change) -> bool:
    old = change.old
    assert old is not None
    return facts.same_file(old) or (old.is_folder and (facts.inode, facts.mode) == (old.inode, old.mode))


def _put_back(tree: _Tree, step: _Step, folder: int, name: str) -> None:
    """Undo a deletion."""
    old = step.change.old
    assert old is not None
    if tree.holds(step.name) or not old.is_folder:
        rename(tree.staging, step.name, folder, name)
        return
    os.mkdir(name, 0o700, dir_fd=folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        _belong(tree, descriptor, os.fstat(folder))
        os.fchmod(descriptor, stat.S_IMODE(old.mode))
    finally:
        os.close(descriptor)


def _forget(layer: Layer, trees: Iterable[_Tree]) -> None:
    """The workspace is as it was: take away the staging folders, then the intent."""
    for tree in trees:
        tree.remove_staging()
    _Intent(layer).end()


def _finish(layer: Layer, trees: list[_Tree], done: list[Change]) -> None:
    """Everything is in place. Take what landed out of the layer, then the staging folders, then the intent."""
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
        line["target"], marked=line["marked"], opaque=line["opaque"],
    )  # fmt: skip
    return _Step(line["n"], change, line["staged"], line["in_layer"])
