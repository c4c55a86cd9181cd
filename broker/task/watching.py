"""The other end of the control sockets: which runs there are, what they do, and how a part of one is ended.

In: the sockets of this user's runs (broker/task/control.py). Out: their pictures, kept up to date. What comes over a
socket is data of tasks: whoever shows it escapes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import field
from typing import Any

from broker.enforce.runtime import runtime_bases
from broker.task.control_socket import FOLDER, address, open_folder, owner_of
from broker.values import dataclass

PATIENCE = 2.0  # seconds for an answer; a broker that is stopped gives none
PATIENCE_OF_AN_ANSWER = 30.0  # a yes takes as long as it takes to look at the files once more: hundreds of MiB at the worst
DENIALS_SHOWN = 100
Row = dict[str, Any]


@dataclass(slots=True)
class Watched:
    """One run, as far as it has told us. `tasks` by path, parents first; `answers` is false for a broker that does not."""

    run: str
    connection: socket.socket
    facts: Row = field(default_factory=dict)
    tasks: dict[str, Row] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)  # when each row came, for times that go on
    denials: deque[Row] = field(default_factory=lambda: deque(maxlen=DENIALS_SHOWN))
    over: bool = False
    stopping: list[str] | None = None
    answer: Row | None = None  # to what was asked last, where that has one
    _buffer: bytearray = field(default_factory=bytearray)

    @property
    def answers(self) -> bool:
        """Whether a picture has come."""
        return bool(self.facts)

    def ask(self, **request: object) -> None:
        """Send a request. A run that is over is noted, and nothing else."""
        try:
            self.connection.sendall(json.dumps(request).encode("ascii") + b"\n")
        except OSError:
            self.over = True

    def receive(self) -> None:
        """Take what has come, without waiting."""
        try:
            data = self.connection.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.over = True
            return
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: Row) -> None:
        now = time.monotonic()
        match message:
            case {"event": "tree", "tasks": list(rows)}:
                if not self.answers:  # what was refused before we came
                    self.denials += [
                        {"task": row["task"], "at": 0.0, "count": row["denied"], **row["last_denial"]}
                        for row in rows if row["last_denial"] is not None
                    ]  # fmt: skip
                self.facts = {key: value for key, value in message.items() if key not in ("event", "tasks", "missed")}
                self.tasks = {row["task"]: row for row in rows}
                self.heard = dict.fromkeys(self.tasks, now)
            case {"event": "changed", "task": dict(row)}:
                self.tasks[row["task"]] = row
                self.heard[row["task"]] = now
            case {"event": "denied"}:
                self.denials.append(message)
            case {"event": "stopping", "tasks": list(paths)}:
                self.stopping = paths
            case {"event": "waived" | "refused" | "approvals" | "answered" | "word"}:
                self.answer = message

    def seconds(self, row: Row) -> float:
        """How long a task ran, or has run by now."""
        passed = 0.0 if row["state"] == "ended" else time.monotonic() - self.heard[row["task"]]
        return float(row["seconds"]) + passed

    def id_of(self, path: str) -> str:
        """Return what a task is called on the command line: the run's id, and its place in the tree."""
        return self.run if path == "root" else f"{self.run}.{place_of(path)}"

    def below(self, path: str = "root") -> Iterator[Row]:
        """Yield a task and all below it, parents first, children in their order."""
        children: dict[str | None, list[Row]] = {}
        for row in self.tasks.values():
            children.setdefault(row["parent"], []).append(row)
        pending = [self.tasks[path]] if path in self.tasks else []
        while pending:
            row = pending.pop()
            yield row
            pending += sorted(children.get(row["task"], []), key=_number, reverse=True)

    def close(self) -> None:
        """Leave."""
        self.connection.close()


def place_of(path: str) -> str:
    """Return a task's path as people write it behind a run's id: 1.2 for root/1/2, panel.1 for a judge's panel/1."""
    return path.removeprefix("root/").replace("/", ".")


def _number(row: Row) -> int:
    return int(row["task"].rpartition("/")[2])


def connect(known: Collection[str] = ()) -> dict[str, Watched]:
    """Connect to every run of this user that is not known yet; by its id, oldest first.

    What a dead broker left behind is removed on the way.
    """
    found: dict[str, Watched] = {}
    for folder, name, run, alive in _sockets():
        if alive and run not in known and (connection := _connected(folder, name)) is not None:
            found[run] = Watched(run, connection)
    return dict(sorted(found.items()))


