"""Step 5, reading: what became of a run, told from its events.

In: a journal. Out: a RunSummary: the tasks, what was refused, what landed, what it took, and when. One pass, and
memory that does not grow with the number of events: what is listed has a limit, and what is beyond it is counted.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from dataclasses import field
from pathlib import Path
from typing import Any

from broker.record import event
from broker.record.lines import containing, event_at, lines
from broker.record.select import when
from broker.record.summary_reviews import Reviews, ReviewSummary, StepSummary
from broker.values import dataclass

LISTED = 1_000  # of each: denials, changes landed, programs
SLICES = 60  # of the time that a run took
_TROUBLE = frozenset({
    event.EXEC_RACE, event.EXEC_UNREADABLE, event.EXEC_TOO_LARGE, event.LIMITS_EXCEEDED, event.GUARD_LOST, event.ANSWER_TIMEOUT,
    event.LANDING_FAILED, event.JOURNAL_RESUMED, event.SPAWN_FAILED, "task.killed", "budget.exceeded", "call.refused",
})  # fmt: skip


@dataclass(slots=True, kw_only=True)
class TaskSummary:
    """One node of the tree."""

    path: str
    profile: str = ""
    trust: str = ""
    began: int = 0  # microseconds since 1970
    ended: int = 0
    status: str = ""
    exit_code: int | None = None
    reason: str = ""
    allowed: int = 0
    refused: int = 0
    usage: dict[str, float] = field(default_factory=dict)
    refusals: list[int] = field(default_factory=list)  # when; the first thousand


@dataclass(slots=True, kw_only=True)
class DenialSummary:
    """One thing that was refused, however often."""

    seq: int
    time: int
    task: str
    tool: str
    what: str
    risk: str
    effects: tuple[str, ...]
    rule: str
    layer: str
    reason: str
    hint: str
    count: int = 1

    @property
    def withheld(self) -> bool:
        """Whether it is a change that was made and did not land."""
        return self.layer == "landing"


@dataclass(frozen=True, slots=True)
class Change:
    """One change that landed, or could not because the real file had changed."""

    task: str
    kind: str
    path: str
    note: str = ""


@dataclass(slots=True, kw_only=True)
class RunSummary:
    """What a report shows."""

    run: str
    journal: str
    events: int = 0
    began: int = 0
    ended: int = 0
    finished: bool = False
    start: dict[str, Any] = field(default_factory=dict)  # run.started
    end: dict[str, Any] = field(default_factory=dict)  # run.finished
    tasks: dict[str, TaskSummary] = field(default_factory=dict)
    layers: list[tuple[str, bool, str]] = field(default_factory=list)
    denials: list[DenialSummary] = field(default_factory=list)
    more_denials: int = 0
    landed: list[Change] = field(default_factory=list)
    landed_count: int = 0
    conflicts: list[Change] = field(default_factory=list)
    steps: list[StepSummary] = field(default_factory=list)  # of plans
    reviews: list[ReviewSummary] = field(default_factory=list)
    programs: dict[str, int] = field(default_factory=dict)  # started, by name
    trouble: list[tuple[int, int, str, str]] = field(default_factory=list)  # seq, time, type, task
    slices: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in range(SLICES)])  # allowed, refused

    @property
    def allowed(self) -> int:
        """How many operations were allowed."""
        return sum(task.allowed for task in self.tasks.values())

    @property
    def denied(self) -> int:
        """How many times something was refused, repetitions included."""
        return sum(denial.count for denial in self.denials) + self.more_denials

    @property
    def refusals(self) -> list[DenialSummary]:
        """What was refused when it was tried."""
        return [denial for denial in self.denials if not denial.withheld]

    @property
    def withheld(self) -> list[DenialSummary]:
        """The changes that were made and did not land."""
        return [denial for denial in self.denials if denial.withheld]

    def most_started(self, count: int) -> list[tuple[str, int]]:
        """Return the programs that were started most often."""
        return sorted(self.programs.items(), key=lambda pair: (-pair[1], pair[0]))[:count]

    def counted(self, by: str) -> list[tuple[str, int]]:
        """Return how often, by `risk`, `rule`, `task` or `layer`, the most frequent first."""
        counts = Counter[str]()
        for denial in self.denials:
            counts[str(getattr(denial, by))] += denial.count
        return counts.most_common()


def summarise(path: Path) -> RunSummary:
    """Read a run. Raises JournalError when it cannot be read."""
    found = _Fold(RunSummary(run=path.stem, journal=str(path)))
    found.summary.began, found.summary.ended = _span(path)
    for place, line in lines(path):
        found.add(event_at(path, place, line))
    found.done()
    return found.summary


def _span(path: Path) -> tuple[int, int]:
    """Return the times of the first and the last event, so that one pass can put each into its slice."""
    first = next((when(event_at(path, *each)) for each in lines(path)), 0)
    last = first
    for each in containing(path, f'"{event.RUN_FINISHED}"'):
        last = max(last, when(event_at(path, *each)))
    if last == first:  # a run that never said how it ended
        for each in lines(path):
            last = max(last, when(event_at(path, *each)))
    return first, last


class _Fold:
    def __init__(self, summary: RunSummary) -> None:
        self.summary = summary
        self._denials: dict[tuple[str, str, str, str], DenialSummary] = {}
        self._others: Counter[str] = Counter()
        self._reviews = Reviews(summary.steps, summary.reviews)

    def add(self, one: dict[str, Any]) -> None:
        summary = self.summary
        summary.events += 1
        kind, time = str(one.get("type", "")), when(one)
        task = self._task(str(one.get("task", "")), time)
        self._reviews.add(one, kind, task.path)
        if (verdict := one.get("verdict")) in ("allow", "ask", "deny"):  # a judge's is about a change
            self._decided(one, task, time, str(verdict))
        elif kind == event.RUN_STARTED:
            summary.start = one
            task.profile, task.trust = task.profile or str(one.get("profile", "")), str(one.get("trust", ""))
        elif kind == event.RUN_FINISHED:
            summary.end, summary.finished = one, True
        elif kind == event.TASK_CREATED:
            task.profile, task.trust = str(one.get("profile", task.profile)), str(one.get("trust", task.trust))
        elif kind == event.TASK_FINISHED:
            _finish(task, one, time)
        elif kind == event.USAGE_MEASURED:
            task.usage = {name: value for name, value in one.items() if type(value) in (int, float) and name != "seq"}
        elif kind == event.LAYERS_PROVEN and not summary.layers:
            summary.layers = [_layer(each) for each in one.get("layers", ()) if isinstance(each, dict)]
        elif kind.startswith(event.TASK_DENIED) and "of" not in one:  # `of`: told again to a task above
            self._denied(one, task, time, kind)
        elif kind == event.LANDING_INTENDED:
            self._landing(one, task)
        elif kind == event.LANDING_FINISHED:
            summary.landed_count += _number(one.get("landed"))
            summary.conflicts += [_conflict(each, task.path) for each in _list(one.get("conflicts"))][: LISTED - len(summary.conflicts)]
        if kind in _TROUBLE and len(summary.trouble) < LISTED:
            summary.trouble.append((_number(one.get("seq")), time, kind, task.path))

    def done(self) -> None:
        self.summary.denials = sorted(self._denials.values(), key=lambda denial: denial.seq)
        self.summary.more_denials += sum(self._others.values())

    def _task(self, path: str, time: int) -> TaskSummary:
        task = self.summary.tasks.get(path)
        if task is None:
            task = self.summary.tasks[path] = TaskSummary(path=path, began=time)
        task.ended = max(task.ended, time)
        return task

    def _decided(self, one: dict[str, Any], task: TaskSummary, time: int, verdict: str) -> None:
        summary = self.summary
        allowed = verdict == "allow"
        if allowed:
            task.allowed += 1
        span = max(1, summary.ended - summary.began)
        slot = min(SLICES - 1, max(0, (time - summary.began) * SLICES // span))
        summary.slices[slot][0 if allowed else 1] += 1
        if not allowed and len(task.refusals) < LISTED:
            task.refusals.append(time)
        operation = one.get("operation")
        if allowed and isinstance(operation, dict) and operation.get("kind") == "exec":
            name = posixpath.basename(str(operation.get("program") or next(iter(_list(operation.get("argv"))), "")))
            if name in summary.programs or len(summary.programs) < LISTED:
                summary.programs[name] = summary.programs.get(name, 0) + 1

    def _denied(self, one: dict[str, Any], task: TaskSummary, time: int, kind: str) -> None:
        key = (task.path, str(one.get("tool", "")), str(one.get("what", "")), str(one.get("rule", "")))
        known = self._denials.get(key)
        if kind == event.TASK_DENIED_REPEATED:
            count = _number(one.get("count"))
            if known is not None:
                task.refused += max(0, count - known.count)
                known.count = max(known.count, count)
            elif key[1] == "*":
                task.refused += max(0, count - self._others[task.path])
                self._others[task.path] = max(self._others[task.path], count)
            return
        task.refused += 1
        if len(self._denials) >= LISTED:
            self.summary.more_denials += 1
            return
        self._denials[key] = DenialSummary(
            seq=_number(one.get("seq")), time=time, task=task.path, tool=key[1], what=key[2], risk=str(one.get("class", "")),
            effects=tuple(map(str, _list(one.get("effects")))), rule=key[3], layer=str(one.get("layer", "")),
            reason=str(one.get("reason", "")), hint=str(one.get("hint", "")),
        )  # fmt: skip

    def _landing(self, one: dict[str, Any], task: TaskSummary) -> None:
        for change in _list(one.get("changes")):
            if isinstance(change, list) and len(change) >= 2 and len(self.summary.landed) < LISTED:
                self.summary.landed.append(Change(task.path, str(change[0]), str(change[1])))


def _finish(task: TaskSummary, one: dict[str, Any], time: int) -> None:
    code = one.get("exit_code")
    task.status, task.reason, task.ended = str(one.get("status", "")), str(one.get("reason", "")), time
    task.exit_code = code if isinstance(code, int) else None


def _layer(each: dict[str, Any]) -> tuple[str, bool, str]:
    return str(each.get("name", "")), each.get("effective") is True, str(each.get("evidence", ""))


def _conflict(each: object, task: str) -> Change:
    if isinstance(each, dict):
        return Change(task, "conflict", str(each.get("path", "")), str(each.get("reason", "")))
    if isinstance(each, list) and len(each) >= 2:
        return Change(task, "conflict", str(each[0]), str(each[1]))
    return Change(task, "conflict", str(each))


def _number(value: object) -> int:
    return value if type(value) is int else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
