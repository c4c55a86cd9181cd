"""Step 4: what a task changed: the walk over its layer.

In: a layer, and the real folders below it as they are now. Out: one Change for each path, parents first. The walk
costs by what changed, never by what is there. What is read here was written by the task: nothing is followed, and
what makes no sense is a change that will not land.

overlayfs writes a deletion as a character device 0:0, and a folder that hides the one below with the attribute
`overlay.opaque` (Documentation/filesystems/overlayfs.rst). Of a file that it copied up it keeps where from
(`overlay.origin`, a file handle): that tells a file that was made from one that was renamed or linked, and from one
whose original is gone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from broker.decide.agent import is_among
from broker.enforce.beneath import FOLDER, Folders, file_handle, open_beneath
from broker.enforce.layer import Layer
from broker.enforce.opaque import OPAQUE
from broker.errors import BrokerError

# Two files of one size are compared byte by byte up to this size; larger ones count as changed.
COMPARED = 16 << 20
_BLOCK = 1 << 18
# What a change takes of a journal, and a tenth of what it takes of memory: some million of them is the most.
PER_CHANGE = 150
MOST_TAKEN = 200 << 20
# A landing's own folder, at the top of a real one: no task's business, even when a landing that died left it there.
STAGING = ".broker-landing-"
_WHITEOUT = ("user.overlay.whiteout", "trusted.overlay.whiteout")
_ORIGIN = ("user.overlay.origin", "trusted.overlay.origin")
_ORIGIN_HEAD = 21  # struct ovl_fb: five bytes and the file system's uuid, then the handle (fs/overlayfs/overlayfs.h)
# Never written by a kernel with our mount's options; a layer that has them is not what we made.
_FOREIGN = ("overlay.redirect", "overlay.metacopy")
OVERLAYS_OWN = ("user.overlay.", "trusted.overlay.")
# Attributes that give rights never land. A label that the system gives every file is none of those.
_RIGHTS = ("security.", "trusted.")
_LABELS = ("security.selinux", *OVERLAYS_OWN)


class Kind(StrEnum):
    """What happened to a path."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    MODE = "mode"
    TIMES = "times"


class Thing(StrEnum):
    """What a path is, or was."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    SPECIAL = "special"


class Facts(NamedTuple):
    """What lstat(2) says of a path. Times in nanoseconds."""

    mode: int
    inode: int
    size: int
    mtime: int
    atime: int
    ctime: int
    links: int

    @classmethod
    def of(cls, found: os.stat_result) -> Facts:
        """Take what is needed of a stat_result."""
        return cls(
            found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_atime_ns, found.st_ctime_ns,
            found.st_nlink,
        )  # fmt: skip

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)

    def same_file(self, other: Facts) -> bool:
        """Whether this is still the same file with the same content (a rename changes its ctime: that does not count)."""
        return (self.mode, self.inode, self.size, self.mtime) == (other.mode, other.inode, other.size, other.mtime)


class Change(NamedTuple):
    """One changed path. `path` is below the part's folder.

    `new` and `old` are the facts of it in the layer and in the real folder (None: nothing there). `target`
    is a link's text. `conflict` says why it cannot land: the real file is not what the task saw. `never` says why it
    can never land.
    """

    part: int
    path: str
    kind: Kind
    thing: Thing
    new: Facts | None
    old: Facts | None
    target: str = ""
    conflict: str = ""
    never: str = ""
    marked: bool = False  # whether overlayfs left attributes of its own on the file
    source: str = ""  # the path that a file was renamed or linked from
    opaque: str = ""  # the topmost folder above it, or it itself, that hides what is below it


class WorkspaceMoved(BrokerError):
    """The real folder is not the one that the task saw."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not the folder that the task saw any more. Put it back, or discard the changes")
        self.path = path


def open_part(layer: Layer, number: int) -> int:
    """Open the folder that a part's changes land in. Raises WorkspaceMoved when it is another one now."""
    if layer.views:
        return os.dup(layer.views[number])  # the parent's guard opened it: it is the parent's view, whatever its path leads to
    path, device, inode = layer.manifest.parts[number]
    try:
        descriptor = os.open(path, FOLDER)
    except OSError:
        raise WorkspaceMoved(path) from None
    facts = os.fstat(descriptor)
    if (facts.st_dev, facts.st_ino) != (device, inode):
        os.close(descriptor)
        raise WorkspaceMoved(path)
    return descriptor


