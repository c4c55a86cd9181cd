"""Step 4, bubblewrap run by root for root's own workspace: the host's device files, made unchangeable inside.

bubblewrap shows /dev/null and its like by binding the host's own files. Uid 0 owns them: without any capability
it may change their mode, and does so for the whole host (measured: `chmod 0 /dev/null` inside a sandbox of
root's stopped every program outside). A read-only mount forbids that and does not hinder reading or writing
the device; bubblewrap's own --remount-ro would add `nodev`, so the broker remounts them itself, before the
guard has started anything.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from broker.errors import HostCannotEnforce

# What bubblewrap's --dev binds from the host.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x20, 0x1000
CLONE_FS, CLONE_NEWNS = 0x200, 0x20000


def seal_devices(init_pid: int) -> None:
    """Remount the device files in the mount namespace of `init_pid` read-only, and see that it worked.

    Raises HostCannotEnforce otherwise. INVARIANT: no task of uid 0 starts with a device file of the host that
    it can change (test_a_root_owned_task_cannot_change_the_hosts_device_files).
    """
    failures: list[str] = []
    # setns(2) wants a thread that shares its root and current folder with no other; the thread ends here.
    thread = threading.Thread(target=_remount, args=(init_pid, failures))
    thread.start()
    thread.join()
    left = _writable(init_pid)
    if failures or left:
        why = failures[0] if failures else f"{', '.join(left)} can still be changed"
        raise HostCannotEnforce("container", f"the host's device files: {why}", "Use a workspace that root does not own")


def _remount(init_pid: int, failures: list[str]) -> None:
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
        for name in DEVICES:
            flags = ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
            call("mount", None, f"/dev/{name}".encode(), None, flags, None)
    except OSError as error:
        failures.append(str(error.args[1]))


def _writable(init_pid: int) -> list[str]:
    """Return the device files whose topmost mount is not read-only (proc_pid_mountinfo(5), fields 5 and 6)."""
    state = {}
    for line in Path(f"/proc/{init_pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(" ")
        state[fields[4]] = "ro" in fields[5].split(",")
    return [f"/dev/{name}" for name in DEVICES if not state.get(f"/dev/{name}", False)]
