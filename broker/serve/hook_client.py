"""The short way to an answer: ask the process that an earlier `broker hook` left waiting.

Loading what judges takes longer than an agent should wait before each tool, so the first process of a session stays, with
everything loaded (hook_resident.py), and the next ones only hand over what came on stdin. Imports next to nothing: this is
most of what an answer takes.

INVARIANT: what cannot be had this way is done the long way, in this process; never not at all (tests/hooks/test_resident.py).
"""

from __future__ import annotations

import os
import stat
import sys

from broker.sha256 import sha256

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from _socket import socket  # socket.socket is one, too
    from collections.abc import Sequence

# What a call's answer hangs on besides its words, its folder and its event. Of each call, not of the process that stays.
OF_A_CALL = ("CLAUDE_CODE_SESSION_ATTENDED", "CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR")
# What it hangs on as well, and what does not change between calls: another one is another process.
_OF_A_PROCESS = ("HOME", "XDG_CONFIG_HOME", "BROKER_DEBUG", "PYTHONPATH")
_PARTS = ("classify", "decide", "profiles", "record", "request", "serve")


def folder() -> str:
    """Return where the sockets are: the state directory of broker/record/run_files.py, without loading pathlib (a test compares)."""
    if chosen := os.environ.get("BROKER_STATE_DIR"):
        return os.path.join(os.path.abspath(chosen), "hooks")
    shared = os.environ.get("XDG_STATE_HOME", "")
    root = shared if shared.startswith("/") else os.path.expanduser("~/.local/state")
    return os.path.join(root, "broker", "hooks")


def key() -> str:
    """Return the name of the process that answers for this one: same program, same version, same home."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # An upgrade is another program, and so is a working copy in which a file was replaced.
    made = [str(os.stat(os.path.join(package, name)).st_mtime_ns) for name in ("__init__.py", *_PARTS)]
    parts = (package, *made, sys.executable, os.path.abspath(sys.argv[0]), *(os.environ.get(name, "") for name in _OF_A_PROCESS))
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def asked(words: Sequence[str], data: bytes) -> tuple[int, bytes, bytes] | None:
    """Return exit code, stdout and stderr of an answer; None when nobody is there, or does not answer in order."""
    import _socket

    try:
        place = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(place)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return None  # somebody else could have put a socket there; the long way says what is wrong with it
        with_us = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            # A socket's path has 107 bytes at most (unix(7)); this one is short wherever the folder lies.
            with_us.connect(f"/proc/self/fd/{place}/{key()}.socket")
            cwd = os.getcwd()
            fields = [data, cwd.encode("utf-8", "surrogateescape")]
            fields += [os.environ.get(name, "").encode("utf-8", "surrogateescape") for name in OF_A_CALL]
            fields += [word.encode("utf-8", "surrogateescape") for word in words]
            send(with_us, fields)
            code, out, err = receive(with_us)
            return int(code), out, err
        finally:
            with_us.close()
    except (OSError, ValueError):
        return None
    finally:
        os.close(place)


def send(to: socket, fields: Sequence[bytes]) -> None:
    """Send a list of texts: a line with their lengths, then the texts."""
    to.sendall(" ".join(str(len(field)) for field in fields).encode("ascii") + b"\n" + b"".join(fields))


def receive(source: socket, most: int = 1 << 26) -> list[bytes]:
    """Return a list that `send` sent. Raises ValueError for anything else, and for an end before its end."""
    head = b""
    while b"\n" not in head:
        piece = source.recv(65536)
        if not piece or len(head) > 65536:
            raise ValueError("no list")
        head += piece
    line, _, rest = head.partition(b"\n")
    lengths = [int(word) for word in line.split()]
    total = sum(lengths)
    if total > most or any(length < 0 for length in lengths):
        raise ValueError("too long")
    pieces, size = [rest], len(rest)
    while size < total:
        piece = source.recv(min(1 << 20, total - size))
        if not piece:
            raise ValueError("cut off")
        pieces.append(piece)
        size += len(piece)
    whole, fields = b"".join(pieces), []
    for length in lengths:
        fields.append(whole[:length])
        whole = whole[length:]
    return fields
