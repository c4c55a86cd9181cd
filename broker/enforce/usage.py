"""Step 4: what a task uses, looked at from outside with psutil; and proof that nothing of it survives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.enforce.layer import folder_size

FIRST_LOOK = 0.05
INTERVAL = 0.2
WATCH_INTERVAL = 0.05
FRESH = 0.04
LEAST = 4096  # bytes that a file counts for


@dataclass(slots=True)
class Usage:
    """Seconds, bytes and counts. Peaks are of samples, except where a control group counted."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    peak_processes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    output_bytes: int = 0
    samples: int = 0

    def as_dict(self) -> dict[str, float | int]:
        """Return it with times rounded to milliseconds."""
        return {
            "wall_seconds": round(self.wall_seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "peak_memory": self.peak_memory,
            "peak_processes": self.peak_processes,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "output_bytes": self.output_bytes,
        }


@dataclass(slots=True)
class Quota:
    """How much a folder may take on disk, in bytes.

    Its tree is measured when the disk has become fuller, and now and then besides: the disk is everybody's, and others
    may free as much as the task takes. Each file counts for something, be it empty: a disk has only so many.
    """

    folder: str
    limit: int
    pause: float = 2.0
    _first: int | None = None
    _free: int = 0
    _due: float = 0.0

    def exceeded(self, written: int) -> bool:
        """Whether the folder takes more than it may. `written`: what the task has written so far, in bytes."""
        free, now = _free_bytes(self.folder), time.monotonic()
        if self._first is None:
            self._first = self._free = free
            self._due = now + self.pause
        if self._free - free < self.limit // 2 and now < self._due:
            return False
        taken = folder_size(self.folder, least=LEAST)
        after = time.monotonic()
        self._due = after + max(self.pause, 50 * (after - now))
        self._free = free + taken
        # A file that was deleted while it is open takes its place on the disk, and is in no tree.
        unseen = min(self._first - free, written) - taken
        return max(taken, unseen) > self.limit


def _free_bytes(folder: str) -> int:
    facts = os.statvfs(folder)
    return facts.f_bfree * facts.f_frsize


class UsageWatch:
    """Samples a task's process tree on a thread. `exceeded` says what passed its limit: memory or layer."""

    def __init__(
        self, init_pid: int, memory_cap: int | None, notify: Callable[[], None], quota: Quota | None = None,
        seen: Callable[[float, int, int], None] | None = None,
    ) -> None:  # fmt: skip
        """Watch the descendants of `init_pid`; a cap here is for hosts where no control group can be made.

        `seen` is told of each look: processor seconds so far, bytes and processes now.
        """
        self.usage = Usage()
        self.exceeded = ""
        self._quota = quota
        self._seen = seen
        self._init_pid = init_pid
        self._cap = memory_cap
        self._notify = notify
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._cpu: dict[tuple[int, float], float] = {}
        self._io: dict[tuple[int, float], tuple[int, int]] = {}
        self._thread = threading.Thread(target=self._run, name="usage-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> Usage:
        """Stop, and return what was seen."""
        self._stop.set()
        self._thread.join()
        self.usage.wall_seconds = time.monotonic() - self._started
        self.usage.cpu_seconds = max(self.usage.cpu_seconds, sum(self._cpu.values()))
        self.usage.read_bytes = sum(read for read, _ in self._io.values())
        self.usage.write_bytes = sum(written for _, written in self._io.values())
        return self.usage

    def _run(self) -> None:
        interval = WATCH_INTERVAL if self._cap else INTERVAL
        if self._stop.wait(FIRST_LOOK):
            return
        import psutil

        while True:
            try:
                self._look(psutil)
            except psutil.NoSuchProcess:
                return
            if self._stop.wait(interval):
                return

    def _look(self, psutil: Any) -> None:  # a module, imported late
        memory = count = 0
        for pid in processes_below(self._init_pid):
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    memory += process.memory_info().rss
                    self._cpu[key] = times.user + times.system
                    count += 1
                    io = process.io_counters()
                    self._io[key] = (io.read_bytes, io.write_bytes)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        usage = self.usage
        usage.samples += 1
        usage.peak_memory = max(usage.peak_memory, memory)
        usage.peak_processes = max(usage.peak_processes, count)
        if self._seen is not None:
            self._seen(sum(self._cpu.values()), memory, count)
        over = ""
        if self._cap is not None and memory > self._cap:
            over = "memory"
        elif self._quota is not None and self._quota.exceeded(sum(written for _, written in self._io.values())):
            over = "layer"
        if over and not self.exceeded:
            self.exceeded = over
            self._notify()


class _Parents:
    """Who is whose child, of all processes: looked at by one watch for all that look within a moment.

    A run may have a hundred tasks, and to read the whole of /proc for each of them costs more than they do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, list[int]] = {}
        self._at = 0.0

    def below(self, pid: int) -> list[int]:
        with self._lock:
            if time.monotonic() - self._at > FRESH:
                self._children = _children()
                self._at = time.monotonic()
            children = self._children
        found: list[int] = []
        pending = [pid]
        while pending:
            below = children.get(pending.pop(), [])
            found += below
            pending += below
        return found


_parents = _Parents()


def processes_below(pid: int) -> list[int]:
    """Return the descendants of a process, as they were at most FRESH seconds ago. Raises psutil.NoSuchProcess."""
    if not os.path.exists(f"/proc/{pid}"):
        import psutil

        raise psutil.NoSuchProcess(pid)
    return _parents.below(pid)


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb", buffering=0) as file:
                    text = file.read(512)
            except OSError:
                continue
            children.setdefault(int(text.rpartition(b")")[2].split(None, 2)[1]), []).append(int(entry))
    return children


def pid_namespace(pid: int) -> int:
    """Return the inode of a process's pid namespace; 0 if it is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def hold_pid_namespace(pid: int) -> int:
    """Open a process's pid namespace: as long as somebody holds it, no other one gets its inode. -1 if the process is gone."""
    try:
        return os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def survivors(namespace: int) -> list[str]:
    """Return the processes that still live in a pid namespace, as `pid name`. Empty is the proof."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and pid_namespace(int(entry)) == namespace:
            try:
                name = Path(f"/proc/{entry}/comm").read_text(encoding="utf-8", errors="replace").strip()
                state = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX":
                found.append(f"{entry} {name}")
    return found
