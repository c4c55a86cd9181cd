"""Step 1: what is about to happen.

An operation is a value that describes one thing somebody wants done. It holds no judgement. Text that
came from an untrusted process is kept as `str` decoded with `surrogateescape`, so that bytes which are
not UTF-8 survive the round trip.
"""

from __future__ import annotations

from enum import StrEnum

from broker.values import dataclass


class FileAction(StrEnum):
    """What happens to a path. `write` covers creating and changing: the same label either way."""

    WRITE = "write"
    DELETE = "delete"
    RENAME = "rename"
    LINK = "link"
    SYMLINK = "symlink"
    MKDIR = "mkdir"
    MKNOD = "mknod"
    MODE = "mode"
    OWNER = "owner"
    XATTR = "xattr"
    TRUNCATE = "truncate"
    TIMES = "times"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellText:
    """A text that a shell will read. `dialect` is bash, sh or zsh."""

    text: str
    dialect: str = "bash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """A program start.

    `path` is the absolute path as it was named, `program` the file it resolves to (both empty when only
    an argv is known, as on a command line). `cwd` is absolute. `env` holds only the variables of interest
    (those that change what runs), sorted, as (name, value) pairs.
    """

    argv: tuple[str, ...]
    path: str = ""
    program: str = ""
    cwd: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A change to a path. `other` is the second path of a rename or link, or a symlink's target.

    `old` and `new` are the contents, where they are known (None: not there, or not known; too large is not
    known). A WRITE without `old` creates. `mode` is the file's type and rights (st_mode) afterwards, 0 where
    nobody looked. `attribute` is the name of an extended attribute. `whole`: a folder goes with everything in it
    (a folder that overlayfs made opaque is such a DELETE, and what was put in its place are writes).
    `landing`: the change is about to reach the real workspace, which outlives the task and its confinement.
    """

    action: FileAction
    path: str
    other: str = ""
    old: bytes | None = None
    new: bytes | None = None
    mode: int = 0
    attribute: str = ""
    whole: bool = False
    landing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    """A read of a path."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An attempt to reach a network or socket address."""

    address: str
    port: int = 0
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """A task that wants to start another task."""

    profile: str
    trust: str
    argv: tuple[str, ...]


Operation = ShellText | Exec | FileChange | FileRead | Connection | Delegation
