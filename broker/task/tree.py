"""The tasks of one run, as a tree: who may have a child, what all of them have used, and how a part of it is ended.

In: tasks as they begin, use something, and end. Out: refusals (broker.decide.narrowing), orders to stop, and a picture
of it all for people. One lock holds it together; nothing here waits for a sandbox.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.narrowing import Tally, refuse_child
from broker.decide.verdict import Deny
from broker.record import event
from broker.record.denials import row_of
from broker.record.redact import redact_words
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.task.plan import PlanDesk

SHOWN = 1_000  # characters of a command, and of what was denied: an argv may have 128 KiB, and a run many tasks

# Who is told of a stop: the reason, as a result's status has it. Called with the tree's lock held: it must only wake somebody.
Stop = Callable[[str], None]
Hear = Callable[[str, "Node"], None]


@dataclass(slots=True, eq=False)
class Node:
    """One task in the tree. Times are seconds of the monotonic clock; `stopped` says why it has to end ('': it need not).

    `latest` is the last denial and the tool that it was for. From `landing` on no process of the task is left.
    """

    path: str
    envelope: Envelope
    argv: tuple[str, ...] = ()
    label: str = ""
    parent: Node | None = None
    state: str = "starting"  # starting, running, ending, landing, ended
    status: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    processes: int = 0
    denied: int = 0
    latest: tuple[str, Deny] | None = None
    stopped: str = ""
    children: list[Node] = field(default_factory=list)
    made: int = 0  # children so far: each gets a number of its own
    stop: Stop | None = None
    plan: Callable[[], PlanDesk] | None = None  # where its plan lies, from when its sandbox is there
    over: threading.Event = field(default_factory=threading.Event)
    _shown: list[str] | None = None

    def ancestors(self) -> Iterator[Node]:
        """Yield the tasks above this one, nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def family(self) -> Iterator[Node]:
        """Yield this task and all below it, parents first."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += reversed(node.children)

    @property
    def seconds(self) -> float:
        """How long it ran, or has run."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def shown_usage(self) -> tuple[int, int, int]:
        """What it uses, as exactly as people are shown it: hundredths of a second, MiB, processes."""
        return int(self.cpu_seconds * 100), self.memory >> 20, self.processes

    @property
    def shown_argv(self) -> list[str]:
        """Its command as people may see it: without secrets, and no more of it than they look at."""
        if self._shown is None:
            self._shown = _beginning(redact_words(self.argv))
        return self._shown

    def _above(self) -> str | None:
        """Return the path of the task that it is shown below: a judge has none above it, and is shown with the run."""
        if self.parent is not None:
            return self.parent.path
        return None if self.path == event.ROOT else event.ROOT

    def as_dict(self) -> dict[str, Any]:
        """Return it for `broker tasks`, without its children."""
        profile, effects, latest = self.envelope.profile, self.envelope.effects, self.latest
        return {
            "task": self.path, "parent": self._above(), "label": self.label,
            "profile": profile.name, "max_risk": profile.max_risk.label, "effects": event.labels(effects),
            "ceiling": max(effects, default=Risk.SAFE).label, "trust": self.envelope.effective_trust.label,
            "state": self.state, "status": self.status, "stopped": self.stopped, "argv": self.shown_argv,
            "denied": self.denied, "seconds": round(self.seconds, 3), "cpu_seconds": round(self.cpu_seconds, 3),
            "memory": self.memory, "processes": self.processes,
            "last_denial": denial_row(*latest) if latest is not None else None,
        }  # fmt: skip


def denial_row(tool: str, denial: Deny) -> dict[str, Any]:
    """Return a denial for people who watch. The whole of it is in the journal."""
    row = row_of(tool, denial)
    return {
        "tool": tool, "what": _cut(row["what"]), "class": row["class"], "rule": row["rule"], "layer": row["layer"],
        "reason": _cut(row["reason"]), "hint": _cut(row["hint"]), "approvable": row["approvable"],
    }  # fmt: skip


