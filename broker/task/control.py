"""The control socket of a run: the operator's tools look at its tree of tasks, follow it, and end a part of it.

In: JSON lines from a process of the same user (or root). Out: JSON lines: the picture of the tree, then what changes in
it. One thread of the run's process serves it, and never waits for a reader: what is not read in time is replaced by a
fresh picture. Its wire format is in docs/delegation.md, its other end in broker/task/watching.py.

INVARIANT: no task reaches it. It lies in no folder that is shown inside, and a process of a pid namespace below ours is
turned away (tests/task/test_control.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from broker.decide.verdict import Deny
from broker.enforce.runtime import OwnerMark, runtime_base
from broker.errors import HostCannotEnforce, JournalError
from broker.task.control_socket import (
    FOLDER,
    control_folder,
    is_operator_himself,
    is_our_operator,
    listen,
    operator_of,
    socket_name,
)
from broker.task.tree import Node, Tree, denial_row
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.task.desk import ApprovalDesk

TICK = 0.01  # seconds between two looks at what has changed: a hundred changes of one task within it are one line
MOST_READERS = 32
MOST_REQUEST = 16384  # bytes: a reason of 500 characters, each of which takes twelve in ASCII, and more
CHANNELS = ("approvals", "page")  # by which a question is answered from outside of the run
MOST_WAITING = 1 << 20  # bytes for one reader
MOST_SHOWN = 1 << 26  # bytes of questions: an argument list is up to 160 KiB, and more with its control characters written out
MOST_DENIALS = 500  # different ones within a tick
KILLED = "killed"


class _Reader:
    """Somebody who is connected. Lines wait here until the kernel takes them."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.request = bytearray()
        self.follows = False
        self.behind = False
        self.leaving = False
        self._lines: deque[bytes] = deque()
        self._sent = 0  # bytes of the first line
        self._waiting = 0

    def put(self, line: bytes, *, most: int = MOST_WAITING) -> None:
        """Have a line sent. When too much waits, everything but a line that is half sent goes; a picture comes instead."""
        if self.behind:
            return
        if self._waiting + len(line) > most:
            kept = [self._lines[0]] if self._sent else []
            self._lines, self._waiting, self.behind = deque(kept), sum(map(len, kept)), True
            return
        self._lines.append(line)
        self._waiting += len(line)

    def send(self) -> None:
        """Send what the kernel takes now. Raises OSError when nobody reads any more."""
        with contextlib.suppress(BlockingIOError):
            while self._lines:
                line = self._lines[0]
                self._sent += self.connection.send(memoryview(line)[self._sent :], socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
                if self._sent == len(line):
                    self._lines.popleft()
                    self._waiting -= len(line)
                    self._sent = 0

    @property
    def idle(self) -> bool:
        """Whether everything was sent."""
        return not self._lines


@dataclass(slots=True)
class _Denied:
    """A denial within a tick. `at` is the time of its first, in seconds since 1970."""

    task: str
    tool: str
    denial: Deny
    at: float
    count: int = 1


class Control:
    """The control socket of a run, from `with` to the end of the block. `facts` are those of the run, for its readers."""

    def __init__(self, run: str, tree: Tree, facts: Mapping[str, object], approvals: ApprovalDesk | None = None) -> None:
        """Prepare it; nothing is made yet. `approvals` has the questions of the run, if anybody is asked."""
        self._approvals = approvals
        self._name = socket_name(run, OwnerMark.mine())
        self._tree = tree
        self._facts = {"run": run, "pid": os.getpid(), **facts}
        self._readers: dict[int, _Reader] = {}
        self._lock = threading.Lock()  # taken with the tree's lock held; so never the other way round
        self._followed = False
        self._woken = False
        self._changed: dict[str, tuple[Node, set[str]]] = {}
        self._denials: dict[tuple[str, ...], _Denied] = {}
        self._left_out = 0
        self._closing = False
        self._last = 0.0
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def __enter__(self) -> Self:
        """Make the socket, and begin. Raises HostCannotEnforce: what nobody could end must not run."""
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._folder = control_folder()
            self._listener = listen(self._folder, self._name, MOST_READERS)
        except OSError as error:
            os.close(self._wake)
            self._selector.close()
            raise HostCannotEnforce(
                "control socket", f"it cannot be made in {runtime_base() / FOLDER}: {error.strerror}",
                "Make room there, or set BROKER_RUNTIME_DIR to another folder of yours",
            ) from None  # fmt: skip
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._tree.listen(self._hear)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Say the last that there is to say, to whoever reads at once, and remove the socket."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)
        for reader in list(self._readers.values()):
            self._drop(reader)
        self._selector.close()
        self._listener.close()
        os.close(self._folder)
        os.close(self._wake)

    # Called by the tree, with its lock held

    def _hear(self, what: str, node: Node) -> None:
        with self._lock:
            if not self._followed:
                return
            self._changed.setdefault(node.path, (node, set()))[1].add(what)
            if what == "denied" and node.latest is not None:
                self._note_denial(node, *node.latest)
            if self._woken:
                return
            self._woken = True
        os.eventfd_write(self._wake, 1)

    def _note_denial(self, node: Node, tool: str, denial: Deny) -> None:
        key = (node.path, tool, denial.rule, denial.what)
        if (known := self._denials.get(key)) is not None:
            known.count += 1
        elif len(self._denials) < MOST_DENIALS:
            self._denials[key] = _Denied(node.path, tool, denial, time.time())
        else:
            self._left_out += 1

    # On the thread

    def _serve(self) -> None:
        due: float | None = None
        while not self._closing:
            timeout = None if due is None else max(0.0, due - time.monotonic())
            for key, events in self._selector.select(timeout):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wake:
                    os.eventfd_read(self._wake)
                    due = self._last + TICK
                else:
                    self._attend(key.data, events)
            if due is not None and time.monotonic() >= due:
                due, self._last = None, time.monotonic()
                self._tell_changes()
        self._tell_changes()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # no descriptors left, for example: whoever it is asks again
            time.sleep(TICK)
            return
        if len(self._readers) >= MOST_READERS or not is_our_operator(connection):
            connection.close()
            return
        connection.setblocking(False)
        reader = self._readers[connection.fileno()] = _Reader(connection)
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def _attend(self, reader: _Reader, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and not reader.leaving:
                self._read(reader)
            self._send(reader)
        except OSError:
            self._drop(reader)

    def _read(self, reader: _Reader) -> None:
        """Take what was asked. Raises OSError when nobody is there any more."""
        try:
            data = reader.connection.recv(MOST_REQUEST)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        reader.request += data
        while b"\n" in reader.request and not reader.leaving:
            line, _, rest = bytes(reader.request).partition(b"\n")
            reader.request[:] = rest
            self._answer(reader, line)
        if len(reader.request) > MOST_REQUEST:
            self._answer(reader, bytes(reader.request))

    def _answer(self, reader: _Reader, line: bytes) -> None:
        match _decoded(line):
            case {"op": "tree"}:
                reader.put(self._picture())
            case {"op": "follow"}:
                with self._lock:
                    self._followed = True  # before the picture is made: what changes meanwhile is told once more
                reader.follows = True
                reader.put(self._picture())
            case {"op": "stop", "task": str(path)}:
                stopped = self._tree.stop(path, KILLED)
                reader.put(_encoded({"event": "stopping", "task": path, "tasks": stopped}))
            case {"op": "waive", "task": str(path), "step": str(step), "check": int(check), "because": str(because)}:
                reader.put(_encoded(self._waive(reader, path, (step, check), because)))
            case {"op": "approvals", **more}:
                rows = self._approvals.rows(claims=more.get("claims") is True) if self._approvals is not None else []
                reader.put(_encoded({"event": "approvals", "asks": self._approvals is not None, "waiting": rows}), most=MOST_SHOWN)
            case {"op": "answer", "approval": int(name), "how": "once" | "session" | "deny" as how, "why": str(why), "word": str(word), **more}:
                channel = str(more.get("channel", CHANNELS[0]))
                reader.put(_encoded(self._answered(reader, name, how, why, word, channel if channel in CHANNELS else CHANNELS[0])))
            case _:
                reason = "say tree, follow, stop with a task, waive with a check of one, approvals, or answer with one"
                reader.put(_encoded({"event": "error", "reason": reason}))
                reader.leaving = True

    def _waive(self, reader: _Reader, path: str, check: tuple[str, int], because: str) -> dict[str, object]:
        """Let a check of a task's plan be, on the word of whoever is connected: the kernel says who that is."""
        from broker.decide.plan import Unfounded
        from broker.task.plan import as_table

        node = self._tree.find(path)
        if node is None or node.plan is None:
            return {"event": "refused", "reason": f"there is no task {path!a} that runs"}
        try:
            found = node.plan().waive(*check, who=operator_of(reader.connection), because=because)
        except JournalError as error:
            return {"event": "refused", "reason": str(error)}
        if isinstance(found, Unfounded):
            return {"event": "refused", "reason": found.reason}
        return {"event": "waived", "task": path, "plan": as_table(found)}

    def _answered(self, reader: _Reader, name: int, how: str, why: str, word: str, channel: str) -> dict[str, object]:
        """Answer a question on the word of whoever is connected: it must be the operator himself, not root for him."""
        if self._approvals is None:
            return {"event": "refused", "reason": "nobody is asked in this run"}
        if not is_operator_himself(reader.connection):
            return {"event": "refused", "reason": "only the user whose run it is can answer"}
        from broker.task.desk import Given, NotTaken, Taken, WordWanted

        given = Given(how=how, who=operator_of(reader.connection), channel=channel, why=why, word=word)
        match self._approvals.answer(name, given):
            case Taken(seconds=seconds):
                return {"event": "answered", "approval": name, "how": how, "seconds": round(seconds, 3)}
            case WordWanted(word=wanted, pause=pause):
                return {"event": "word", "approval": name, "word": wanted, "pause": pause}
            case NotTaken(reason=reason):
                return {"event": "refused", "reason": reason}

    def _send(self, reader: _Reader) -> None:
        reader.send()
        if reader.idle and reader.behind:
            reader.behind = False
            reader.put(self._picture(missed=True), most=1 << 40)
            reader.send()
        if reader.idle and reader.leaving:
            raise ConnectionResetError
        wanted = selectors.EVENT_READ if reader.idle else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(reader.connection).events != wanted:
            self._selector.modify(reader.connection, wanted, reader)

    def _drop(self, reader: _Reader) -> None:
        self._readers.pop(reader.connection.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(reader.connection)
        reader.connection.close()
        with self._lock:
            self._followed = any(other.follows for other in self._readers.values())
            if not self._followed:
                self._changed, self._denials, self._left_out = {}, {}, 0

    def _picture(self, *, missed: bool = False) -> bytes:
        return _encoded({"event": "tree", **self._facts, "missed": missed, "tasks": self._tree.picture()})

    def _tell_changes(self) -> None:
        """Tell all followers what has changed since the last time."""
        with self._lock:
            changed, self._changed = self._changed, {}
            denials, self._denials = self._denials, {}
            left_out, self._left_out = self._left_out, 0
            self._woken = False
        lines = [
            _encoded({"event": "changed", "what": sorted(what), "task": node.as_dict()}) for node, what in changed.values()
        ]
        lines += [
            _encoded({"event": "denied", "task": one.task, "at": one.at, **denial_row(one.tool, one.denial), "count": one.count})
            for one in denials.values()
        ]  # fmt: skip
        if left_out:
            lines.append(_encoded({"event": "denials_left_out", "count": left_out}))
        if not lines:
            return
        whole = b"".join(lines)
        for reader in [one for one in self._readers.values() if one.follows]:
            reader.put(whole)
            try:
                self._send(reader)
            except OSError:
                self._drop(reader)


def _decoded(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _encoded(table: Mapping[str, object]) -> bytes:
    return json.dumps(table, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
