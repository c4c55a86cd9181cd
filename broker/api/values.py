"""What the Python interface returns: frozen values, all typed, all with `as_dict()`.

In: the tables that results and answers of a task are. Out: values of the same content. A refusal is one of them, never
an exception. What a program wrote is text: UTF-8, and what is not UTF-8 shown as `\\xNN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


class Value:
    """What all of them can do."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, which `json.dumps` takes."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def of(cls, table: Mapping[str, Any], **more: Any) -> Self:
        """Return the value whose fields stand in a table, lists as tuples. What else stands there is left out."""
        names = [one.name for one in fields(cls) if one.name in table]  # type: ignore[arg-type]
        return cls(**{name: _frozen(table[name]) for name in names} | more)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial(Value):
    """Something that was refused. `task` is where (root, root/1 …), `risk` its worst class, `count` how often.

    `hint` says what to do instead; `approvable`, whether an approval could permit it.
    """

    task: str
    tool: str
    what: str
    risk: str
    effects: tuple[str, ...]
    reason: str
    rule: str
    layer: str
    hint: str
    approvable: bool
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Value):
    """A path that a task changed, relative to the workspace. The rest is said of one that did not land."""

    path: str
    change: str
    risk: str = ""
    rule: str = ""
    reason: str = ""
    approvable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Value):
    """What became of a task's changes. The lists are cut at a thousand (a sub-task's at a hundred), the counts never.

    `kept` names the run for `broker diff`, `land` and `discard`, where something did not land; `error` says why nothing
    could.
    """

    landed: tuple[Change, ...] = ()
    withheld: tuple[Change, ...] = ()
    conflicts: tuple[Change, ...] = ()
    landed_count: int = 0
    withheld_count: int = 0
    conflicts_count: int = 0
    kept: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Value):
    """What a task used: seconds, bytes, counts."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    peak_processes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(Value):
    """One layer of enforcement, whether it holds, and what proves it."""

    name: str
    effective: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Value):
    """How a program ended. `exit_code` is its own, or one of docs/exit-codes.md; `status` says which.

    `status` is finished, signalled, denied, not_found, timeout, killed, memory, output, layer or failed. Of a long output
    the beginning and the end are kept; `stdout_bytes` and `stderr_bytes` count all. `denials` are those of the task that
    came up while the program ran: of several programs at once, everybody's.
    """

    argv: tuple[str, ...]
    status: str
    exit_code: int
    reason: str = ""
    signal: str | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    denials: tuple[Denial, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it ran to its end, and says that it succeeded."""
        return self.status == "finished" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult(Value):
    """What became of a file that was to be read or written. `path` is absolute.

    `status` is ok, denied (then `denial` says why), not_found, changed (it is another file than `version` says, or it is there
    already), not_permitted (the file's mode, or a place that is not writable), timeout, cancelled or failed. `data` is what was read, `size` what the file has in all; `version` tells this
    file from any later one, `mode` are its rights in octal.
    """

    path: str
    status: str
    reason: str = ""
    data: bytes = b""
    size: int = 0
    version: str = ""
    mode: str = ""
    denial: Denial | None = None

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """What was read, as text: what is not UTF-8 is shown as `\\xNN`."""
        return self.data.decode("utf-8", "backslashreplace")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, with `text` in the place of `data`."""
        table = Value.as_dict(self)
        del table["data"]
        return {**table, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Value):
    """How a task ended: a whole run, or a sub-task. `exit_code` is what `broker run` would end with.

    `status` is one of RunResult's, or budget: a budget that sub-tasks share is used up. `max_risk` and `effects` are what
    was left to a sub-task below its ancestors, `narrowed` what they took away. `denied` counts each refusal of `denials`,
    repetitions included; `denials_below` are those of its own sub-tasks. `engine`, `layers` and `journal` are the run's.
    """

    status: str
    exit_code: int
    reason: str = ""
    signal: str | None = None
    run: str = ""
    task: str = "root"
    label: str = ""
    profile: str = ""
    trust: str = ""
    max_risk: str = ""
    effects: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    rule: str = ""
    hint: str = ""
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    denials: tuple[Denial, ...] = ()
    denied: int = 0
    denials_below: tuple[Denial, ...] = ()
    denied_below: int = 0
    usage: Usage = Usage()
    changes: Changes = Changes()
    engine: str = ""
    layers: tuple[Layer, ...] = ()
    journal: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end, and says that it succeeded."""
        return self.status == "finished" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Value):
    """What would become of an operation: allow, ask or deny. True in an `if` only for allow.

    `effects` are all classes that the operation has, `refused` those that are too much.
    """

    verdict: str
    effects: tuple[str, ...]
    rule: str
    refused: tuple[str, ...] = ()
    layer: str = ""
    reason: str = ""
    hint: str = ""
    approvable: bool = False

    def __bool__(self) -> bool:
        """Whether it may go ahead: a verdict that is always true in an `if` would be read as a permission."""
        return self.verdict == "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(Value):
    """Which rule of the classifier spoke, the class it gave, and its sentence."""

    rule: str
    risk: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Value):
    """One part of a shell text, as it was understood: a command, a redirection …"""

    kind: str
    argv: tuple[str, ...]
    effects: tuple[str, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Value):
    """How a shell text is understood, and what the task may do of it."""

    text: str
    verdict: Verdict
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck(Value):
    """A check of a plan: an exact invocation. `state` is open, passed, failed, moved, stale, blocked or waived.

    `check` is STEP.N, `owner` worker, judge or operator; `lacks` says in words what is missing. `exit_code` is that of the
    last run that broker saw, None where there was none.
    """

    check: str
    what: str
    owner: str
    state: str
    lacks: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep(Value):
    """A step of a plan. `state` is pending, active, blocked, stale or done."""

    id: str
    title: str
    state: str
    checks: tuple[PlanCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus(Value):
    """A plan, or why it is not as somebody wanted: `code` is ok, incomplete (`missing` says what), invalid or cancelled.

    `done`: each step is. `workspace` is the digest of the workspace that this is about.
    """

    code: str
    message: str = ""
    missing: tuple[str, ...] = ()
    done: bool = False
    workspace: str = ""
    steps: tuple[PlanStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInfo(Value):
    """A profile that a sub-task may have. What ends in `_here` is what would be left of it below this task."""

    name: str
    description: str
    max_risk: str
    allowlist: tuple[str, ...]
    tools: tuple[str, ...]
    disabled_tools: tuple[str, ...]
    available: bool
    max_risk_here: str
    effects_here: tuple[str, ...]
    trust_here: str
    workspace_here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo(Value):
    """A task in the tree. `state` is starting, running, landing or ended; then `status` says how. Seconds, bytes, counts."""

    task: str
    parent: str | None
    label: str
    profile: str
    max_risk: str
    effects: tuple[str, ...]
    trust: str
    state: str
    status: str
    argv: tuple[str, ...]
    denied: int
    seconds: float
    cpu_seconds: float
    memory: int
    processes: int


def denial_of(row: Mapping[str, Any], task: str) -> Denial:
    """Return a row of a result's `denials` as a value; `task` is whose result it is."""
    return Denial.of(row, task=row.get("of", task), risk=row["class"])


def changes_of(table: Mapping[str, Any]) -> Changes:
    """Return `changes` of a result as a value."""
    def listed(name: str) -> tuple[Change, ...]:
        return tuple(Change.of(row, risk=row.get("class", "")) for row in table.get(name, ()))

    counts = table.get("counts", {})
    return Changes(
        landed=listed("landed"), withheld=listed("withheld"), conflicts=listed("conflicts"),
        landed_count=counts.get("landed", 0), withheld_count=counts.get("withheld", 0),
        conflicts_count=counts.get("conflicts", 0), kept=table.get("kept", ""), error=table.get("error", ""),
    )  # fmt: skip


def outcome_of(table: Mapping[str, Any], **more: Any) -> Outcome:
    """Return a result, or what a delegation gave, as a value."""
    task = table.get("task") or "root"  # a sub-task that was refused has no name: the refusal is its parent's
    return Outcome.of(
        table,
        denials=tuple(denial_of(row, task) for row in table.get("denials", ())),
        denials_below=tuple(denial_of(row, task) for row in table.get("denials_below", ())),
        usage=Usage.of(table.get("usage", {})),
        changes=changes_of(table.get("changes", {})),
        layers=tuple(Layer.of(row) for row in table.get("layers", ())),
        **more,
    )
