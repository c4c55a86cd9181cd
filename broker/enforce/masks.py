"""Step 4: the empty files that are shown in the place of secrets, and word of whoever opens one.

The kernel tells the broker when one of the files is opened, by whatever name and through whatever mount (inotify(7));
nothing inside can notice or prevent that. It does not say by whom.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from broker.errors import HostCannotEnforce

FOLDER = "masked"
IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")


def mask_file(run_dir: str, number: int) -> str:
    """Return the file that is shown in place of the plan's secret of this number."""
    return f"{run_dir}/{FOLDER}/{number}"


class Masks:
    """The masks of one task. Make them before the container starts; `close` when it is gone."""

    def __init__(self, run_dir: Path, masked: tuple[str, ...], opened: Callable[[str], None]) -> None:
        """Make an empty file for each masked path. `opened` is called with the path, on a thread of ours."""
        self._paths, self._opened = masked, opened
        self._thread: threading.Thread | None = None
        folder = run_dir / FOLDER
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        for number in range(len(masked)):
            mask = folder / str(number)
            mask.touch(0o444)
            mask.chmod(0o444)

    def watch(self, run_dir: Path) -> None:
        """Begin to listen. Call it when the container stands: making the mounts is no attempt to read."""
        if not self._paths:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watched = self._queue >= 0 and libc.inotify_add_watch(self._queue, os.fsencode(run_dir / FOLDER), IN_OPEN) >= 0
        if not watched:
            if self._queue >= 0:
                os.close(self._queue)
            raise HostCannotEnforce(
                "workspace", f"nobody could tell when a secret is opened (inotify: {os.strerror(ctypes.get_errno())})",
                "Raise fs.inotify.max_user_instances, or end other tasks of this user",
            )  # fmt: skip
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="masks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, after what is still in the queue. May be called twice."""
        if self._thread is None:
            return
        os.eventfd_write(self._stop, 1)
        self._told.wait()
        self._thread = None
        os.close(self._stop)

    def _listen(self) -> None:
        poller = select.poll()
        poller.register(self._queue, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        last = False
        try:
            while not last:
                last = self._stop in dict(poller.poll())
                packet = b""
                with contextlib.suppress(BlockingIOError):
                    packet = os.read(self._queue, 65536)
                self._tell(packet)
        finally:
            self._told.set()
            os.close(self._queue)  # takes the kernel up to 15 ms, which nobody needs to wait for

    def _tell(self, packet: bytes) -> None:
        at = 0
        while at < len(packet):
            _, mask, _, length = _EVENT.unpack_from(packet, at)
            name = packet[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode("ascii", "replace")
            at += _EVENT.size + length
            if mask & IN_OPEN and name.isdigit() and int(name) < len(self._paths):
                self._opened(self._paths[int(name)])
