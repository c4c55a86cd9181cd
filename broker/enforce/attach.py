"""Step 4: the streams and signals between the operator's terminal and a process in the sandbox.

Descriptors of the host never go inside: a file opened for appending could be rewritten through one, a
terminal could be typed into. What goes inside is a pipe's end, or a terminal made by the container itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator

from broker.enforce.questions import NOBODY_ASKS, Questions, Turn
from broker.enforce.ready import readable, writable
from broker.enforce.sandbox import Process, Sandbox
from broker.values import dataclass

CHUNK = 1 << 18
GRACE_SECONDS = 5.0
BACKGROUND_SECONDS = 0.2
STOP_SECONDS = 1.0
REDRAW_SECONDS = 0.1
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class Ending:
    """How an attachment ended. `interrupted` is the signal that the broker itself was ended by, or 0."""

    timed_out: bool = False
    output_exceeded: bool = False
    memory_exceeded: bool = False
    layer_exceeded: bool = False
    interrupted: int = 0
    stopped: str = ""  # why somebody outside ended it: killed, budget, parent
    output_lost: str = ""  # why a stream of ours could not take what the command wrote

    @property
    def ours(self) -> bool:
        """Whether we ended it."""
        return (
            self.timed_out or self.output_exceeded or self.memory_exceeded or self.layer_exceeded
            or self.interrupted != 0 or self.stopped != ""
        )


class OutputBudget:
    """Counts what all streams of a task have written. `exceeded` is set when the cap is passed."""

    def __init__(self, cap: int | None, notify: Callable[[], None]) -> None:
        """Start at zero; `notify` is called once, from a stream's thread."""
        self._left = cap
        self._lock = threading.Lock()
        self._notify = notify
        self.exceeded = False
        self.written = 0

    @property
    def unlimited(self) -> bool:
        """Whether there is no cap."""
        return self._left is None

    def take(self, count: int) -> int:
        """Return how many of `count` bytes may still be shown."""
        with self._lock:
            allowed = count if self._left is None else min(count, self._left)
            self.written += allowed
            if self._left is not None:
                self._left -= allowed
            if allowed < count and not self.exceeded:
                self.exceeded = True
                self._notify()
            return allowed


Sink = Callable[[bytes], None]  # takes what was written, as it comes
Source = Callable[[], bytes]  # returns what comes next, b"" at the end


def copy_stream(
    source: int, target: int | Sink, budget: OutputBudget | None, flowing: threading.Event | None = None
) -> None:
    """Copy until the source ends, without a copy through this process where the kernel can splice.

    Closes `source`. A target that is closed (EPIPE) ends the copy: the writer then gets SIGPIPE, as it
    would without a broker. Raises OSError when the target cannot take it (ENOSPC). While `flowing` is not set, nothing goes on.
    """
    # A cap needs to see the bytes. And splice(2) reads a file's position before it waits for data, so that it
    # would write over what somebody else (our own reports on the same stderr) wrote meanwhile.
    try:
        spliceable = (
            isinstance(target, int) and (budget is None or budget.unlimited) and not stat.S_ISREG(os.fstat(target).st_mode)
        )
        while True:
            if flowing is not None:
                readable([source])
                flowing.wait()
            if spliceable and isinstance(target, int):
                try:
                    moved = os.splice(source, target, CHUNK)
                except BlockingIOError:  # somebody made our descriptor non-blocking, for all who share it
                    readable([source])
                    writable(target)
                    continue
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOSYS):
                        raise
                    spliceable = False
                    continue
                if moved == 0:
                    return
                if budget is not None:
                    budget.take(moved)
                continue
            data = os.read(source, CHUNK)
            if not data:
                return
            if budget is not None:
                data = data[: budget.take(len(data))]
            if isinstance(target, int):
                write_all(target, data)
            else:
                target(data)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
            raise
    finally:
        os.close(source)


def write_all(target: int, data: bytes) -> None:
    """Write all of it, also to a descriptor that somebody made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            writable(target)


def feed_stdin(source: int | Source, target: int, keyboard: threading.Lock | None = None) -> None:
    """Copy our stdin into the process's, and close its end when ours ends. `keyboard` is who may read from a terminal."""
    try:
        with contextlib.suppress(OSError):
            while data := _read_when_ours(source, keyboard) if isinstance(source, int) else source():
                write_all(target, data)
    finally:
        os.close(target)


