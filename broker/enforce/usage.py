"""Step 4: what a task uses, looked at from outside (/proc); and proof that nothing of it survives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from broker.enforce.layer import folder_size
from broker.values import dataclass

FIRST_LOOK = 0.05
INTERVAL = 0.2
WATCH_INTERVAL = 0.05
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
        self._interval = WATCH_INTERVAL if memory_cap else INTERVAL
        self._notify = notify
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._cpu: dict[tuple[int, int], float] = {}
        self._io: dict[tuple[int, int], tuple[int, int]] = {}
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
        wait = FIRST_LOOK
        while not self._stop.wait(wait) and os.path.exists(f"/proc/{self._init_pid}"):
            self._look()
            wait = self._interval

    def _look(self) -> None:
        memory = count = 0
        for one in _processes.below(self._init_pid, fresh=self._interval / 2):
            self._cpu[one.pid, one.start] = one.cpu_seconds
            memory += one.memory
            count += 1
            if (io := _io_of(one.pid)) is not None:
                self._io[one.pid, one.start] = io
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


@dataclass(frozen=True, slots=True)
class _Process:
    """What /proc/PID/stat says of a process: ticks since boot, seconds, bytes."""

    pid: int
    parent: int
    start: int
    cpu_seconds: float
    memory: int


class _Processes:
    """All processes, looked at by one watch for all that look within a moment.

    A run may have a hundred tasks, and to read the whole of /proc for each of them costs more than they do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, list[_Process]] = {}
        self._at = 0.0

    def below(self, pid: int, *, fresh: float) -> list[_Process]:
        """Return the descendants of a process, as they were at most `fresh` seconds ago."""
        with self._lock:
            if time.monotonic() - self._at > fresh:
                self._children = _by_parent()
                self._at = time.monotonic()
            children = self._children
        found: list[_Process] = []
        pending = [pid]
        while pending:
            below = children.get(pending.pop(), ())
            found += below
            pending += [one.pid for one in below]
        return found


_processes = _Processes()
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _by_parent() -> dict[int, list[_Process]]:
    children: dict[int, list[_Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (one := _process(int(entry))) is not None:
            children.setdefault(one.parent, []).append(one)
    return children


def _process(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()  # proc(5), from field 3 on: a name may hold anything, a parenthesis too
    return _Process(
        pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE
    )


def _io_of(pid: int) -> tuple[int, int] | None:
    """Return the bytes that a process has read from and written to disks; None where it is gone, or we may not know."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            fields = dict(line.split(b": ") for line in file.read(512).splitlines())
        return int(fields[b"read_bytes"]), int(fields[b"write_bytes"])
    except (OSError, KeyError, ValueError):
        return None


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
    there = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and pid_namespace(int(entry)) == namespace]
    return [words for pid in there if (words := _described(pid))]


def _described(pid: int) -> str:
    """Say which process that is; '' for one that is gone, or dead and only not waited for."""
    import psutil  # there is hardly ever one

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return "" if dead else f"{pid} {process.name()}"
    except psutil.Error:
        return ""
