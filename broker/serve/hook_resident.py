"""The process that stays after a hook was answered, and answers the next ones: everything is loaded in it.

In: calls on a socket in the state directory, from this user's `broker hook`. Out: what each would have answered itself, by
the same function. It keeps nothing of a call but loaded code: profiles are read, and journals opened, anew each time. It ends
when nobody asked for a while. Killing it costs the next call a little time, and changes no answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

from broker.serve import hook_client

IDLE_SECONDS = 3600.0  # 18 MB for an hour, that nobody waits after a pause
CALL_SECONDS = 8.0  # of one call; the caller gives up after this, and blocks

Answerer = Callable[[list[str], bytes], tuple[int, bytes, bytes]]


def stay(answer: Answerer, settle: Callable[[], None], warm: Callable[[], None]) -> None:
    """Leave a process behind that answers; after each answer it does `settle`. Returns at once, in this one; failing is no matter: the next call takes the long way."""
    with contextlib.suppress(OSError):
        first = os.fork()
        if first:
            os.waitpid(first, 0)
            return
        try:
            os.setsid()
            if os.fork() == 0:
                _serve(answer, settle, warm)
        except BaseException:  # noqa: S110, BLE001 - nobody is there to be told, and this process must not go on as the other one
            pass
        finally:
            os._exit(0)


def _serve(answer: Answerer, settle: Callable[[], None], warm: Callable[[], None]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)  # an agent waits for the end of the hook's output
    os.closerange(3, 1 << 16)
    # At the start of the very first session nothing was recorded yet. Each folder is its user's alone, whatever the umask is.
    os.umask(0o077)
    os.makedirs(hook_client.folder(), exist_ok=True)
    place = os.open(hook_client.folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name = hook_client.key()
    sys.argv[0] = os.path.abspath(sys.argv[0])  # it names this broker in commands that are rewritten, wherever we are then
    lock = os.open(f"{name}.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=place)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two sessions began at once: one stays
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode("ascii"), 0)
    warm()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{name}.socket", dir_fd=place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"/proc/self/fd/{place}/{name}.socket")
        listener.listen(64)
        listener.settimeout(IDLE_SECONDS)
        signal.signal(signal.SIGALRM, _give_up)
        with contextlib.suppress(TimeoutError):
            while True:
                caller, _ = listener.accept()
                with caller:
                    _answer_one(caller, answer)
                settle()
        os.unlink(f"{name}.socket", dir_fd=place)


class _TooLong(Exception):
    """A call took too long. It gets no answer, and its caller blocks."""


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise _TooLong


def _answer_one(caller: socket.socket, answer: Answerer) -> None:
    """Answer a call. One that is malformed, or whose caller is gone, is nobody's loss."""
    try:
        signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS)
        caller.settimeout(CALL_SECONDS)
        _, uid, _ = _peer(caller)
        if uid != os.geteuid():
            return
        data, cwd, *rest = hook_client.receive(caller)
        os.chdir(cwd)
        for name, value in zip(hook_client.OF_A_CALL, rest, strict=False):
            os.environ[name] = os.fsdecode(value)
        words = [os.fsdecode(word) for word in rest[len(hook_client.OF_A_CALL) :]]
        code, out, err = answer(words, data)
        hook_client.send(caller, (str(code).encode("ascii"), out, err))
    except (OSError, ValueError, _TooLong):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir("/")  # nobody's folder is held


def _peer(caller: socket.socket) -> tuple[int, int, int]:
    import struct

    pid, uid, gid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid, gid
