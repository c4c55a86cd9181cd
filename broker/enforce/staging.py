"""Step 4: before a landing: what takes the place of each path is made ready, on the real tree's file system.

A file of the layer that a rename can carry over stays where it is; of another, a clone or a copy is made in the staging
folder. Nothing real is touched yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Self

from broker.enforce.beneath import FOLDER, Folders, lies_in
from broker.enforce.changes import OVERLAYS_OWN, STAGING, Change, Facts, Kind, Thing, open_part
from broker.enforce.landing_intent import Step
from broker.enforce.layer import Layer, remove_tree

FICLONE = 0x40049409
_CHUNK = 1 << 30
ACL = "system.posix_acl_access"
# A path for which one of these comes is not what the task saw; anything else ends the landing, and undoes it.
CONFLICTS = {
    errno.EEXIST, errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EXDEV, errno.ENOTEMPTY, errno.EACCES,
    errno.EPERM, errno.ENAMETOOLONG, errno.ESTALE,
}  # fmt: skip


class Tree:
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
        """Make the staging folder, and find out whether a rename leads from the layer into it. Raises OSError."""
        os.mkdir(self.staging_name, 0o700, dir_fd=self._root)
        self.open_staging()
        if self.layer.views:
            return  # a mount of its own
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

    def source(self, step: Step) -> tuple[int, str]:
        """Return where the thing lies that takes a path's place, and afterwards what was there."""
        return self.upper.parent(step.change.path) if step.in_layer else (self.staging, step.name)

    def open_staging(self, *, again: bool = False) -> None:
        """Open the staging folder; `again`: after a crash, when it may be gone. Raises OSError when it is not ours."""
        if again:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.staging_name, 0o700, dir_fd=self._root)
        self.staging = os.open(self.staging_name, FOLDER, dir_fd=self._root)
        if os.fstat(self.staging).st_uid != (self.owner[0] if self.layer.views else os.geteuid()):
            raise PermissionError(errno.EPERM, "somebody else put a folder in the place of the staging folder")

    def holds(self, name: str) -> bool:
        """Whether something of this name is in the staging folder."""
        return lies_in(self.staging, name)

    def remove_staging(self) -> None:
        """Remove the staging folder, with what is in it: staged files, or what was replaced."""
        from pathlib import Path

        remove_tree(Path(f"/proc/self/fd/{self._root}", self.staging_name))


def stage(tree: Tree, step: Step) -> str:
    """Have ready what takes a path's place. Returns '', or why the path is a conflict. Raises OSError."""
    change = step.change
    if change.kind not in (Kind.CREATED, Kind.CHANGED):
        return ""
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
        if error.errno not in CONFLICTS:
            raise
        return f"it cannot be read in the layer: {error.strerror}"
    if not same:
        return "it was changed in the layer meanwhile"
    step.staged = found.st_ino if step.in_layer else facts_of(step.name, tree.staging).inode
    return ""


def _is_open(folder: int) -> bool:
    return os.geteuid() == 0 or bool(os.fstat(folder).st_mode & stat.S_IWUSR)


def _make(tree: Tree, new: str, folder: int, name: str, change: Change) -> None:
    """Make in the staging folder what is to take a path's place."""
    assert change.new is not None
    if change.thing is Thing.FOLDER:
        os.mkdir(new, 0o700, dir_fd=tree.staging)
        descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=tree.staging)
        try:
            belong(tree, descriptor, os.stat(name, dir_fd=folder, follow_symlinks=False))
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


def belong(tree: Tree, descriptor: int, like: os.stat_result) -> None:
    """Give what we made to the task's user, and to the group that it has in the layer (of a setgid folder, say)."""
    if os.geteuid() == 0:
        os.fchown(descriptor, tree.owner[0], like.st_gid)
    elif like.st_gid != os.getegid():
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, -1, like.st_gid)


def unmark(place: str) -> None:
    """Take overlayfs's own attributes off a file."""
    for attribute in os.listxattr(place, follow_symlinks=False):
        if attribute.startswith(OVERLAYS_OWN):
            os.removexattr(place, attribute, follow_symlinks=False)


def facts_of(name: str, folder: int) -> Facts:
    return Facts.of(os.stat(name, dir_fd=folder, follow_symlinks=False))


def _copy(tree: Tree, new: str, folder: int, name: str, facts: Facts) -> None:
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
            belong(tree, target, found)
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
        if attribute == ACL or (attribute.startswith("user.") and not attribute.startswith(OVERLAYS_OWN)):
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
