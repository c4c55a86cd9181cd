"""Collect what was refused in runs, as questions about commands. In: events of journals. Out: each refused command, once.

The events say what was tried, and how often. What they say of classes and rules is not used: a proposal is judged anew, by
the classifier that is installed and the profile as it is now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import PartKind
from broker.decide.decide import names_a_shell
from broker.decide.wording import describe, shorten
from broker.profiles.judge import context_in
from broker.request.operation import Exec, ShellText
from broker.values import dataclass

# What the record holds in a secret's place (broker/record/redact.py; a test compares).
REDACTED = re.compile(r"redacted[ -]sha256-[0-9a-f]{12}-[0-9]+|<redacted:")


@dataclass(slots=True)
class Tried:
    """A command that was refused. `starts` are the program starts as they were recorded, each different one once."""

    argv: tuple[str, ...]
    count: int = 0
    tasks: dict[str, None] = field(default_factory=dict)
    runs: dict[str, None] = field(default_factory=dict)
    starts: dict[Exec, Context] = field(default_factory=dict)

    @property
    def redacted(self) -> bool:
        """Whether a secret was left out of the record, so that nobody knows the words."""
        return any(REDACTED.search(word) for word in self.argv)


@dataclass(slots=True)
class Withheld:
    """Changes of one kind of protected place that were refused. `rule` is what `land.allow` would name."""

    rule: str
    count: int = 0
    paths: dict[str, None] = field(default_factory=dict)
    tasks: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Refusals:
    """All that was refused in some runs. `commands` are kept by the profile of the task that tried them."""

    commands: dict[str, dict[tuple[str, ...], Tried]] = field(default_factory=dict)
    landings: dict[str, Withheld] = field(default_factory=dict)
    runs: dict[str, None] = field(default_factory=dict)
    others: int = 0  # refusals that name no command: reads, connections, what was only counted

    def of(self, profile: str) -> tuple[Tried, ...]:
        """Return what was refused to tasks with this profile; if there were none, to all: the profile may be new."""
        if profile in self.commands:
            return tuple(self.commands[profile].values())
        merged: dict[tuple[str, ...], Tried] = {}
        for commands in self.commands.values():
            for argv, tried in commands.items():
                known = merged.setdefault(argv, Tried(argv=argv))
                known.count += tried.count
                known.tasks |= tried.tasks
                known.runs |= tried.runs
                known.starts |= tried.starts
        return tuple(merged.values())

    def add_run(self, events: Iterable[dict[str, Any]]) -> None:
        """Take the events of one run."""
        _Run(self).read(events)


class _Run:
    """One run, being read: decisions come before the denials that count them."""

    def __init__(self, refusals: Refusals) -> None:
        self.all = refusals
        self.contexts: dict[str, Context] = {}
        self.profiles: dict[str, str] = {}  # by task
        self.named: dict[tuple[str, str], list[Tried]] = {}  # by task and by what the denial calls it
        self.counted: dict[tuple[str, str, str], int] = {}

    def read(self, events: Iterable[dict[str, Any]]) -> None:
        """Read them all, and count at the end."""
        landing = _landing_rules()
        workspace = "/workspace"
        for one in events:
            kind, task, run = one.get("type"), _text(one.get("task")) or "root", _text(one.get("run"))
            self.all.runs.setdefault(run)
            if kind == "run.started":
                workspace = _text(one.get("workspace")) or workspace
                self.profiles[task] = _text(one.get("profile"))
            elif kind == "task.created":
                self.contexts[task] = _context(one.get("context"), workspace)
                self.profiles[task] = _text(one.get("profile"))
            elif kind == "exec.decided" and one.get("verdict") in {"deny", "ask"}:
                context = self.contexts.get(task) or context_in(workspace)
                self.decided(judged(one), task, run, context, shorten(_text(one.get("visible")).strip()))
            elif kind == "file.decided" and one.get("verdict") in {"deny", "ask"}:
                self.withheld(one, task, landing)
            elif kind in {"task.denied", "task.denied.repeated"}:
                self.denied(one, task)
        self.count()

    def decided(self, data: Any, task: str, run: str, context: Context, visible: str = "") -> None:
        operation = _operation(data)
        if operation is None:
            self.all.others += 1
            return
        called = self.named.setdefault((task, visible or describe(operation)), [])
        commands = self.all.commands.setdefault(self.profiles.get(task, ""), {})
        for argv, start in _commands(operation, context):
            tried = commands.setdefault(argv, Tried(argv=argv))
            tried.tasks.setdefault(task)
            tried.runs.setdefault(run)
            tried.starts.setdefault(start, context)
            if tried not in called:
                called.append(tried)

    def withheld(self, one: dict[str, Any], task: str, landing: frozenset[str]) -> None:
        operation = one.get("operation")
        path = _text(operation.get("path")) if isinstance(operation, dict) else ""
        rule = _text(one.get("rule"))
        if rule not in landing:
            self.all.others += 1
            return
        found = self.all.landings.setdefault(rule, Withheld(rule=rule))
        found.count += 1
        found.paths.setdefault(path)
        found.tasks.setdefault(task)

    def denied(self, one: dict[str, Any], task: str) -> None:
        key = (task, _text(one.get("what")), _text(one.get("rule")))
        count = one.get("count", 1)
        self.counted[key] = max(self.counted.get(key, 0), count if isinstance(count, int) else 1)

    def count(self) -> None:
        counted: dict[tuple[str, str], int] = {}
        for (task, what, _), number in self.counted.items():
            counted[task, what] = counted.get((task, what), 0) + number
        for (task, what), tried in self.named.items():
            for each in tried:
                each.count += counted.get((task, what), 1)


def _landing_rules() -> frozenset[str]:
    from broker.classify.contents import landing_rules

    return frozenset(landing_rules())


def _commands(operation: Exec | ShellText, context: Context) -> Iterator[tuple[tuple[str, ...], Exec]]:
    """Yield the commands that entries could be for: of a shell's text, those inside."""
    if isinstance(operation, Exec) and not names_a_shell(operation.argv):
        yield operation.argv, operation
        return
    inside = [
        part.argv
        for part in classify(operation, context).parts
        if part.kind is PartKind.COMMAND and part.static and part.argv and not names_a_shell(part.argv)
    ]
    if inside or not isinstance(operation, Exec):
        yield from ((argv, Exec(argv=argv, cwd=context.cwd)) for argv in inside)
    else:
        yield operation.argv, operation


