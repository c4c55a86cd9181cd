"""Where the control sockets of a user's runs are, what they are called, and who may connect to one.

In: a run's id. Out: a listening socket with mode 0600, in a folder with mode 0700. Nothing of it lies in a folder that a
task is shown, and a profile that would show it is refused (broker/enforce/confinement.py).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from pathlib import Path

from broker.enforce.runtime import OwnerMark, boot_id, runtime_base

FOLDER = "control"  # in the runtime base
SUFFIX = ".sock"
_UCRED = struct.Struct("iII")


def control_folder() -> int:
    """Open the folder of the control sockets, made if missing. Raises OSError, HostCannotEnforce."""
    folder = runtime_base() / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return open_folder(folder)


def open_folder(folder: Path) -> int:
    """Open a folder of control sockets. Raises OSError; PermissionError for one that others could put something into."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(1, "it belongs to somebody else, or others can reach it")
    return descriptor


def socket_name(run: str, owner: OwnerMark) -> str:
    """Return the name of a run's socket. It says whose it is, so that a dead one's can be told without a word to the others."""
    return f"{run}.{owner.pid}.{owner.start}{SUFFIX}"


def owner_of(name: str) -> tuple[str, OwnerMark] | None:
    """Return the run and the broker that a socket's name says; None for another file's."""
    match name.removesuffix(SUFFIX).split("."):
        case [run, pid, start] if name.endswith(SUFFIX) and run and pid.isdigit():
            return run, OwnerMark(int(pid), start, boot_id())
        case _:
            return None


def address(folder: int, name: str) -> str:
    """Return the address of a socket in an open folder: a path in a sockaddr has 107 bytes at most (unix(7))."""
    return f"/proc/self/fd/{folder}/{name}"


def listen(folder: int, name: str, waiting: int) -> socket.socket:
    """Make a listening socket, with room for so many who are not accepted yet. It gets its name when it listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made = f".{name}"
    try:
        listener.bind(address(folder, made))
        os.chmod(made, 0o600, dir_fd=folder)
        listener.listen(waiting)
        listener.setblocking(False)
        os.rename(made, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(made, dir_fd=folder)
        raise
    return listener


def is_our_operator(connection: socket.socket) -> bool:
    """Whether the other end is a process of our user, or root's, and lives in no sandbox.

    The kernel noted uid and pid when it connected (SO_PEERCRED in unix(7)). A process of a pid namespace below ours has
    another pid in there as well (NSpid in proc(5)); one that we cannot see has none here.
    """
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if uid not in (0, os.geteuid()) or pid == 0:
        return False
    depth = _depth(str(pid))
    return depth > 0 and depth == _depth("self")


def is_operator_himself(connection: socket.socket) -> bool:
    """Whether the other end is a process of our user, as the kernel noted when it connected."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return bool(uid == os.geteuid())


def operator_of(connection: socket.socket) -> str:
    """Return who is at the other end, for the record: the kernel noted it."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return named_user(uid)


def named_user(uid: int) -> str:
    """Return a user as the record has one."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _depth(process: str) -> int:
    """Return in how many pid namespaces a process has a pid, as this /proc sees it; 0 if it is not seen."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return next((len(line.split()) - 1 for line in status.splitlines() if line.startswith("NSpid:")), 0)