class TooManyChanges(BrokerError):
    """More paths were changed than can be looked at."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the task changed too many paths to be looked at. Run: broker discard {run}")
        self.run = run


def changes_of(layer: Layer) -> Iterator[Change]:
    """Walk a layer, past what an agent keeps for itself there. Raises WorkspaceMoved, TooManyChanges, and OSError when the layer cannot be read."""
    taken = 0
    session = layer.manifest.session
    for change in _changes_of(layer):
        if session and change.part == 0 and change.kind is not Kind.DELETED and is_among(change.path, session):
            continue
        taken += PER_CHANGE + len(change.path)
        if taken > MOST_TAKEN:
            raise TooManyChanges(layer.run)
        yield change


def _changes_of(layer: Layer) -> Iterator[Change]:
    for number in range(len(layer.manifest.parts)):
        real_root = open_part(layer, number)
        upper_root = os.open(layer.upper(number), FOLDER)
        walk = _Walk(layer, number, Folders(upper_root), Folders(real_root))
        try:
            for change in walk.everything():
                ours = change.path.startswith(STAGING)
                if ours or walk.opaque:
                    yield change._replace(opaque=walk.opaque, never="a folder of this name is broker's own" if ours else change.never)
                else:
                    yield change
        finally:
            walk.upper.close()
            walk.real.close()
            os.close(upper_root)
            os.close(real_root)


class _Walk:
    def __init__(self, layer: Layer, part: int, upper: Folders, real: Folders) -> None:
        self.part, self.upper, self.real = part, upper, real
        self.opaque = ""  # the topmost opaque folder that what is yielded lies in
        self.began, self.root = layer.manifest.began, layer.manifest.parts[part][0]
        self._put_back = {path: ctime for where, path, ctime in layer.manifest.put_back if where == part}
        # A view has no handles of its own: those of the layers that it is made of count.
        self._below = (*layer.between[part], layer.real(part)) if layer.views else ()
        self._originals: dict[str, Facts] = {}  # the real files that the task changed or deleted
        self._moved: list[tuple[Change, bytes, str]] = []  # new names of real files: what they are a copy of, what hides them

    def everything(self) -> Iterator[Change]:
        """Walk it all. Where the new names of real files come from is known at the end."""
        yield from self.folder("", there=True)
        if not self._moved:
            return
        handles = {self._handle_of(path): path for path in self._originals}
        # In a user namespace of its own, or of files without handles, overlayfs keeps an empty one: then time and size tell
        # a file that was only renamed, and of one that was changed as well nobody can say which it was.
        alike = {(facts.size, facts.mtime): path for path, facts in self._originals.items()}
        for change, origin, opaque in self._moved:
            assert change.new is not None
            self.opaque = opaque
            source = handles.get(origin[_ORIGIN_HEAD:]) if origin else alike.get((change.new.size, change.new.mtime))
            gone = source is None and (bool(origin) or not self._originals)
            yield change._replace(source=source or "", conflict="the file that the task changed is gone" if gone else "")

    def _handle_of(self, path: str) -> bytes:
        """Return what overlayfs calls a file by that lies below it: the topmost of that path."""
        above, _, name = path.rpartition("/")
        for folder in self._below:
            with contextlib.suppress(OSError):
                top = os.open(folder, FOLDER)
                try:
                    here = open_beneath(top, above)  # a task above may put a link in the way
                finally:
                    os.close(top)
                try:
                    os.stat(name, dir_fd=here, follow_symlinks=False)
                    return _handle(path, here, name)
                finally:
                    os.close(here)
        return _handle(path, *self.real.parent(path))

    def folder(self, top: str, *, there: bool) -> Iterator[Change]:
        """Walk a folder of the layer; `there`: the real one is a folder too.

        What is made in an opaque folder is not marked as opaque again (the kernel merges nothing there): it is, too.
        """
        pending = [(top, there, "")]
        while pending:
            path, there, opaque = pending.pop()
            try:
                entries = _entries(self.upper.at(path))
                if there:
                    self.real.at(path)
            except OSError as error:
                yield self._unreadable(path, error)
                continue
            if not opaque and _has(self.upper.at(path), "", OPAQUE) == b"y":
                opaque = path
            self.opaque = opaque
            if there and opaque:
                yield from self._hidden(path, {entry.name for entry in entries})
            for entry in entries:
                below = f"{path}/{entry.name}" if path else entry.name
                new = Facts.of(entry.stat(follow_symlinks=False))
                real = self.real.at(path) if there else -1
                old = _lstat(entry.name, real) if there else None
                if new.is_folder:
                    old_folder = old is not None and old.is_folder
                    yield from self._one_folder(below, new, old, old_folder=old_folder)
                    pending.append((below, old_folder, opaque))
                    continue
                try:
                    yield from self._one(below, entry.name, self.upper.at(path), real, new, old)
                except OSError as error:  # it cannot be read, or has become another since it was listed
                    yield self._unreadable(below, error)

    def _one_folder(
        self, path: str, new: Facts, old: Facts | None, *, old_folder: bool
    ) -> Iterator[Change]:
        if old is not None and not old_folder:
            yield from self._deleted(path, old)
            old = None
        if old is None:
            special = new.mode & (stat.S_ISUID | stat.S_ISVTX) or (new.mode & stat.S_ISGID and not self._passes_its_group_on(path))
            never = "it has special mode bits" if special else ""
            yield Change(self.part, path, Kind.CREATED, Thing.FOLDER, new, None, never=never)
        elif stat.S_IMODE(new.mode) != stat.S_IMODE(old.mode):
            special = (new.mode & ~old.mode) & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
            yield Change(
                self.part, path, Kind.MODE, Thing.FOLDER, new, old, conflict=self._since(path, old),
                never="it gives special mode bits" if special else "",
            )  # fmt: skip

    def _passes_its_group_on(self, path: str) -> bool:
        """Whether the folder above has setgid, which the system gives to what is made in it; the real one, if there is one."""
        above = path.rpartition("/")[0]
        try:
            folder = self.real.at(above)
        except OSError:
            folder = self.upper.at(above)
        return bool(os.fstat(folder).st_mode & stat.S_ISGID)

    def _one(
        self, path: str, name: str, upper: int, real: int, new: Facts, old: Facts | None
    ) -> Iterator[Change]:
        """Say what one entry of the layer that is no folder means."""
        mode = new.mode
        if (stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and not new.size)) and is_whiteout(name, upper):
            if old is not None:
                yield from self._deleted(path, old)
            return
        if old is not None and stat.S_IFMT(old.mode) != stat.S_IFMT(mode):
            yield from self._deleted(path, old)
            old = None
        if stat.S_ISREG(mode):
            yield from self._file(path, name, upper, real, new, old)
        elif stat.S_ISLNK(mode):
            target = os.readlink(name, dir_fd=upper)
            if old is None or os.readlink(name, dir_fd=real) != target:
                kind = Kind.CREATED if old is None else Kind.CHANGED
                inside = _stays_inside(path, target, self.root) and self._leads_inside(path, target)
                never = "" if inside else f"it points out of the workspace, to {target}"
                yield Change(
                    self.part, path, kind, Thing.LINK, new, old, target, conflict=self._since(path, old), never=never
                )
        else:
            what = "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "a pipe or socket"
            yield Change(self.part, path, Kind.CREATED, Thing.SPECIAL, new, old, never=f"it is {what}")

    def _file(
        self, path: str, name: str, upper: int, real: int, new: Facts, old: Facts | None
    ) -> Iterator[Change]:
        names = os.listxattr(f"/proc/self/fd/{upper}/{name}", follow_symlinks=False)
        conflict, never = self._since(path, old), ""
        if new.mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
            never = "it has special mode bits (setuid, setgid or sticky)"
        for attribute in names:
            if attribute.startswith(_RIGHTS) and not attribute.startswith(_LABELS):
                never = never or f"it has the attribute {attribute}"
            if attribute.endswith(_FOREIGN):
                never = f"its layer has {attribute}, which nothing of ours writes"
        if old is None:
            made = Change(self.part, path, Kind.CREATED, Thing.FILE, new, None, never=never, marked=bool(names))
            origin = _has(upper, name, _ORIGIN)
            if origin is None:
                yield made
            else:
                self._moved.append((made, origin, self.opaque))
            return
        self._originals[path] = old
        same = new.size == old.size and new.size <= COMPARED and _same_bytes(name, upper, real)
        # An inode with other names may be used out of the workspace: it gets a successor, and stays as it is itself.
        shared = old.links > 1
        if not same or _attributes(upper, name) != _attributes(real, name):
            kind = Kind.CHANGED
        elif stat.S_IMODE(new.mode) != stat.S_IMODE(old.mode):
            kind = Kind.CHANGED if shared else Kind.MODE
        elif new.mtime != old.mtime:
            kind = Kind.CHANGED if shared else Kind.TIMES
        else:
            return
        marked = bool(names)
        yield Change(self.part, path, kind, Thing.FILE, new, old, conflict=conflict, never=never, marked=marked)

    def _hidden(self, path: str, kept: set[str]) -> Iterator[Change]:
        """The folder was emptied, or removed and made again: what the real one has besides is deleted."""
        for name in sorted(entry.name for entry in _entries(self.real.at(path))):
            old = _lstat(name, self.real.at(path))
            if name not in kept and old is not None:
                yield from self._deleted(f"{path}/{name}" if path else name, old)

    def _deleted(self, top: str, old: Facts) -> Iterator[Change]:
        """Everything that went with a deleted path: each of it is judged. Folders come after what was in them."""
        pending = [(top, old, False)]
        while pending:
            path, facts, emptied = pending.pop()
            if not facts.is_folder:
                thing = Thing.LINK if stat.S_ISLNK(facts.mode) else Thing.FILE if stat.S_ISREG(facts.mode) else Thing.SPECIAL
                if thing is Thing.FILE:
                    self._originals[path] = facts
                yield Change(self.part, path, Kind.DELETED, thing, None, facts, conflict=self._since(path, facts))
            elif emptied:
                yield Change(self.part, path, Kind.DELETED, Thing.FOLDER, None, facts)
            else:
                pending.append((path, facts, True))
                try:
                    folder = self.real.at(path)
                    names = sorted((entry.name for entry in _entries(folder)), reverse=True)
                except OSError as error:
                    yield self._unreadable(path, error)
                    continue
                for name in names:
                    below = _lstat(name, folder)
                    if below is not None:
                        pending.append((f"{path}/{name}", below, False))

    def _leads_inside(self, path: str, target: str) -> bool:
        """Whether a link's text leads out through links that are in the real folder already."""
        where = os.path.realpath(os.path.join(self.root, os.path.dirname(path), target))
        return where == self.root or where.startswith(self.root + "/")

    def _since(self, path: str, old: Facts | None) -> str:
        if old is not None and old.ctime > self.began and self._put_back.get(path) != old.ctime:
            return "the real one changed since the task began"
        return ""

    def _unreadable(self, path: str, error: OSError) -> Change:
        why = f"it cannot be looked at: {error.strerror}"
        return Change(self.part, path, Kind.CHANGED, Thing.FOLDER, None, None, never=why)


