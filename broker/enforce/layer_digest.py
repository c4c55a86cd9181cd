"""Step 4: one digest for all that a task changed, so that what was seen of its workspace can be bound to it.

In: a layer, while its task runs or afterwards. Out: SHA-256 over all of that: paths, modes, contents, attributes, links, what is
gone; over what it would land on (the real folders, and since when); and, for a sub-task, over the same of the tasks above.
What never lands (pipes, links that point out) is a part of it too: a check that succeeded with its help must not count once it
is gone. Times are none. What is read here was written by the task: nothing is followed.

Contents are read again only when inode, ctime or size of a file are not what they were. That is for looking; whoever
decides something asks without, because what a process writes to memory that it shares with a file changes none of the three.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from dataclasses import field
from typing import Protocol

from broker.enforce.beneath import FOLDER, Folders
from broker.enforce.changes import OVERLAYS_OWN, Change, Kind, Thing, changes_of
from broker.enforce.layer import CLOCK_REALTIME_COARSE, Layer
from broker.errors import BrokerError
from broker.values import dataclass

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SMALL = 1 << 17
_NOT_ITS_OWN = (*OVERLAYS_OWN, "security.", "trusted.")
_SETTLED = 1_000_000_000  # nanoseconds after which another write cannot have the same ctime: file systems count in steps


class Digested(Protocol):
    """What has a digest that may change."""

    def now(self, *, cached: bool = True) -> str:
        """Return it, in hexadecimal digits. Raises BrokerError when it cannot be made."""


@dataclass(slots=True)
class LayerDigest:
    """The digest of one task's workspace. Safe to use from several threads, each of which makes it anew."""

    layer: Layer
    above: Digested | None = None  # of the task whose view this one's lies on
    _known: dict[tuple[int, int], tuple[int, int, bytes]] = field(default_factory=dict)  # (part, inode): ctime, size, hash

    def now(self, *, cached: bool = True) -> str:
        """Return the digest of the workspace as it is. Raises BrokerError when it cannot be looked at."""
        whole = hashlib.sha256(repr((self.layer.manifest.parts, self.layer.manifest.began)).encode("utf-8", "surrogateescape"))
        if self.above is not None:
            whole.update(self.above.now(cached=cached).encode("ascii"))
        known = dict(self._known) if cached else {}
        seen: dict[tuple[int, int], tuple[int, int, bytes]] = {}
        uppers: dict[int, Folders] = {}
        try:
            lines = sorted(self._lines(known, seen, uppers))
        except OSError as error:
            raise BrokerError(f"the workspace cannot be looked at: {error.strerror}") from error
        finally:
            for folders in uppers.values():
                folders.close()
                os.close(folders.root)
        self._known = seen
        for line in lines:
            whole.update(len(line).to_bytes(8, "big") + line)
        return whole.hexdigest()

    def _lines(
        self, known: dict[tuple[int, int], tuple[int, int, bytes]], seen: dict[tuple[int, int], tuple[int, int, bytes]],
        uppers: dict[int, Folders],
    ) -> list[bytes]:  # fmt: skip
        lines = []
        for change in changes_of(self.layer):
            if change.kind is Kind.TIMES:
                continue
            what = _what(change) + change.never.encode("utf-8", "surrogateescape")
            if change.thing is Thing.FILE and change.new is not None and change.kind is not Kind.MODE:
                key = change.part, change.new.inode
                entry = known.get(key)
                if entry is None or entry[:2] != (change.new.ctime, change.new.size):
                    if change.part not in uppers:
                        uppers[change.part] = Folders(os.open(self.layer.upper(change.part), FOLDER))
                    entry = change.new.ctime, change.new.size, _content(uppers[change.part], change)
                if time.time_ns() - change.new.ctime > _SETTLED:
                    seen[key] = entry
                what += entry[2]
            lines.append(b"%d/%s\0%s" % (change.part, os.fsencode(change.path), what))
        return lines

    def written_since(self, moment: int) -> int:
        """Count the files of the layer that were written at `moment` (`mark`) or later, whatever is in them now."""
        count = 0
        for number in range(len(self.layer.manifest.parts)):
            with contextlib.suppress(OSError):  # deeper than there are descriptors: then it is counted so far
                for _, _, names, folder in os.fwalk(self.layer.upper(number)):
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            count += os.stat(name, dir_fd=folder, follow_symlinks=False).st_ctime_ns >= moment
        return count


@dataclass(frozen=True, slots=True)
class ReadOnlyDigest:
    """The digest of a workspace that its task cannot change: it changes with that of the task above, if there is one."""

    path: str
    above: Digested | None = None

    def now(self, *, cached: bool = True) -> str:
        """Return it."""
        found = os.stat(self.path)
        whole = hashlib.sha256(repr((self.path, found.st_dev, found.st_ino)).encode("utf-8", "surrogateescape"))
        if self.above is not None:
            whole.update(self.above.now(cached=cached).encode("ascii"))
        return whole.hexdigest()

    def written_since(self, moment: int) -> int:
        """Nothing is."""
        del moment
        return 0


def mark() -> int:
    """Return the time that file systems give to what is written now, in nanoseconds."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)


def _what(change: Change) -> bytes:
    """Return what is there now, but for a file's content."""
    if change.new is None:
        return b"gone"
    mode = b"%o" % stat.S_IMODE(change.new.mode)
    match change.thing:
        case Thing.LINK:
            return b"link " + os.fsencode(change.target)
        case Thing.FOLDER:
            return b"folder " + mode
        case _:
            return b"file " + mode + (b" as it was" if change.kind is Kind.MODE else b" %d " % change.new.size)


def _attributes(descriptor: int) -> bytes:
    """Return a file's own extended attributes (its access list, too), which land with it."""
    try:
        names = [name for name in os.listxattr(descriptor) if not name.startswith(_NOT_ITS_OWN)]
        return repr(sorted((name, os.getxattr(descriptor, name)) for name in names)).encode() if names else b""
    except OSError:  # the file system has none
        return b""


def _content(upper: Folders, change: Change) -> bytes:
    """Return the hash of a file's content; of one that cannot be read, what changes whenever it does."""
    assert change.new is not None
    try:
        folder, name = upper.parent(change.path)
        descriptor = os.open(name, _FLAGS, dir_fd=folder)
        with open(descriptor, "rb", buffering=0) as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                small = change.new.size < _SMALL  # most are, and a buffer for each costs more than to read it
                found = hashlib.sha256(file.read()) if small else hashlib.file_digest(file, "sha256")
                return found.digest() + _attributes(descriptor)
    except OSError:
        pass
    return b"unread %d %d" % (change.new.inode, change.new.ctime)
