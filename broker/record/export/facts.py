"""What the events of a run say once, and later ones hang on: profiles, when a task began, which trace it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from broker.record import event
from broker.record.lines import START, Place, containing, event_at
from broker.record.select import when
from broker.values import dataclass

MOST_DENIALS = 128  # kept of a task: as many events as a span has by default (OTEL_SPAN_EVENT_COUNT_LIMIT)
_SAID_ONCE = (event.RUN_STARTED, event.TASK_CREATED, event.TASK_DENIED, event.TASK_FINISHED)


@dataclass(slots=True)
class TaskFacts:
    """One task."""

    profile: str = ""
    trust: str = ""
    label: str = ""
    began: int = 0  # microseconds since 1970
    denials: list[dict[str, Any]] = field(default_factory=list)
    denied: int = 0
    ended: bool = False


class Facts:
    """One run. Events must come in their order."""

    def __init__(self, run: str) -> None:
        """Start before the first event."""
        self.run = run
        self.began = 0
        self.command: list[str] = []
        self.workspace = ""
        self.user = ""
        self.traceparent = ""
        self.tracestate = ""
        self.tasks: dict[str, TaskFacts] = {}

    def take(self, one: dict[str, Any]) -> None:
        """Learn from the next event. Any JSON object will do."""
        kind, path = one.get("type"), str(one.get("task", ""))
        if kind == event.RUN_STARTED:
            self.began = when(one)
            self.command = [str(word) for word in words] if isinstance(words := one.get("command"), list) else []
            self.workspace, self.user = str(one.get("workspace", "")), str(one.get("user", ""))
            self.traceparent, self.tracestate = str(one.get("traceparent", "")), str(one.get("tracestate", ""))
            self.tasks[path] = TaskFacts(str(one.get("profile", "")), str(one.get("trust", "")), began=self.began)
        elif kind == event.TASK_CREATED:
            self.tasks[path] = TaskFacts(
                str(one.get("profile", "")), str(one.get("trust", "")), str(one.get("label", "")), began=when(one)
            )
        elif kind == event.TASK_FINISHED and path in self.tasks:
            self.tasks[path].ended = True
        elif kind == event.TASK_DENIED and "of" not in one and (task := self.tasks.get(path)) is not None:
            task.denied += 1
            if len(task.denials) < MOST_DENIALS:
                task.denials.append({name: one[name] for name in ("time", "what", "class", "rule", "reason", "layer", "seq") if name in one})

    def task(self, path: str) -> TaskFacts:
        """Return what is known of a task, else of its nearest ancestor."""
        while path not in self.tasks and "/" in path:
            path = path.rpartition("/")[0]
        return self.tasks.get(path) or TaskFacts()


def before(path: Path, place: Place) -> Facts:
    """Return what a run's events said before a place: an exporter goes on in the middle."""
    facts = Facts(path.stem)
    if place != START:
        for where, line in sorted(_said(path, place)):
            facts.take(event_at(path, where, line))
    return facts


def _said(path: Path, end: Place) -> Iterator[tuple[Place, bytes]]:
    seen: set[Place] = set()
    for kind in _SAID_ONCE:
        for place, line in containing(path, kind):
            if place < end and place not in seen:
                seen.add(place)
                yield place, line
