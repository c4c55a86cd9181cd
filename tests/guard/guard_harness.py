"""A sandbox with the real guard in it, and a small policy function in place of the broker.

The guard runs under bubblewrap as process 1; the test talks to it over a socket pair with broker.enforce.wire.
BROKER_GUARD names another build of the guard, such as the one under AddressSanitizer.
"""

from __future__ import annotations

import array
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.enforce import wire
from broker.enforce.seal import DEVICES, seal
from broker.guard import build

Policy = Callable[[wire.ExecAsked | wire.FileAsked], wire.Answer | None]

SYSTEM = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/passwd", "/etc/group")
LINKS = ("/bin", "/sbin", "/lib", "/lib64")
ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LC_ALL=C.UTF-8", "LANG=C.UTF-8")
CLIENT = "/run/broker/bin/broker"
RULES = tuple(
    wire.LandlockRule(rights=rights, path=path)
    for rights, path in (
        ("rx", "/"),
        ("rwcx", "/tmp"),
        ("rwcx", "/work"),
        ("rwd", "/dev/null"),
        ("rwd", "/dev/zero"),
        ("rwd", "/dev/tty"),
        ("rwd", "/dev/pts"),
        ("rwd", "/dev/ptmx"),
        ("rwcx", "/dev/shm"),
    )
)


def guard_binary() -> Path:
    """The guard under test."""
    return Path(os.environ["BROKER_GUARD"]) if os.environ.get("BROKER_GUARD") else build.build()


