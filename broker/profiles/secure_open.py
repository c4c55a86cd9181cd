"""Read an operator's file, and refuse it unless only the operator could have written it.

In: an absolute path, and the workspace's folder. Out: the file's bytes and its resolved path. Every
component is opened by descriptor from `/` down, and what is judged is what was opened, so nothing can be
swapped between the look and the read. Symbolic links are followed here, by hand, because whoever owns a
link, or the folder that it lies in, decides where it leads.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from broker.profiles.errors import (
    ProfileInvalid,
    ProfileInWorkspace,
    ProfileOwnedByOthers,
    ProfileUnreadable,
    ProfileWritableByOthers,
)
from broker.values import dataclass

# No profile comes near it; what is larger is a mistake or an attack on the parser.
LARGEST = 1 << 20

_MOST_LINKS = 40  # as the kernel, path_resolution(7)
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a file must satisfy. `others_may_write` is for files that are part of the program itself."""

    workspace: Path | None = None
    remedy_folder: Path = Path("/etc/broker/profiles")
    others_may_write: bool = False


@dataclass(slots=True)
class _Walk:
    """The way down to a file: open folders, and the path they make."""

    wanted: Path
    rules: Rules
    workspace: Identity | None
    folders: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def here(self) -> Path:
        return Path("/", *self.names)


def read_operator_file(path: Path, rules: Rules) -> tuple[bytes, Path]:
    """Return the content of the file at `path`, and the path it was really found at.

    Raises ProfileError: ProfileInWorkspace, ProfileWritableByOthers, ProfileOwnedByOthers,
    ProfileUnreadable, or ProfileInvalid for what is no regular file or is too large.
    """
    with _opened(path, rules, folder=False) as (descriptor, found):
        content = _read(descriptor, path)
    return content, found


def list_operator_folder(path: Path, rules: Rules) -> list[str]:
    """Return the names in the folder at `path`, sorted; the folder is judged like a file in it.

    Raises FileNotFoundError if there is no such folder, and what `read_operator_file` raises.
    """
    with _opened(path, rules, folder=True) as (descriptor, _):
        try:
            return sorted(os.listdir(descriptor))
        except OSError as error:
            raise unreadable(path, error) from error


@contextmanager
def _opened(path: Path, rules: Rules, *, folder: bool) -> Iterator[tuple[int, Path]]:
    walk = _Walk(wanted=path, rules=rules, workspace=_identity(rules.workspace))
    try:
        descriptor = _descend(walk, folder=folder)
        try:
            yield descriptor, walk.here
        finally:
            os.close(descriptor)
    finally:
        for opened in walk.folders:
            os.close(opened)


def _identity(workspace: Path | None) -> Identity | None:
    if workspace is None:
        return None
    try:
        found = os.stat(workspace)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _descend(walk: _Walk, *, folder: bool) -> int:
    """Open the wanted file or folder, judging each step. `walk` then holds the resolved path."""
    walk.folders.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    _judge(walk, os.fstat(walk.folders[-1]), walk.here)
    ahead = [part for part in reversed(walk.wanted.parts) if part != "/"]
    links = 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            _go_up(walk)
            continue
        look = _look(walk, name)
        try:
            status = os.fstat(look)
            walk.names.append(name)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                _judge_link(walk, status, links)
                ahead.extend(_link_parts(walk, look))
                continue
            if ahead or folder:
                _judge_is_folder(walk, status)
            _judge(walk, status, walk.here)
            if not ahead:
                return _reopen(walk, name, status)
            walk.folders.append(os.dup(look))
        finally:
            os.close(look)
    # The path ended in a folder by way of a link to `/` or of `..`.
    if not folder:
        raise ProfileInvalid(walk.wanted, "it is a folder, not a file")
    _judge(walk, os.fstat(walk.folders[-1]), walk.here, holds_profiles=True)
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=walk.folders[-1])


def _go_up(walk: _Walk) -> None:
    if walk.names:
        walk.names.pop()
        os.close(walk.folders.pop())