def sweep() -> list[str]:
    """Remove the sockets that dead brokers left behind. Returns a line for each."""
    return [f"control socket {name}" for _, name, _, alive in _sockets() if not alive]


def _sockets() -> Iterator[tuple[int, str, str, bool]]:
    """Yield each socket, as its open folder, name, run, and whether its broker lives. Dead ones are gone by then."""
    for base in runtime_bases():
        try:
            folder = open_folder(base / FOLDER)
        except OSError:
            continue
        try:
            for name in sorted(os.listdir(base / FOLDER)):
                if (said := owner_of(name.removeprefix("."))) is None:
                    continue
                run, owner = said
                alive = owner.alive()
                if not alive:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                if not name.startswith("."):
                    yield folder, name, run, alive
        finally:
            os.close(folder)


def _connected(folder: int, name: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(address(folder, name))
    except OSError:  # it has just ended
        connection.close()
        return None
    return connection


def pictures(runs: dict[str, Watched], *, follow: bool = False) -> None:
    """Ask all for their picture, and wait until each has come or PATIENCE is over."""
    for one in runs.values():
        one.ask(op="follow" if follow else "tree")
    deadline = time.monotonic() + PATIENCE
    while waiting := [one for one in runs.values() if not one.answers and not one.over]:
        left = deadline - time.monotonic()
        if left <= 0 or not listen(waiting, left):
            break


@contextlib.contextmanager
def joined(*, follow: bool = False) -> Iterator[dict[str, Watched]]:
    """Have the pictures of all runs, and leave them at the end of the block."""
    runs = connect()
    try:
        pictures(runs, follow=follow)
        yield runs
    finally:
        for one in runs.values():
            one.close()


def listen(runs: list[Watched], seconds: float) -> bool:
    """Wait at most so long until some of them say something, and take it. Returns whether any did."""
    waiting = {one.connection.fileno(): one for one in runs if not one.over}
    if not waiting:
        return False
    poller = select.poll()  # select(2) takes no descriptor above 1023
    for descriptor in waiting:
        poller.register(descriptor, select.POLLIN)
    ready = poller.poll(seconds * 1000)
    for descriptor, _ in ready:
        waiting[descriptor].receive()
    return bool(ready)


def stop(run: Watched, path: str, seconds: float) -> tuple[list[str], list[str]]:
    """End a task and all below it, and wait until no process of theirs is left. `run` must be followed.

    Returns the paths that were ended, and those of them that still run after so many seconds. None: there was nothing.
    """
    run.stopping = None
    run.ask(op="stop", task=path)
    deadline = time.monotonic() + seconds
    while not run.over and (left := deadline - time.monotonic()) > 0:
        if run.stopping is not None and not _still_running(run):
            break
        listen([run], left)
    ended: list[str] = run.stopping or []
    return ended, [] if run.over else _still_running(run)


def waive(run: Watched, path: str, step: str, check: int, because: str) -> Row | None:
    """Have a check of a task's plan waived. Returns the answer (waived with the plan, refused with a reason); None: there is none."""
    return _answer_of(run, op="waive", task=path, step=step, check=check, because=because)


def questions(run: Watched, *, claims: bool = False) -> Row | None:
    """Return what waits for the operator: `asks` says whether anybody is asked in the run, `waiting` has the questions.

    With `claims` each has what a model says about the task as well.
    """
    return _answer_of(run, op="approvals", claims=claims)


def answer(run: Watched, approval: int, how: str, *, why: str = "", word: str = "", channel: str = "approvals") -> Row | None:
    """Answer a question. Returns answered, word (it has to be typed, after a pause) or refused (with a reason); None: no answer."""
    asked = {"op": "answer", "approval": approval, "how": how, "why": why, "word": word, "channel": channel}
    return _answer_of(run, seconds=PATIENCE_OF_AN_ANSWER, **asked)


def _answer_of(run: Watched, *, seconds: float = PATIENCE, **request: object) -> Row | None:
    run.answer = None
    run.ask(**request)
    deadline = time.monotonic() + seconds
    while run.answer is None and not run.over and (left := deadline - time.monotonic()) > 0:
        listen([run], left)
    return run.answer


def _still_running(run: Watched) -> list[str]:
    return [path for path in run.stopping or () if run.tasks.get(path, {}).get("state") not in ("landing", "ended")]
