"""Step 4: paths below a folder, and nowhere else. Every call here goes through descriptors and follows no link.

The Python library has no openat2 and no renameat2; these are the two system calls, and the few lines around them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_X86 = os.uname().machine == "x86_64"
_OPENAT2 = 437
_RENAMEAT2 = 316 if _X86 else 276
_SETGROUPS = 116 if _X86 else 159

AT_FDCWD = -100
# openat2(2)
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
# rename(2)
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def open_beneath(folder: int, path: str, flags: int = FOLDER) -> int:
    """Open a path below a folder, on the same mount, through no link (openat2(2), Linux 5.6).

    Raises OSError: ELOOP when a component is a link, EXDEV when it leads out or onto another mount.
    """
    return _open(folder, path, flags, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV)


def open_inside(root: int, path: str, flags: int = os.O_PATH | os.O_CLOEXEC) -> int:
    """Open an absolute path as a process would whose root is this folder: links are followed, and lead nowhere else.

    The links of /proc that are no paths are not followed (openat2(2), RESOLVE_IN_ROOT). Raises OSError.
    """
    return _open(root, path, flags, RESOLVE_IN_ROOT)


def path_inside(root: int, descriptor: int) -> str:
    """Return where something that was opened inside lies there, links followed. Raises OSError."""
    path, base = (os.readlink(f"/proc/self/fd/{one}") for one in (descriptor, root))
    return path if base == "/" else path.removeprefix(base)


@contextlib.contextmanager
def file_user(uid: int, gid: int) -> Iterator[None]:
    """Have this thread reach files as another user does, for as long as it lasts (setfsuid(2)). Only root can.

    Without our supplementary groups, which the other one does not have. Raises OSError when the kernel did not do it.
    """
    own = os.geteuid(), os.getegid(), os.getgroups()
    try:
        _become(uid, gid, [])
        yield
    finally:
        _become(*own)


def _become(uid: int, gid: int, groups: list[int]) -> None:
    # The system call itself is this thread's alone; the C library's would have all threads make it.
    if _syscall(_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    # In this order both ways: root may change the group while it is root, and as itself again it may as well.
    for call, wanted in ((_libc.setfsgid, gid), (_libc.setfsuid, uid)):
        call(wanted)
        if call(-1) != wanted:  # the call has no error: it is asked what came of it
            raise PermissionError(errno.EPERM, "the kernel does not let files be reached as another user")


def open_plain(path: str, flags: int = FOLDER) -> int:
    """Open an absolute path that holds no link. Raises OSError: ELOOP when one of its names has become a link."""
    return _open(AT_FDCWD, path, flags, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)


def _open(folder: int, path: str, flags: int, resolve: int) -> int:
    how = _How(flags, 0, resolve)
    name = os.fsencode(path or ".")
    while True:
        found = _syscall(_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return int(found)
        if ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN):  # EAGAIN: something above was renamed meanwhile
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


# What a file system answers that does not know a flag of renameat2, and one that makes no hard links (or not this one).
NO_SUCH_FLAG = (errno.EINVAL, errno.ENOSYS)
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def rename(folder: int, name: str, other: int, new: str, flags: int = RENAME_NOREPLACE) -> None:
    """Rename between two open folders: replacing nothing, or exchanging the two (renameat2(2)).

    NFS, 9p, exFAT and old FUSE file systems know neither flag. Where nothing is to be replaced a hard link refuses
    just as well; killed in between, the file has both names. To exchange is left to the caller, who knows what for.
    """
    if not _syscall(_RENAMEAT2, folder, os.fsencode(name), other, os.fsencode(new), flags):
        return
    error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name, None, new)
    if flags != RENAME_NOREPLACE or error.errno not in NO_SUCH_FLAG:
        raise error
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode) and hard_link(folder, name, other, new):
        os.unlink(name, dir_fd=folder)
        return
    if lies_in(other, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)


def hard_link(folder: int, name: str, other: int, new: str) -> bool:
    """Give a file a second name, replacing nothing. False: the file system makes no such links."""
    try:
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=other, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return False
    return True


def lies_in(folder: int, name: str) -> bool:
    """Whether there is something of this name in an open folder."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class _Handle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128))  # MAX_HANDLE_SZ


def file_handle(folder: int, name: str) -> bytes:
    """Return what the file system calls a file by, the same under all its names (name_to_handle_at(2)).

    Raises OSError; EOPNOTSUPP where the file system has no such thing.
    """
    handle, mount = _Handle(size=128), ctypes.c_int()
    if _libc.name_to_handle_at(folder, os.fsencode(name), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return bytes(handle.bytes[: handle.size])


OPEN_AT_ONCE = 256


class Folders:
    """The folders of one tree, opened once each, by their path below it ('' is the tree itself).

    A descriptor is good until OPEN_AT_ONCE others have been asked for: ask again after anything else was done.
    """

    def __init__(self, root: int) -> None:
        """Take the tree's own descriptor; `close` closes the others, not that one."""
        self.root = root
        self._open: dict[str, int] = {}

    def at(self, path: str) -> int:
        """Return the descriptor of a folder. Raises OSError when it is none, or a link leads to it."""
        if not path:
            return self.root
        known = self._open.get(path)
        if known is None:
            if len(self._open) >= OPEN_AT_ONCE:
                os.close(self._open.pop(next(iter(self._open))))
            known = self._open[path] = open_beneath(self.root, path)
        return known

    def parent(self, path: str) -> tuple[int, str]:
        """Return the descriptor of the folder that holds a path, and the path's last name."""
        above, _, name = path.rpartition("/")
        return self.at(above), name

    def moved(self, path: str) -> None:
        """Forget a folder and what lies below it: it is not what it was."""
        for known in [one for one in self._open if one == path or one.startswith(path + "/")]:
            os.close(self._open.pop(known))

    def close(self) -> None:
        """Close what was opened."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