def judged(one: dict[str, Any]) -> dict[str, Any] | None:
    """Return the operation that an event was decided on; of a command that an agent wrapped, the same shell with the command alone."""
    operation, visible = one.get("operation"), one.get("visible")
    if not isinstance(operation, dict):
        return None
    if not isinstance(visible, str) or not operation.get("argv"):
        return operation
    return {**operation, "argv": [operation["argv"][0], "-c", visible]}


def _operation(data: Any) -> Exec | ShellText | None:
    if not isinstance(data, dict):
        return None
    if data.get("kind") == "shell" and isinstance(data.get("text"), str):
        return ShellText(text=data["text"], dialect=_text(data.get("dialect")) or "bash")
    argv = data.get("argv")
    if data.get("kind") != "exec" or not isinstance(argv, list) or not all(isinstance(word, str) for word in argv) or not argv:
        return None
    env = tuple(
        (str(pair[0]), str(pair[1])) for pair in data.get("env") or () if isinstance(pair, list) and len(pair) == 2
    )
    return Exec(
        argv=tuple(argv), path=_text(data.get("path")), program=_text(data.get("program")),
        cwd=_text(data.get("cwd")), env=env,
    )  # fmt: skip


def _context(data: Any, workspace: str) -> Context:
    if not isinstance(data, dict):
        return context_in(workspace)

    def words(key: str) -> tuple[str, ...]:
        found = data.get(key)
        return tuple(str(word) for word in found) if isinstance(found, list) else ()

    known = _text(data.get("workspace")) or workspace
    return Context(
        cwd=_text(data.get("cwd")) or known, home=_text(data.get("home")) or "/home/agent", workspace=known,
        scratch=words("scratch") or ("/tmp", "/var/tmp", "/dev/shm"), writable=words("writable"),
        dialect=_text(data.get("dialect")) or "bash",
    )  # fmt: skip


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
