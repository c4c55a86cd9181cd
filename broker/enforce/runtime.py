"""Step 4: the folders a running task needs on the host, and whose they are.

The runtime base holds one folder per task (mounted read-only at /run/broker inside), the guard's binary
under its digest, and the view of /etc. It must be reachable by the task's user, which may be another than
the broker's when root runs a task in somebody's workspace; so it never lies in a home.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from broker.errors import HostCannotEnforce
from broker.values import dataclass

GUARD = Path(__file__).parent.parent / "guard" / "guard"


def runtime_base() -> Path:
    """Return the runtime base, made if missing: a folder of root's, or a private one of the user's.

    Raises HostCannotEnforce if it belongs to somebody else, others can write to it, or no program may start
    from anywhere it could be (Debian mounts /run noexec).
    """
    tried = []
    for base in _candidates():
        try:
            base.mkdir(mode=0o711, parents=True, exist_ok=True)
            facts = base.lstat()
            flags = os.statvfs(base).f_flag
        except OSError as error:
            tried.append(f"{base}: {error.strerror}")
            continue
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise HostCannotEnforce(
                "runtime folder", f"{base} belongs to somebody else or others can write to it", f"Remove {base}"
            )
        if not flags & os.ST_NOEXEC:
            return base
        tried.append(f"{base}: mounted noexec")
    raise HostCannotEnforce(
        "runtime folder", f"no place for the guard ({'; '.join(tried)})",
        "Set BROKER_RUNTIME_DIR to a folder of yours on a file system that is not mounted noexec",
    )  # fmt: skip


def runtime_bases() -> list[Path]:
    """Return where runs of this user may have their runtime base, whether it is there or not."""
    return list(dict.fromkeys(_candidates()))


def _candidates() -> list[Path]:
    uid = os.geteuid()
    if chosen := os.environ.get("BROKER_RUNTIME_DIR"):
        return [Path(chosen)]
    if uid == 0:
        return [Path("/run/broker"), Path("/var/lib/broker/run")]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return [
        *([Path(runtime) / "broker"] if runtime.startswith("/") else []),
        Path(f"/tmp/broker-{uid}"),
        Path.home() / ".cache" / "broker" / "run",
    ]


def guard_binary(base: Path) -> Path:
    """Return a copy of the guard below `base`, named by its digest.

    Raises HostCannotEnforce if the guard was not built.
    """
    source = Path(os.environ.get("BROKER_GUARD") or GUARD)
    try:
        facts = source.stat()
        target = base / f"guard-{_digest(source, facts.st_mtime_ns, facts.st_size)}"
        if not target.exists():
            temporary = base / f".guard-{os.getpid()}"
            temporary.write_bytes(source.read_bytes())
            temporary.chmod(0o755)
            temporary.replace(target)
    except FileNotFoundError:
        raise HostCannotEnforce(
            "exec gate", f"the guard is missing at {source}", "Build it: python -m broker.guard.build"
        ) from None
    return target


@functools.cache
def _digest(source: Path, _changed: int, _size: int) -> str:
    """Hash the guard once per process: it is a megabyte, and a task starts in milliseconds."""
    return hashlib.sha256(source.read_bytes()).hexdigest()[:16]


def process_start(pid: int) -> str:
    """Return when a process started, in clock ticks since boot (proc(5), field 22); '' if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """Which broker process owns a thing on the host, so that a dead one's leftovers can be told."""

    pid: int
    start: str
    boot: str

    @classmethod
    def mine(cls) -> OwnerMark:
        """Return the mark of this process."""
        return cls(os.getpid(), process_start(os.getpid()), boot_id())

    @classmethod
    def parse(cls, text: str) -> OwnerMark | None:
        """Return the mark written in `text`, or None."""
        fields = text.split()
        return cls(int(fields[0]), fields[1], fields[2]) if len(fields) == 3 and fields[0].isdigit() else None

    def __str__(self) -> str:
        return f"{self.pid} {self.start} {self.boot}"

    def alive(self) -> bool:
        """Whether that process still runs (the same one, not a later one with its pid)."""
        return self.boot == boot_id() and process_start(self.pid) == self.start != ""


@contextlib.contextmanager
def _one_at_a_time(base: Path) -> Iterator[None]:
    """Let nobody sweep while a folder is there and its owner's mark is not. The kernel frees a dead one's lock."""
    descriptor = os.open(base / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# An image's /etc/profile sets PATH anew: a login shell, which some agents start for each command, would lose the client.
LOGIN = 'case ":$PATH:" in *:/run/broker/bin:*) ;; *) PATH="/run/broker/bin:$PATH" ;; esac\n'


def make_task_folder(base: Path, task: str, uid: int, gid: int) -> Path:
    """Make the folder that is shown inside as /run/broker: the guard, and the list of denials."""
    folder = base / f"task-{task}"
    with _one_at_a_time(base):
        folder.mkdir(mode=0o700)
        (folder / "owner").write_text(str(OwnerMark.mine()), encoding="ascii")
    guard = guard_binary(base)
    os.link(guard, folder / "guard")
    (folder / "bin").mkdir(mode=0o755)
    (folder / "bin").chmod(0o755)
    os.link(guard, folder / "bin" / "broker")  # the same program is the client: its name says which
    (folder / "denials.jsonl").touch(0o644)
    home = "/home/agent"
    (folder / "passwd").write_text(
        "".join(
            [] if uid == 0 else ["root:x:0:0:root:/root:/usr/sbin/nologin\n"]
        ) + f"agent:x:{uid}:{gid}:agent:{home}:/bin/bash\n"
        + ("" if uid == 65534 else "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"),
        encoding="ascii",
    )
    (folder / "group").write_text(
        ("" if gid == 0 else "root:x:0:\n") + f"agent:x:{gid}:\n" + ("" if gid == 65534 else "nogroup:x:65534:\n"),
        encoding="ascii",
    )
    (folder / "login.sh").write_text(LOGIN, encoding="ascii")
    for name, mode in (("login.sh", 0o644), ("passwd", 0o644), ("group", 0o644), ("denials.jsonl", 0o644)):
        (folder / name).chmod(mode)  # whatever our umask is
    if os.geteuid() == 0:
        # The task's user may look, and no more: root writes here, and must not be led elsewhere by a link.
        os.chown(folder, 0, gid)
        folder.chmod(0o750)
    return folder


def remove_task_folder(folder: Path) -> None:
    """Remove a task's folder. Missing is fine."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_task_folders(base: Path) -> list[str]:
    """Remove folders whose broker is dead. Returns a line for each."""
    removed = []
    with _one_at_a_time(base):
        for folder in base.glob("task-*"):
            try:
                mark = OwnerMark.parse((folder / "owner").read_text(encoding="ascii"))
            except OSError:
                mark = None
            if mark is None or not mark.alive():
                remove_task_folder(folder)
                removed.append(f"task folder {folder.name}")
    return removed
