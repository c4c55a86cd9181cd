"""Step 4, for root's own workspaces: what belongs to the whole host is made unchangeable inside.

A task of uid 0 owns, without any capability, two kinds of files that are not its own: the host's device files,
which bubblewrap shows by binding them, and the files of /proc, whose modes are one for all mounts. It could
change their modes for the whole host (measured: `chmod 0 /dev/null` inside stopped programs outside). A
read-only mount forbids that and does not hinder reading or writing a device. bubblewrap's own --remount-ro
would add `nodev`, and Docker mounts /proc writable, so the broker remounts them itself, before the guard has
started anything.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from broker.errors import HostCannotEnforce

# What bubblewrap's --dev binds from the host.
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
PROC = ("/proc",)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x8, 0x20, 0x1000
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000


def seal(init_pid: int, paths: tuple[str, ...]) -> None:
    """Remount `paths` in the mount namespace of `init_pid` read-only, and see that it worked.

    Raises HostCannotEnforce otherwise. INVARIANT: no task of uid 0 starts with a device file or a /proc of the
    host that it can change (test_a_root_owned_task_cannot_change_the_hosts_device_files,
    test_a_root_owned_task_cannot_change_the_modes_of_proc).
    """
    failures: list[str] = []
    # setns(2) wants a thread that shares its root and current folder with no other; the thread ends here.
    thread = threading.Thread(target=_remount, args=(init_pid, paths, failures))
    thread.start()
    thread.join()
    left = _writable(init_pid, paths)
    if failures or left:
        why = failures[0] if failures else f"{', '.join(left)} can still be changed"
        raise HostCannotEnforce("container", f"files of the whole host: {why}", "Use a workspace that root does not own")


def _remount(init_pid: int, paths: tuple[str, ...], failures: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *words: object) -> None:
        if getattr(libc, name)(*words) != 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    try:
        namespace = os.open(f"/proc/{init_pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            call("unshare", CLONE_FS)
            call("setns", namespace, CLONE_NEWNS)
        finally:
            os.close(namespace)
        for path in paths:
            kept = MS_NOSUID if path in DEVICES else MS_NOSUID | MS_NODEV | MS_NOEXEC
            flags = ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY | kept)
            call("mount", None, path.encode(), None, flags, None)
    except OSError as error:
        failures.append(str(error.args[1]))


def _writable(init_pid: int, paths: tuple[str, ...]) -> list[str]:
    """Return the paths whose topmost mount is not read-only (proc_pid_mountinfo(5), fields 5 and 6)."""
    state = {}
    for line in Path(f"/proc/{init_pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(" ")
        state[fields[4]] = "ro" in fields[5].split(",")
    return [path for path in paths if not state.get(path, False)]