def _look(walk: _Walk, name: str) -> int:
    try:
        return os.open(name, _LOOK, dir_fd=walk.folders[-1])
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(walk.here / name, error) from error


def _link_parts(walk: _Walk, look: int) -> list[str]:
    """Return the link's target, last component first, and step back to where it leads from."""
    target = os.readlink("", dir_fd=look)
    walk.names.pop()
    if target.startswith("/"):
        while walk.names:
            _go_up(walk)
    return [part for part in reversed(target.split("/")) if part not in {"", "."}]


def _reopen(walk: _Walk, name: str, looked_at: os.stat_result) -> int:
    """Open for reading what was looked at. O_NONBLOCK: a FIFO must not hold us up."""
    if not (stat.S_ISREG(looked_at.st_mode) or stat.S_ISDIR(looked_at.st_mode)):
        raise ProfileInvalid(walk.wanted, "it is not a regular file")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=walk.folders[-1])
    except OSError as error:
        raise unreadable(walk.here, error) from error
    opened = os.fstat(descriptor)
    if (opened.st_dev, opened.st_ino) != (looked_at.st_dev, looked_at.st_ino):
        os.close(descriptor)
        raise ProfileInvalid(walk.wanted, "it was replaced while it was being opened. Try again")
    try:
        # INVARIANT: the mode and owner that count are those of the descriptor that is read.
        is_folder = stat.S_ISDIR(opened.st_mode)
        _judge(walk, opened, walk.here, holds_profiles=is_folder)
        if not is_folder:
            _judge(walk, os.fstat(walk.folders[-1]), walk.here.parent, holds_profiles=True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _judge_is_folder(walk: _Walk, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise ProfileUnreadable(walk.here, "it is not a folder", "Check the path")


def _judge_link(walk: _Walk, status: os.stat_result, links: int) -> None:
    if links > _MOST_LINKS:
        raise ProfileUnreadable(walk.wanted, "too many symbolic links", "Name the file itself")
    if not walk.rules.others_may_write and status.st_uid not in {0, os.geteuid()}:
        raise ProfileOwnedByOthers(walk.here, status.st_uid, os.geteuid(), walk.wanted, link=True)


def _judge(walk: _Walk, status: os.stat_result, path: Path, *, holds_profiles: bool = False) -> None:
    """Refuse a file, or a folder on the way, that the task or another user could change.

    The group bits stand for an access list's mask as well (acl(5)), so they cover what setfacl granted.
    """
    if walk.workspace == (status.st_dev, status.st_ino):
        assert walk.rules.workspace is not None
        raise ProfileInWorkspace(walk.wanted, walk.rules.workspace, walk.rules.remedy_folder)
    if walk.rules.others_may_write:
        return
    if status.st_uid not in {0, os.geteuid()}:
        raise ProfileOwnedByOthers(path, status.st_uid, os.geteuid(), walk.wanted)
    mode = stat.S_IMODE(status.st_mode)
    # In a sticky folder such as /tmp others can neither remove nor rename what is ours, and what follows on
    # the way must be ours. But they can add files: the folder that holds the profiles must not be one.
    sticky_on_the_way = stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX and not holds_profiles
    if mode & 0o022 and not sticky_on_the_way:
        raise ProfileWritableByOthers(path, mode, walk.wanted)


def _read(descriptor: int, path: Path) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise ProfileInvalid(path, "it is a folder, not a file")
    content = bytearray()
    while chunk := os.read(descriptor, LARGEST + 1 - len(content)):
        content += chunk
        if len(content) > LARGEST:
            raise ProfileInvalid(path, f"it is larger than {LARGEST} bytes; no profile file needs that")
    return bytes(content)


def unreadable(path: Path, error: OSError) -> ProfileUnreadable:
    """Return the error for a path that the kernel will not open."""
    why = os.strerror(error.errno or errno.EIO).lower()
    remedy = f"Check it with: ls -ld {str(path)!r}"
    if error.errno in {errno.EACCES, errno.EPERM}:
        remedy = "Ask its owner for the right to read it, or run as that user"
    return ProfileUnreadable(path, why, remedy)
