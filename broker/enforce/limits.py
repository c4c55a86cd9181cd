"""Step 4: what a task may use, held by the kernel's control groups where this broker may make one.

Docker makes its own groups; this module serves bubblewrap. Version 1 (one tree per controller) and version
2 (one tree) are both written here; version 2 was not tested on a real host. Without the right to make a
group (an ordinary user without delegation) `create` returns None: the broker then watches memory itself, the
guard counts processes, and the layer says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from broker.enforce.engine import Limits
from broker.enforce.runtime import OwnerMark

ROOT = Path("/sys/fs/cgroup")
FOLDER = "broker"
PERIOD_US = 100_000
LEAST_QUOTA_US, MOST_CPUS, MOST_PIDS = 1_000, 1_000, 1 << 22  # what the kernel takes: one number too far, and no limit is set
# The thread that starts bubblewrap is inside for that moment. With less than it needs it would wait there for ever.
LEAST_MEMORY = 1 << 20


class Cgroup:
    """The control group of one task: one folder (version 2), or one per controller (version 1)."""

    def __init__(self, folders: dict[str, Path], *, unified: bool) -> None:
        """Take over folders by controller name."""
        self._folders = folders
        self._unified = unified
        self._born_inside = False

    @classmethod
    def create(cls, task: str, limits: Limits) -> Cgroup | None:
        """Make the group and write its limits; None where that is not permitted."""
        name = f"{task}.{OwnerMark.mine().pid}"
        unified = (ROOT / "cgroup.controllers").exists()
        try:
            folders = _make_v2(name) if unified else _make_v1(name)
        except OSError:
            return None
        group = cls(folders, unified=unified)
        try:
            group._write_limits(limits)
        except OSError:
            group.remove()
            return None
        return group

    def _write_limits(self, limits: Limits) -> None:
        v2 = self._unified
        if limits.memory is not None:
            memory = self._folders["memory"]
            _write(memory / ("memory.max" if v2 else "memory.limit_in_bytes"), str(limits.memory))
            with contextlib.suppress(OSError):  # no swap accounting: then there is no swap to limit
                swap = ("memory.swap.max", "0") if v2 else ("memory.memsw.limit_in_bytes", str(limits.memory))
                _write(memory / swap[0], swap[1])
        if limits.pids is not None:
            _write(self._folders["pids"] / "pids.max", str(min(limits.pids + 3, MOST_PIDS)))  # the guard and bubblewrap's own are among them
        if limits.cpus is not None:
            quota = max(LEAST_QUOTA_US, int(min(limits.cpus, MOST_CPUS) * PERIOD_US))
            cpu = self._folders["cpu"]
            if v2:
                _write(cpu / "cpu.max", f"{quota} {PERIOD_US}")
            else:
                _write(cpu / "cpu.cfs_period_us", str(PERIOD_US))
                _write(cpu / "cpu.cfs_quota_us", str(quota))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Start processes from within the group: what this thread starts meanwhile is born inside.

        Moving another process takes a lock that stops the whole machine for a grace period (12 ms for three
        controllers, measured); a thread that moves itself does not need it. Only version 1 lets a single
        thread move; elsewhere this does nothing, and `join` moves the process.
        """
        if self._unified:
            yield
            return
        homes = {ROOT / name / path.lstrip("/") for name, path in _own_groups(set(self._folders))}
        try:
            for folder in self._folders.values():
                _write(folder / "tasks", "0")
            self._born_inside = True
            yield
        finally:
            for home in homes:
                _write(home / "tasks", "0")

    def join(self, pid: int) -> None:
        """Move a process in, unless it was born inside. What it starts afterwards is born inside."""
        if self._born_inside:
            return
        for folder in set(self._folders.values()):
            _write(folder / "cgroup.procs", str(pid))

    def oom_kills(self) -> int:
        """How many processes of the group the kernel killed for memory."""
        return oom_kills(self._folders["memory"])

    def peak_memory(self) -> int | None:
        """Return the highest use in bytes, or None where the kernel does not say."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with contextlib.suppress(OSError):
                return int((self._folders["memory"] / name).read_text())
        return None

    def remove(self) -> None:
        """Remove the folders. The kernel may need a moment until the last process is really gone."""
        deadline = time.monotonic() + 2.0
        for folder in set(self._folders.values()):
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.002)

    @staticmethod
    def sweep() -> list[str]:
        """Remove empty groups of dead brokers."""
        removed = []
        for parent in {ROOT / FOLDER, *(ROOT / name / FOLDER for name in ("memory", "pids", "cpu"))}:
            for folder in parent.glob("*.*"):
                pid = folder.name.rpartition(".")[2]
                if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                        removed.append(f"control group {folder}")
        return removed


def oom_kills(memory_folder: Path) -> int:
    """Return the `oom_kill` counter of a memory group, version 1 or 2; 0 if it cannot be read."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (memory_folder / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def _make_v2(name: str) -> dict[str, Path]:
    parent = ROOT / FOLDER
    parent.mkdir(exist_ok=True)
    for place in (ROOT, parent):
        _write(place / "cgroup.subtree_control", "+memory +pids +cpu")
    folder = parent / name
    folder.mkdir()
    return {"memory": folder, "pids": folder, "cpu": folder}


def _make_v1(name: str) -> dict[str, Path]:
    folders = {}
    for controller in ("memory", "pids", "cpu"):
        folder = ROOT / controller / FOLDER / name
        if not (ROOT / controller).is_dir():
            raise FileNotFoundError(folder)
        folder.mkdir(parents=True)
        folders[controller] = folder
    return folders


def _own_groups(controllers: set[str]) -> list[tuple[str, str]]:
    """Return (controller, path) for this thread's own groups. Raises OSError if one is not where it should be."""
    found = []
    for line in Path("/proc/thread-self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        for name in set(names.split(",")) & controllers:
            if not (ROOT / name / path.lstrip("/") / "tasks").exists():
                raise FileNotFoundError(ROOT / name / path)
            found.append((name, path))
    return found


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