def _beginning(argv: list[str]) -> list[str]:
    """Return an argv, or as much of it as people look at."""
    words: list[str] = []
    left = SHOWN
    for word in argv:
        if left <= 0:
            return [*words, "…"]
        words.append(_cut(word, left))
        left -= len(word) + 1
    return words


def _cut(text: str, most: int = SHOWN) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Tree:
    """The tasks of a run. Safe to use from several threads."""

    def __init__(self, hear: Hear | None = None) -> None:
        """Start empty. `hear` is told of each change, as whoever comes by `listen` is."""
        self._lock = threading.RLock()
        self._hear = [hear] if hear is not None else []
        self.root: Node | None = None
        self._beside = 0
        self._beside_stopped = ""

    def listen(self, hear: Hear) -> None:
        """Tell somebody of each change: begun, running, denied, usage, stopped, ending, landing, ended.

        It is called with the tree's lock held, on the thread of whoever made the change: it must not wait for anything.
        """
        with self._lock:
            self._hear.append(hear)

    def plant(self, node: Node) -> None:
        """Begin with the operator's own task."""
        with self._lock:
            self.root = node
            self._tell("begun", node)

    def branch(self, parent: Node, name: str, what: str, make: Callable[[str, Node], Node]) -> Node | Deny:
        """Make room for a child, or say why not: nobody gets in between the question and the answer.

        `name` is the profile that was selected, `what` the request in words; `make` is given the path of the child.
        """
        with self._lock:
            if parent.stopped or parent.over.is_set() or parent.state in ("ending", "landing"):
                from broker.decide.narrowing import refused

                return refused(what, "delegate.parent", "The task that asked is ending.", "Nothing: it is over.")
            levels = [parent, *parent.ancestors()]
            tallies = [self._tally(level, depth) for depth, level in enumerate(levels, 1)]
            denial = refuse_child(name, parent.envelope, tallies, what)
            if denial is not None:
                return denial
            parent.made += 1
            child = make(f"{parent.path}/{parent.made}", parent)
            parent.children.append(child)
            self._tell("begun", child)
            return child

    def beside(self, make: Callable[[str], Node]) -> Node:
        """Add a task that is nobody's sub-task: a judge of what another one changed. It is shown, and ended, with the run.

        No budget of the run's own task counts for it. `make` is given its path.
        """
        with self._lock:
            self._beside += 1
            node = make(f"panel/{self._beside}")
            if self.root is not None:
                self.root.children.append(node)
                node.stopped = self.root.stopped or self._beside_stopped
            self._tell("begun", node)
            return node

    def stop_beside(self, reason: str) -> None:
        """End all judges, also those that have yet to begin."""
        with self._lock:
            self._beside_stopped = self._beside_stopped or reason
            for node in self.root.children if self.root is not None else ():
                if node.parent is None:
                    self._stop(node, reason)

    @property
    def beside_stopped(self) -> str:
        """Why no judge may go on or begin; '': they may."""
        return self._beside_stopped

    @staticmethod
    def _tally(node: Node, below: int) -> Tally:
        family = [one for one in node.family() if one is not node]
        return Tally(
            below=below, tasks=len(family), children=sum(not one.over.is_set() for one in node.children),
            cpu_seconds=sum(one.cpu_seconds for one in family), seconds=sum(one.seconds for one in family),
            memory=sum(one.memory for one in family if not one.over.is_set()),
        )  # fmt: skip

    def running(self, node: Node, stop: Stop) -> None:
        """A task's command is about to run; `stop` ends it. It may have been told to stop already."""
        with self._lock:
            node.stop, node.state = stop, "running"
            if node.stopped:
                stop(node.stopped)
            self._tell("running", node)

    def ending(self, node: Node) -> None:
        """A task's command has ended, and what is left of it is about to: nobody can begin below it any more."""
        with self._lock:
            if node.state not in ("ending", "landing", "ended"):
                node.state, node.stop = "ending", None
                self._tell("ending", node)

    def landing(self, node: Node) -> None:
        """No process of a task is left; what it changed is looked at."""
        with self._lock:
            if node.state not in ("landing", "ended"):
                node.state, node.stop, node.memory, node.processes = "landing", None, 0, 0
                self._tell("landing", node)

    def ended(self, node: Node, status: str) -> None:
        """A task is over."""
        with self._lock:
            node.state, node.status, node.ended, node.stop = "ended", status, time.monotonic(), None
            node.memory = node.processes = 0
            node.over.set()
            self._tell("ended", node)

    def denied(self, node: Node, tool: str, denial: Deny) -> None:
        """Something was denied in a task."""
        with self._lock:
            node.denied += 1
            node.latest = tool, denial
            self._tell("denied", node)

    def measured(self, node: Node, cpu_seconds: float, memory: int, processes: int) -> str:
        """Take note of what a task uses, and return which budget that exceeds ('': none); then those below it are stopped.

        The whole of a level's sub-tasks ends, because the budget is theirs together.
        """
        with self._lock:
            before = node.shown_usage
            node.cpu_seconds, node.memory, node.processes = cpu_seconds, memory, processes
            if node.shown_usage != before:
                self._tell("usage", node)
            for depth, level in enumerate([node, *node.ancestors()], 1):
                if not _has_budget(level):  # to add up a hundred tasks, five times a second for each, is not for nothing
                    continue
                below = [one for one in level.family() if one is not level and not one.over.is_set()]
                if not below:
                    continue
                over = _exceeded(level, self._tally(level, depth))
                if over:
                    for child in level.children:
                        self._stop(child, "budget")
                    return f"{level.path} {over}"
            return ""

    def stop(self, path: str, reason: str) -> list[str]:
        """End a task and all below it, and return their paths. Unknown ones are none, nor those that have come to their end.

        INVARIANT: a landing is never cut short: a task that lands is past being ended (tests/task/test_control.py).
        """
        with self._lock:
            node = self.find(path)
            if node is None:
                return []
            stopped = self._stop(node, reason)
            if node is self.root and stopped:
                self._beside_stopped = self._beside_stopped or reason  # the judges to come, too
            return stopped

    def stop_below(self, node: Node, reason: str, *, seconds: float) -> list[str]:
        """End all below a task, and wait until they have ended (at most so long). Return the paths of those that have not."""
        with self._lock:
            for child in node.children:
                self._stop(child, reason)
            waiting = [one for one in node.family() if one is not node]
        deadline = time.monotonic() + seconds
        return [one.path for one in waiting if not one.over.wait(max(0.0, deadline - time.monotonic()))]

    def _stop(self, node: Node, reason: str) -> list[str]:
        ending = [one for one in node.family() if one.state in ("starting", "running")]
        for one in ending:
            if not one.stopped:
                one.stopped = reason
                if one.stop is not None:
                    one.stop(reason)
                self._tell("stopped", one)
        return [one.path for one in ending]

    def find(self, path: str) -> Node | None:
        """Return the task at a path."""
        with self._lock:
            everybody = self.root.family() if self.root is not None else ()
            return next((one for one in everybody if one.path == path), None)

    def picture(self) -> list[dict[str, Any]]:
        """Return every task, parents first."""
        with self._lock:
            return [one.as_dict() for one in self.root.family()] if self.root is not None else []

    def _tell(self, what: str, node: Node) -> None:
        for hear in self._hear:
            hear(what, node)


def _has_budget(level: Node) -> bool:
    allowed = level.envelope.profile.delegate
    return (allowed.cpu_time, allowed.time, allowed.memory, level.envelope.profile.sandbox.memory) != (None,) * 4


def _exceeded(level: Node, tally: Tally) -> str:
    """Return which of a level's budgets its sub-tasks exceed. Memory is also the level's own, which they share."""
    allowed, own = level.envelope.profile.delegate, level.envelope.profile.sandbox.memory
    if allowed.cpu_time is not None and tally.cpu_seconds > allowed.cpu_time:
        return "cpu_time"
    if allowed.time is not None and tally.seconds > allowed.time:
        return "time"
    if allowed.memory is not None and tally.memory > allowed.memory:
        return "memory"
    if own is not None and tally.memory + level.memory > own:
        return "memory"
    return ""