def allow_all(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
    """Allow whatever is asked."""
    return wire.Answer(request=question.request, allow=True)


def deny(*programs: str, error: int = 13, note: str = "") -> Policy:
    """Deny programs by the name of their file, allow the rest."""

    def policy(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
        named = isinstance(question, wire.ExecAsked) and os.path.basename(question.path) in programs
        return wire.Answer(request=question.request, allow=not named, error=error, note=note)

    return policy


@dataclass
class Result:
    """How a spawn ended. `code` is the exit code, or minus the signal."""

    code: int
    out: bytes
    err: bytes
    exited: wire.Exited


class SpawnRefused(Exception):
    """SPAWN_FAILED came."""

    def __init__(self, failed: wire.SpawnFailed) -> None:
        super().__init__(f"{failed.step}: {os.strerror(failed.error)}")
        self.failed = failed


@dataclass
class Sandbox:
    """One guard. Every message it sends is kept in `seen`."""

    link: socket.socket
    process: subprocess.Popen[bytes]
    work: Path
    policy: Policy = allow_all
    hello: wire.Hello | None = None
    ready: wire.Ready | None = None
    seen: list[wire.GuardMessage] = field(default_factory=list)
    descriptors: dict[int, int] = field(default_factory=dict)
    next_spawn: int = 0
    views: list[int] = field(default_factory=list)
    pipes: list[int] = field(default_factory=list)
    connections: list[tuple[int, socket.socket]] = field(default_factory=list)

    @property
    def guard(self) -> int:
        """The guard's pid, as the host numbers it."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def send(self, message: wire.BrokerMessage, descriptors: Sequence[int] = ()) -> None:
        ancillary = []
        if descriptors:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.link.sendmsg([wire.encode(message)], ancillary)

    def receive(self, timeout: float = 20) -> wire.GuardMessage | None:
        """The next message, questions answered. None: the guard is gone."""
        readable, _, _ = select.select([self.link], [], [], timeout)
        if not readable:
            raise TimeoutError(f"the guard said nothing for {timeout} s; last: {self.seen[-3:]}")
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.link, wire.MAX_PACKET, 8)
        except ConnectionResetError:
            return None
        if not packet:
            return None
        message = wire.decode(packet)
        self.seen.append(message)
        if isinstance(message, wire.Spawned) and descriptors:
            self.descriptors[message.spawn] = descriptors[0]
        elif isinstance(message, wire.Ready):
            self.views = descriptors
        elif isinstance(message, wire.Connected):
            self.connections.append((message.port, socket.socket(fileno=descriptors[0])))
        else:
            for descriptor in descriptors:
                os.close(descriptor)
        if isinstance(message, wire.ExecAsked | wire.FileAsked):
            answer = self.policy(message)
            if answer is not None:
                self.send(answer)
        return message

    def until(self, wanted: Callable[[wire.GuardMessage], bool], timeout: float = 30) -> wire.GuardMessage:
        """Answer questions until a wanted message comes."""
        end = time.monotonic() + timeout
        while True:
            message = self.receive(max(0.01, end - time.monotonic()))
            assert message is not None, f"the guard died; last: {self.seen[-3:]}"
            if wanted(message):
                return message

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Sequence[str] = (),
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        terminal: bool = False,
        cwd: str = "/work",
        scope: int = 7,
    ) -> int:
        """Send a SPAWN. None as a descriptor is /dev/null."""
        self.next_spawn += 1
        spawn = self.next_spawn
        message = wire.Spawn(
            spawn=spawn,
            scope=scope,
            cwd=cwd,
            argv=tuple(argv),
            env=(*env, *(e for e in ENVIRONMENT if e.split("=")[0] not in {x.split("=")[0] for x in env})),
            terminal=terminal,
            rows=24,
            columns=80,
        )
        if terminal:
            self.send(message)
            return spawn
        # The sandbox's own: with a descriptor of the host's, a hostile program could change that file's mode.
        with open(f"/proc/{self.guard}/root/dev/null", "r+b", buffering=0) as null:
            chosen = [null.fileno() if d is None else d for d in (stdin, stdout, stderr)]
            self.send(message, chosen)
        return spawn

    def of(self, spawn: int, kinds: Any, timeout: float = 30) -> wire.GuardMessage:
        """The first message of these kinds about a spawn, also one that has come already."""

        def wanted(message: wire.GuardMessage) -> bool:
            return isinstance(message, kinds) and getattr(message, "spawn", None) == spawn

        return next(filter(wanted, self.seen), None) or self.until(wanted, timeout)

    def started(self, spawn: int) -> wire.Spawned:
        """Wait until a spawn's program runs. Raises SpawnRefused."""
        message = self.of(spawn, wire.Spawned | wire.SpawnFailed)
        if isinstance(message, wire.SpawnFailed):
            raise SpawnRefused(message)
        assert isinstance(message, wire.Spawned)
        return message

    def exited(self, spawn: int, timeout: float = 60) -> wire.Exited:
        """Wait for a spawn's end."""
        message = self.of(spawn, wire.Exited | wire.SpawnFailed, timeout)
        if isinstance(message, wire.SpawnFailed):
            raise SpawnRefused(message)
        assert isinstance(message, wire.Exited)
        return message

    def run(self, *argv: str, timeout: float = 60, stdin: int | None = None, **options: object) -> Result:
        """Run a command to its end, its output in files."""
        with open(self.work.parent / "out", "w+b") as out, open(self.work.parent / "err", "w+b") as err:
            spawn = self.start(
                argv,
                stdin=stdin,
                stdout=out.fileno(),
                stderr=err.fileno(),
                **options,  # type: ignore[arg-type]
            )
            exited = self.exited(spawn, timeout)
            out.seek(0)
            err.seek(0)
            return Result(
                code=os.waitstatus_to_exitcode(exited.status), out=out.read(), err=err.read(), exited=exited
            )

    def shell(self, text: str, **options: object) -> Result:
        """Run a bash text."""
        return self.run("/bin/bash", "-c", text, **options)  # type: ignore[arg-type]

    def asked(self) -> list[wire.ExecAsked]:
        """The exec questions so far."""
        return [m for m in self.seen if isinstance(m, wire.ExecAsked)]

    def files(self) -> list[wire.FileAsked]:
        """The questions about paths so far."""
        return [m for m in self.seen if isinstance(m, wire.FileAsked)]

    def notes(self, kind: wire.NoteKind) -> list[wire.Note]:
        """The notes of a kind so far."""
        return [m for m in self.seen if isinstance(m, wire.Note) and m.kind == kind]


def setup(**changes: object) -> wire.Setup:
    """A SETUP that lets things run, changed by keywords."""
    values: dict[str, object] = {
        "flags": wire.SetupFlag.NONE,
        "answer_timeout_ms": 30_000,
        "landlock": RULES,
        "writable_roots": ("/work", "/tmp"),
        "quiet_paths": ("/dev/null", "/dev/tty", "/dev/zero"),
        "watched_names": (".git", ".bashrc"),
        "watched_env": ("LD_*", "PATH", "BASH_ENV"),
        "selftest_exec": "/bin/true",
        "selftest_write": "/usr/selftest",
    }
    return wire.Setup(**{**values, **changes})  # type: ignore[arg-type]


def bubblewrap(work: Path, guard: Path, link: Sequence[str], binds: Sequence[tuple[Path, str]]) -> list[str]:
    """The command that starts the guard in a container."""
    bwrap = shutil.which("bwrap")
    assert bwrap, "bubblewrap is missing: apt install bubblewrap"
    command = [bwrap, "--unshare-all", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    for path in SYSTEM:
        command += ["--ro-bind-try", path, path]
    for path in LINKS:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", str(work), "/work"]
    for source, target in binds:
        command += ["--ro-bind", str(source), target]
    command += ["--dir", "/run/broker", "--ro-bind", str(guard), "/run/broker/guard", "--ro-bind", str(guard), CLIENT]
    command += ["--remount-ro", "/"]
    if "sanitize" in guard.name:
        command += ["--setenv", "ASAN_OPTIONS", "detect_leaks=0"]
    return [*command, "/run/broker/guard", *link]


@contextmanager
def sandbox(
    folder: Path,
    policy: Policy = allow_all,
    *,
    binds: Sequence[tuple[Path, str]] = (),
    say_setup: bool = True,
    **changes: object,
) -> Iterator[Sandbox]:
    """Start a guard, set it up, and end it."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                bubblewrap(work, guard_binary(), ("--fd", str(theirs.fileno())), binds),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        box = Sandbox(link=ours, process=process, work=work, policy=policy)
        try:
            hello = box.receive()
            assert isinstance(hello, wire.Hello)
            box.hello = hello
            if os.geteuid() == 0:
                # Without this, a hostile program of root's own sandbox changes the host's /dev/null.
                seal(box.guard, DEVICES)
            if say_setup:
                box.send(setup(**changes))
                ready = box.until(lambda m: isinstance(m, wire.Ready | wire.Fatal))
                assert isinstance(ready, wire.Ready), ready
                box.ready = ready
            yield box
        finally:
            for descriptor in (*box.descriptors.values(), *box.views, *box.pipes):
                with suppress(OSError):
                    os.close(descriptor)
            for _, connection in box.connections:
                connection.close()
            ours.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                raise
