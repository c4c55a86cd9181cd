"""Step 4: a running sandbox, and the conversation with its guard.

In: a started container, and a Judge that answers the guard's questions. Out: processes. One thread reads the
guard's socket; whoever spawns waits on a Process. When anything on this side fails (the journal, the judge,
the protocol), the link closes: the guard exits and the kernel kills everything inside. Fail closed.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.decide.verdict import Allow
from broker.enforce import wire
from broker.enforce.bubblewrap_engine import BubblewrapContainer, explain
from broker.enforce.calls import CallLine
from broker.enforce.engine import Container, Engine, Plan
from broker.enforce.ready import readable
from broker.errors import BrokerError, GuardError, HostCannotEnforce
from broker.values import dataclass

START_SECONDS = 30.0
MOUNT_STEPS = frozenset({"user namespace", "overlay", "show", "hide", "seal", "capabilities"})  # guard/mounts.c
_UCRED = struct.Struct("iII")


class Judge(Protocol):
    """Answers the guard. Called on the sandbox's own thread, one question at a time."""

    def exec_asked(self, asked: wire.ExecAsked) -> wire.Answer | None:
        """Judge a program start. None: the answer comes later, by Sandbox.answer."""

    def file_asked(self, asked: wire.FileAsked) -> wire.Answer | None:
        """Judge a change to a path. None: the answer comes later, by Sandbox.answer."""

    def withdrawn(self, request: int) -> None:
        """Note that nobody waits any more for an answer that was to come later."""

    def noted(self, message: wire.Note | wire.Executed) -> None:
        """Record something that happened."""

    def call_came(self, line: CallLine) -> None:
        """Serve a process of the sandbox that calls, on another thread: return at once."""

    def connection_came(self, port: int, connection: socket.socket) -> None:
        """Take over the connection of a process inside to one of Setup.ports: return at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to start in a sandbox. `env` is its whole environment."""

    argv: tuple[str, ...]
    cwd: str
    env: tuple[str, ...]


class Process:
    """A program that was started in a sandbox. `done` becomes readable when it has ended or stopped."""

    def __init__(self, number: int) -> None:
        """Prepare the record of spawn `number`."""
        self.number = number
        self.pid = 0
        self.terminal = -1
        self.failed: wire.SpawnFailed | None = None
        self.exited: wire.Exited | None = None
        self.stopped = 0
        self.lost = False
        self.changed = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._settled = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()

    def settle(self, message: wire.Spawned | wire.SpawnFailed | None, terminal: int = -1) -> None:
        """Record how the start went; None: the sandbox is gone."""
        match message:
            case wire.Spawned():
                self.pid, self.terminal = message.pid, terminal
            case wire.SpawnFailed():
                self.failed = message
                self.finish(None)
            case None:
                self.lost = True
        self._settled.set()

    def finish(self, message: wire.Exited | None) -> None:
        """Record the end."""
        self.exited = message
        self._over.set()
        self._wake()

    def pause(self, signal: int) -> None:
        """Record that the process was stopped by job control (0: it goes on)."""
        self.stopped = signal
        self._wake()

    def wait_started(self, timeout: float | None = None) -> None:
        """Wait until it runs or has failed to start. Raises GuardError when the sandbox is gone."""
        self._settled.wait(timeout)
        if self.lost and self.pid == 0:
            raise GuardError("the sandbox ended before the command could start")

    def wait(self, timeout: float | None = None) -> wire.Exited | None:
        """Wait for the end; None when it did not start, is not over in time, or the sandbox is gone."""
        self._over.wait(timeout)
        return self.exited

    @property
    def over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._over.is_set()

    def _wake(self) -> None:
        """Make `changed` readable, unless whoever waited has seen the end already and closed it."""
        with self._lock:
            if self.changed >= 0:
                os.eventfd_write(self.changed, 1)

    def close(self) -> None:
        """Give back the descriptors."""
        with self._lock:
            os.close(self.changed)
            self.changed = -1
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1