def _read_when_ours(source: int, keyboard: threading.Lock | None) -> bytes:
    """Read, and wait where there is nothing, or where the terminal is not ours to read from."""
    while True:
        try:
            if keyboard is None:
                return os.read(source, 65536)
            readable([source])
            with keyboard:
                if readable([source], 0):  # else it was typed at a question
                    return os.read(source, 65536)
        except BlockingIOError:
            readable([source])
        except OSError as error:
            # SIGTTIN is ignored: a job in the background gets EIO instead of being stopped for input that its
            # command may never want. It is in the foreground again when the shell says so; nothing tells us.
            if error.errno != errno.EIO or not _in_background(source):
                raise
            time.sleep(BACKGROUND_SECONDS)


def _in_background(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False


class Streams:
    """Three pipes: the inside ends to hand over, the outside ends served by threads."""

    def __init__(
        self, stdin: int | Source, stdout: int | Sink, stderr: int | Sink, budget: OutputBudget, *,
        owner: tuple[int, int] | None = None, turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """Open the pipes. A stdin of -1 gives the process an empty one. What may lead to our terminal waits for its `turn`.

        `owner` (uid, gid) is the task's user, when that is another than ours: /dev/stdout leads to the pipe, and
        opening it again is judged by the pipe's owner and mode (0600).
        """
        in_read, in_write = os.pipe2(os.O_CLOEXEC)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(out_read, fcntl.F_SETPIPE_SZ, 1 << 20)
        self.inside = (in_read, out_write, err_write)
        if owner is not None and os.geteuid() == 0:
            for descriptor in self.inside:
                os.fchown(descriptor, *owner)
        self.problems: list[str] = []
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open, self._closed, self._lock = 2, False, threading.Lock()
        self._outputs = [
            threading.Thread(target=self._copy, args=("stdout", out_read, stdout, budget, _flowing(turn, stdout)), daemon=True),
            threading.Thread(target=self._copy, args=("stderr", err_read, stderr, budget, _flowing(turn, stderr)), daemon=True),
        ]
        if stdin == -1:
            os.close(in_write)
            self._input = None
        else:
            keyboard = turn.keyboard if turn is not None and isinstance(stdin, int) and os.isatty(stdin) else None
            self._input = threading.Thread(target=feed_stdin, args=(stdin, in_write, keyboard), daemon=True)

    def start(self) -> None:
        """Close the inside ends (the process has them now) and serve the outside ones."""
        for descriptor in self.inside:
            os.close(descriptor)
        for thread in (*self._outputs, *([self._input] if self._input else [])):
            thread.start()

    def _copy(
        self, name: str, source: int, target: int | Sink, budget: OutputBudget, flowing: threading.Event | None
    ) -> None:
        try:
            copy_stream(source, target, budget, flowing)
        except OSError as error:
            self.problems.append(f"{name}: {error.strerror}")
        finally:
            with self._lock:
                self._open -= 1
                os.eventfd_write(self._ended, 1)
                if self._closed and not self._open:
                    os.close(self._ended)

    def close(self) -> None:
        """Nobody waits for the output any more: what still comes is delivered, and then nothing of ours is left."""
        with self._lock:
            self._closed = True
            if not self._open:
                os.close(self._ended)

    def drain(self, seconds: float | None, signals: int | None = None) -> bool:
        """Wait until all output is delivered, as long as our reader takes: a pager is slow, not stuck.

        Ends before that after `seconds`, and when a signal on `signals` wants us to end. Returns whether it was all.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        sources = [self._ended] if signals is None else [self._ended, signals]
        left = len(self._outputs)
        while left:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = readable(sources, timeout)
            if self._ended in ready:
                left -= os.eventfd_read(self._ended)
            if signals in ready and signals is not None:
                numbers = os.read(signals, 256)
                if signal.SIGTSTP in numbers:
                    os.kill(os.getpid(), signal.SIGSTOP)
                if any(number in ENDING for number in numbers):
                    return False
            if not ready:
                return False
        return True


def _flowing(turn: Turn | None, target: int | Sink) -> threading.Event | None:
    """Return what output waits for that can come out on a terminal, through a pipe too: for none of ours in a file."""
    return turn.flowing if turn is not None and isinstance(target, int) and not stat.S_ISREG(os.fstat(target).st_mode) else None


@contextlib.contextmanager
def signals_as_events() -> Iterator[int]:
    """Turn the signals that people send into bytes on a descriptor. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            yield reader
        finally:
            os.close(reader)
            os.close(writer)
        return
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # What we were told to ignore (nohup, a shell's background job) stays ignored.
    caught = [
        number for number in (*FORWARDED, signal.SIGTSTP, signal.SIGWINCH, signal.SIGCONT)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in caught}
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # for good: the thread that reads our stdin outlives the task
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@dataclass(slots=True)
class _Watch:
    """What the waiting loop looks at besides the process."""

    deadline: float | None
    ending: Ending
    budget: OutputBudget | None
    exceeded: Callable[[], str]
    stop_at: float | None = None

    def timeout(self) -> float | None:
        times = [moment for moment in (self.deadline, self.stop_at) if moment is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def must_kill(self) -> bool:
        now = time.monotonic()
        if self.budget is not None and self.budget.exceeded:
            self.ending.output_exceeded = True
        elif over := self.exceeded():
            self.ending.memory_exceeded = over == "memory"
            self.ending.layer_exceeded = over == "layer"
            self.ending.stopped = over if over not in ("memory", "layer") else ""
        elif self.deadline is not None and now >= self.deadline:
            self.ending.timed_out = True
        elif self.stop_at is None or now < self.stop_at:
            return False
        return True


def wait_attached(
    sandbox: Sandbox, process: Process, *, seconds: float | None, wake: int, budget: OutputBudget | None,
    exceeded: Callable[[], str], signals: int, questions: Questions = NOBODY_ASKS,
) -> Ending:  # fmt: skip
    """Wait for the process's end, forward signals, and stop waiting at a limit.

    `wake` becomes readable when the budget or the memory watch has something to say. Returns how it ended;
    killing the rest is the caller's.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    watch = _Watch(deadline, Ending(), budget, exceeded)
    try:
        while not process.over:
            ready = readable([process.changed, wake, signals, *questions.sources], _soonest(watch.timeout(), questions.timeout()))
            if signals in ready:
                numbers = os.read(signals, 256)
                _forward(sandbox, process, numbers, watch)
                if signal.SIGWINCH in numbers:
                    questions.redraw()
                if signal.SIGTSTP in numbers:
                    questions.leave()
                    _stop_together(sandbox, process)
            questions.attend(ready)
            if process.changed in ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(process.changed)
            if not process.over and watch.must_kill():
                break
    finally:
        questions.leave()
    return watch.ending


def _soonest(*seconds: float | None) -> float | None:
    return min((one for one in seconds if one is not None), default=None)


def _stop_together(sandbox: Sandbox, process: Process) -> None:
    """Stop the command, then ourselves (Ctrl-Z without a terminal of the command's own), and go on together.

    In this order: a start that is being judged is answered first, and nothing asks while nobody can answer. A
    command that does not stop is not waited for.
    """
    _stop(sandbox, process)
    if process.over:
        return
    os.kill(os.getpid(), signal.SIGSTOP)
    process.stopped = 0
    sandbox.signal(process, signal.SIGCONT, group=True)


def _stop(sandbox: Sandbox, process: Process) -> None:
    """Stop the command, and wait a moment until it has."""
    sandbox.signal(process, signal.SIGTSTP, group=True)
    deadline = time.monotonic() + STOP_SECONDS
    while not process.stopped and not process.over and (left := deadline - time.monotonic()) > 0:
        if readable([process.changed], left):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(process.changed)


def _forward(sandbox: Sandbox, process: Process, numbers: bytes, watch: _Watch) -> None:
    for number in numbers:
        if number in FORWARDED:
            sandbox.signal(process, number, group=True)
            if number in ENDING and watch.stop_at is None:
                if number != signal.SIGINT:
                    watch.stop_at = time.monotonic() + GRACE_SECONDS
                watch.ending.interrupted = number


# The terminal


def terminal_size(descriptor: int) -> tuple[int, int]:
    """Return (rows, columns) of a terminal."""
    packed = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, b"\0" * 8)
    rows, columns, _, _ = struct.unpack("HHHH", packed)
    return rows or 24, columns or 80


def serve_terminal(
    sandbox: Sandbox, process: Process, *, stdin: int, stdout: int, seconds: float | None, wake: int,
    budget: OutputBudget, exceeded: Callable[[], str], signals: int, questions: Questions = NOBODY_ASKS,
) -> Ending:  # fmt: skip
    """Connect our terminal with the process's until it ends. Ours is raw meanwhile, and restored always.

    INVARIANT: while a question is on it, nothing goes from one to the other: the command's output waits in its terminal, as
    after Ctrl-S, and what is typed is for the question (tests/conformance/test_approvals_terminal.py).
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    watch = _Watch(deadline, Ending(), budget, exceeded)
    saved = termios.tcgetattr(stdin)
    master = process.terminal
    others = {process.changed, wake, signals}
    streams = {stdin, master}
    redraw_at: float | None = None
    tty.setraw(stdin, termios.TCSANOW)
    try:
        while not process.over:
            if questions.spoilt():
                # A signal alone (SIGWINCH) would not do: many programs draw nothing when they find the size that they know.
                _resize(stdin, master, fewer=1)
                redraw_at = time.monotonic() + REDRAW_SECONDS
            open_now = others if questions.asking else others | streams
            redraw_in = None if redraw_at is None else max(0.0, redraw_at - time.monotonic())
            ready = readable({*open_now, *questions.sources}, _soonest(watch.timeout(), redraw_in, questions.timeout()))
            if redraw_at is not None and time.monotonic() >= redraw_at:
                redraw_at = None
                _resize(stdin, master)
            if signals in ready:
                for number in os.read(signals, 256):
                    if number == signal.SIGWINCH:
                        _resize(stdin, master)
                        questions.redraw()
                    elif number in FORWARDED:
                        _forward(sandbox, process, bytes([number]), watch)
                    elif number == signal.SIGTSTP and questions.asking:  # Ctrl-Z: what is held at its start does not stop
                        questions.leave()
                        _stop(sandbox, process)
                        if not process.over:
                            _suspend(sandbox, process, stdin, saved)
                    elif number == signal.SIGTSTP:  # not from a key: those are the command's while it has the terminal
                        sandbox.signal(process, number, group=True)
            if not questions.asking:
                if master in ready and not _pump(master, stdout, budget, questions.saw):
                    streams.discard(master)
                if stdin in ready and not _pump(stdin, master, None):
                    streams.discard(stdin)
            questions.attend(ready)
            if process.changed in ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(process.changed)
                if process.stopped:
                    questions.leave()
                    _suspend(sandbox, process, stdin, saved)
            if not process.over and watch.must_kill():
                break
        return watch.ending
    finally:
        questions.leave()
        if master in streams:
            _drain_terminal(master, stdout, budget)
        with contextlib.suppress(termios.error):  # the terminal is gone: there is nothing to restore
            termios.tcsetattr(stdin, termios.TCSADRAIN, saved)


def _pump(source: int, target: int, budget: OutputBudget | None, saw: Callable[[bytes], None] | None = None) -> bool:
    """Move what is there, and let `saw` know. Returns False when the source is at its end."""
    try:
        data = os.read(source, 65536)
    except BlockingIOError:
        return True
    except OSError:
        return False  # EIO: the last process with this terminal has closed it
    if not data:
        return False
    if budget is not None:
        data = data[: budget.take(len(data))]
    if saw is not None:
        saw(data)
    with contextlib.suppress(OSError):
        write_all(target, data)
    return True


def _drain_terminal(master: int, stdout: int, budget: OutputBudget) -> None:
    """Show what was written before the end."""
    while readable([master], 0) and _pump(master, stdout, budget):
        pass


def _resize(stdin: int, master: int, *, fewer: int = 0) -> None:
    """Give the command's terminal the size of ours, or so many rows fewer."""
    rows, columns = terminal_size(stdin)
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", max(1, rows - fewer) if fewer else rows, columns, 0, 0))


def _suspend(sandbox: Sandbox, process: Process, stdin: int, saved: list[object]) -> None:
    """The process was stopped (Ctrl-Z): stop too, and go on when the operator's shell says `fg`."""
    termios.tcsetattr(stdin, termios.TCSADRAIN, saved)  # type: ignore[arg-type]
    os.kill(os.getpid(), signal.SIGSTOP)
    tty.setraw(stdin, termios.TCSANOW)
    process.stopped = 0
    _resize(stdin, process.terminal)
    sandbox.signal(process, signal.SIGCONT, group=True)