def _entries(folder: int) -> list[os.DirEntry[str]]:
    """List an O_PATH folder, by name. Raises OSError."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return sorted(_statted(readable), key=lambda entry: entry.name)
    finally:
        os.close(readable)


def _statted(folder: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)  # kept in the entry: the descriptor will be gone
            yield entry


def _lstat(name: str, folder: int) -> Facts | None:
    try:
        return Facts.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _has(folder: int, name: str, attributes: tuple[str, ...]) -> bytes | None:
    path = f"/proc/self/fd/{folder}/{name}"
    for attribute in attributes:
        try:
            return os.getxattr(path, attribute, follow_symlinks=not name)
        except OSError:
            continue
    return None


def _attributes(folder: int, name: str) -> dict[str, bytes]:
    """Return a file's extended attributes that are its own: not the overlay's, not the system's label."""
    place = f"/proc/self/fd/{folder}/{name}"
    try:
        names = os.listxattr(place, follow_symlinks=False)
        return {one: os.getxattr(place, one, follow_symlinks=False) for one in names if not one.startswith(_LABELS)}
    except OSError:  # the file system has none
        return {}


def is_whiteout(name: str, folder: int) -> bool:
    """Whether an entry of a layer says that the real one is deleted. Raises OSError when it is gone."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == 0
    return stat.S_ISREG(found.st_mode) and found.st_size == 0 and _has(folder, name, _WHITEOUT) is not None


def _handle(path: str, folder: int, name: str) -> bytes:
    """Return what the kernel calls a file by, whatever its name; of one that is gone, its path."""
    try:
        return file_handle(folder, name)
    except OSError:
        return os.fsencode(path)


def _stays_inside(path: str, target: str, root: str) -> bool:
    """Whether a link's text, read by its letters, leads to somewhere below `root`; the link is at `path` in it.

    Every component may itself be a link, so `..` is allowed only in front.
    """
    if target.startswith("/"):
        return target.startswith(root + "/") and ".." not in target.split("/")
    depth = path.count("/")
    words = [word for word in target.split("/") if word not in ("", ".")]
    ups = 0
    while ups < len(words) and words[ups] == "..":
        ups += 1
    return ups <= depth and ".." not in words[ups:]


def _same_bytes(name: str, folder: int, other: int) -> bool:
    """Whether two files of one size hold the same."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        one = os.open(name, flags, dir_fd=folder)
    except OSError:
        return False
    try:
        two = os.open(name, flags, dir_fd=other)
    except OSError:
        os.close(one)
        return False
    try:
        while True:
            block = os.read(one, _BLOCK)
            if block != os.read(two, _BLOCK):
                return False
            if not block:
                return True
    finally:
        os.close(one)
        os.close(two)