class Sandbox:
    """A container whose guard is set up and proven. Use `Sandbox.start`."""

    def __init__(
        self, container: Container, hello: wire.Hello, ready: wire.Ready, route_socket: socket.socket, judge: Judge,
        views: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Take over a container after its handshake."""
        self.container = container
        self.hello = hello
        self.proofs = ready.proofs
        self.route_socket = route_socket
        self.views = views
        self.failure: Exception | None = None
        self._judge = judge
        self._link = container.link
        self._processes: dict[int, Process] = {}
        self._calls: dict[int, CallLine] = {}
        self._numbers = iter(range(1, 1 << 31))
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="guard-link", daemon=True)
        _ours.add(self)

    @classmethod
    def start(cls, engine: Engine, plan: Plan, setup: wire.Setup, judge: Judge) -> Sandbox:
        """Start a container and shake hands with its guard.

        Raises HostCannotEnforce when the container cannot be made, when Landlock is needed and missing, or
        when any attempt of the guard's self-test succeeded: then nothing has been started inside.
        """
        container = engine.start(plan)
        try:
            hello, route_socket = _greet(container)
            container.link.sendall(wire.encode(setup))
            ready, views = _expect(container, wire.Ready)
            if len(views) != len(setup.views):
                raise GuardError(f"the guard showed {len(views)} of {len(setup.views)} views")
        except BaseException:
            container.kill()
            container.remove()
            raise
        return cls(container, hello, ready, route_socket, judge, views)

    def listen(self) -> None:
        """Begin to answer the guard. Call once, after the proofs were judged."""
        self._thread.start()

    def spawn(
        self, allowed: Allow, command: Command, descriptors: Sequence[int] = (), *,
        scope: int = 0, terminal: tuple[int, int] | None = None, numbered: Callable[[int], None] | None = None,
    ) -> Process:  # fmt: skip
        """Start a program that was allowed. The three descriptors become its stdin, stdout and stderr.

        `terminal` (rows, columns) asks for a new terminal instead. `numbered` is told the spawn's number before the guard is.
        Returns at once; see `wait_started`.
        """
        del allowed  # a capability: holding one is the permission
        with self._lock:
            process = Process(next(self._numbers))
            if self._closed:
                process.settle(None)
                process.finish(None)
                return process
            self._processes[process.number] = process
        if numbered is not None:
            numbered(process.number)
        rows, columns = terminal or (0, 0)
        packet = wire.encode(
            wire.Spawn(
                spawn=process.number, scope=scope, cwd=command.cwd, argv=command.argv, env=command.env,
                terminal=terminal is not None, no_descriptors=terminal is None and not descriptors,
                rows=rows, columns=columns,
            )
        )  # fmt: skip
        try:
            socket.send_fds(self._link, [packet], list(descriptors) if terminal is None else [])
        except OSError:
            process.settle(None)
            process.finish(None)
        return process

    def signal(self, process: Process, number: int, *, group: bool = False) -> None:
        """Send a signal to a process, or to its foreground group. Does nothing when the sandbox is gone."""
        self._send(wire.Signal(spawn=process.number, signal=number, group=group))

    def kill_process(self, process: Process) -> None:
        """Kill everything that descends from a spawn, `setsid` or not."""
        self._send(wire.Kill(spawn=process.number))

    def answer(self, answer: wire.Answer) -> None:
        """Send an answer that was to come later, or have its process wait on. Does nothing when the sandbox is gone."""
        self._send(answer)

    def cut(self) -> None:
        """Close the link, and wait for nothing: the guard exits, and the kernel ends everything inside."""
        self._closed = True
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def kill(self) -> None:
        """End everything inside, and wait until the guard is gone."""
        with self._lock:
            self.cut()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)
        self.container.kill()

    def close(self) -> None:
        """Kill, and remove what the engine made."""
        self.kill()
        self.route_socket.close()
        views, self.views = self.views, ()
        for view in views:
            os.close(view)
        self.container.remove()

    def _send(self, message: wire.BrokerMessage) -> None:
        try:
            self._link.sendall(wire.encode(message))
        except OSError:
            pass

    def _listen(self) -> None:
        try:
            while True:
                packet, descriptors, _flags, _address = socket.recv_fds(
                    self._link, wire.MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC
                )
                if not packet:
                    break
                self._handle(wire.decode(packet), descriptors)
        except OSError as error:
            if not self._closed:
                self.failure = GuardError(f"the link to the guard broke: {os.strerror(error.errno or 0)}")
        except BrokerError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may go on unjudged
            self.failure = error
        finally:
            self._over()

    def _over(self) -> None:
        """The link is gone: the kernel has ended, or is about to end, everything inside."""
        with self._lock:
            self._closed = True
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for line in list(self._calls.values()):
            line.gone()
        for process in self._processes.values():
            if not process.over:
                process.settle(None)
                process.finish(None)

    def _handle(self, message: wire.GuardMessage, descriptors: list[int]) -> None:
        match message:
            case wire.ExecAsked():
                if (answer := self._judge.exec_asked(message)) is not None:
                    self._link.sendall(wire.encode(answer))
            case wire.FileAsked():
                if (answer := self._judge.file_asked(message)) is not None:
                    self._link.sendall(wire.encode(answer))
            case wire.Withdrawn():
                self._judge.withdrawn(message.request)
            case wire.Executed() | wire.Note():
                self._judge.noted(message)
            case wire.Spawned():
                self._processes[message.spawn].settle(message, descriptors[0] if descriptors else -1)
            case wire.SpawnFailed():
                self._processes.pop(message.spawn).settle(message)
            case wire.Exited():
                self._processes.pop(message.spawn).finish(message)
            case wire.Stopped():
                self._processes[message.spawn].pause(message.signal)
            case wire.Continued():
                self._processes[message.spawn].pause(0)
            case wire.Idle():
                pass
            case wire.Call():
                line = self._calls[message.call] = CallLine(message.call, message.pid, self._send)
                self._judge.call_came(line)
            case wire.CallData():
                self._calls[message.call].put(message.data)
            case wire.CallTaken():
                self._calls[message.call].taken()
            case wire.CallGone():
                self._calls.pop(message.call).gone()
            case wire.Connected():
                if descriptors:  # else this process has no room for another one: the caller sees its connection end
                    self._judge.connection_came(message.port, socket.socket(fileno=descriptors[0]))
            case wire.Fatal():
                raise GuardError(f"the guard gave up at {message.step}: {os.strerror(message.error)}")
            case wire.Hello() | wire.Ready():
                raise GuardError("the guard greeted twice")


_ours: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def _let_go() -> None:
    """Let go of the links, in a process that was forked off without an exec: a Python program's own worker.

    INVARIANT: a sandbox ends with its broker. A guard sees the end of its link when nobody holds the other side any more,
    and a worker that outlived the broker would (tests/api/test_lifetime.py).
    """
    for sandbox in list(_ours):
        sandbox._link.close()


os.register_at_fork(after_in_child=_let_go)


def _greet(container: Container) -> tuple[wire.Hello, socket.socket]:
    """Read HELLO with its route socket, and learn who sent it."""
    packet, descriptors, pid = _receive(container)
    hello = wire.decode(packet)
    if isinstance(hello, wire.Fatal):
        raise _cannot(hello)  # it is gone already
    if isinstance(container, BubblewrapContainer):
        container.identify(pid)
        # From here on descriptors may come, and the sender's credentials would take their room.
        container.link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    if not isinstance(hello, wire.Hello) or len(descriptors) != 1:
        raise GuardError("the guard did not greet")
    if hello.protocol != wire.PROTOCOL:
        raise GuardError(f"the guard speaks protocol {hello.protocol}, this broker {wire.PROTOCOL}: rebuild it")
    return hello, socket.socket(fileno=descriptors[0])


def _expect(container: Container, kind: type[wire.Ready]) -> tuple[wire.Ready, tuple[int, ...]]:
    packet, descriptors, _pid = _receive(container)
    message = wire.decode(packet)
    if isinstance(message, wire.Fatal):
        raise _cannot(message)
    if not isinstance(message, kind):
        raise GuardError(f"the guard sent {type(message).__name__} instead of {kind.__name__}")
    return message, tuple(descriptors)


def _cannot(fatal: wire.Fatal) -> HostCannotEnforce:
    why = os.strerror(fatal.error)
    if fatal.step in MOUNT_STEPS:
        return HostCannotEnforce(
            "workspace", f"the copy-on-write view cannot be made ({fatal.step}): {why}",
            'Use --engine docker, or set sandbox.workspace = "direct" in the profile',
        )  # fmt: skip
    remedy = "Run: broker doctor"
    if fatal.step.startswith("landlock") or fatal.error in (errno.ENOSYS, errno.EOPNOTSUPP):
        remedy = "It needs Linux 5.13 with Landlock enabled (lsm=landlock,… on the kernel's command line)"
    return HostCannotEnforce(fatal.step, why, remedy)


def _receive(container: Container) -> tuple[bytes, list[int], int]:
    """Receive one packet of the handshake, with its descriptors and the sender's pid (if the kernel says)."""
    link = container.link
    if not readable([link], START_SECONDS):
        raise GuardError(f"the guard did not answer within {START_SECONDS:.0f} s")
    size = socket.CMSG_SPACE(4 * wire.MAX_VIEWS) + socket.CMSG_SPACE(_UCRED.size)
    packet, ancillary, _flags, _address = link.recvmsg(wire.MAX_PACKET, size, socket.MSG_CMSG_CLOEXEC)
    if not packet:
        why = container.died_early() if isinstance(container, BubblewrapContainer) else ""
        if why:
            raise HostCannotEnforce("container", explain(why), "Run: broker doctor")
        raise GuardError("the guard died at its start")
    descriptors: list[int] = []
    pid = 0
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % 4])
            descriptors.extend(numbers)
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _UCRED.unpack(data)[0]
    return packet, descriptors, pid
