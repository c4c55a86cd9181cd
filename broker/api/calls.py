"""What can be asked of an open task. One function a question, so that the two Brokers, with and without await, are thin.

In: an open task, and what somebody wants of it. Out: values. `stop` ends what takes long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict, Unpack

from broker.api.landing import Asked
from broker.api.opened import Opened, attended, root_outcome
from broker.api.program import Output, Start, Told, recording, run_program
from broker.api.settings import Command, Land, Options, request_for, words_of
from broker.api.stop import CALLER, Stop
from broker.api.values import (
    Denial,
    Explanation,
    Outcome,
    Part,
    ProfileInfo,
    Reason,
    RunResult,
    TaskInfo,
    Verdict,
    denial_of,
    outcome_of,
)
from broker.classify.risk import Assessment
from broker.decide.profile import Profile
from broker.delegation import Assignment, left_of
from broker.delegation import delegate as delegate_task
from broker.enforce.attach import Source
from broker.errors import UsageError
from broker.record import event
from broker.request.delegation import MOST_BYTES, RequestRefused, TaskRequest, read_request, request_of
from broker.request.operation import Exec, Operation, ShellText
from broker.serve.inside import answer, considered, denials_of, verdict_table
from broker.stage import Header, Watcher
from broker.supervisor import RunRequest, Session, carry, opened
from broker.task.outcome import Capture

AT_ONCE = 8
Request = TaskRequest | Mapping[str, Any] | str | os.PathLike[str]
Given = bytes | str | None


class RunOptions(TypedDict, total=False):
    """How a program runs.

    `cwd` is a folder, relative to the workspace; `env` are further variables. `input` is its stdin (without: empty).
    `timeout` is in seconds. Of each stream `keep` bytes are kept (1 MiB). `on_output` gets (stdout or stderr, bytes) as they
    come, on a thread of its own; what it raises ends the program.
    """

    cwd: str
    env: Mapping[str, str]
    input: Given
    timeout: float | None
    keep: int
    on_output: Output | None


def start_of(
    command: Command, *, cwd: str = "", env: Mapping[str, str] | None = None, input: Given = None,
    timeout: float | None = None, keep: int = 1 << 20, on_output: Output | None = None,
) -> Start:  # fmt: skip
    """Return what is to run. Raises UsageError."""
    variables = dict(env or {})
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env: {name!r} and its value must be text, without NUL, and a name without '='")
    if timeout is not None and not timeout > 0:
        raise UsageError(f"timeout is a number of seconds above 0, not {timeout!r}")
    return Start(
        argv=words_of(command), cwd=os.fspath(cwd), env=variables, stdin=_source(input), seconds=timeout, most=keep,
        output=on_output,
    )  # fmt: skip


def _source(given: Given) -> int | Source:
    """Return what gives it once, and then the end; -1 for an empty stdin."""
    if given is None:
        return -1
    if not isinstance(given, (bytes, str)):
        raise UsageError(f"input is bytes or text, not {type(given).__name__}")
    left = [given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given]
    return lambda: left.pop() if left else b""


def run(task: Opened, start: Start, stop: Stop) -> RunResult:
    """Run a program in the task, to its end."""
    with task.call(stop) as session:
        return run_program(session, start, stop)


def request_from(given: Request) -> TaskRequest:
    """Return a task file's content, or what stands for one. Raises UsageError that names the key which is wrong."""
    try:
        if isinstance(given, TaskRequest):
            return given
        if isinstance(given, Mapping):
            return request_of(given)
        with open(given, "rb") as file:
            return read_request(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise UsageError(f"the task file {os.fspath(given)} cannot be read: {error.strerror}") from None  # type: ignore[arg-type]
    except RequestRefused as error:
        raise UsageError(f"the request for a sub-task: {error}") from None


class DelegateOptions(TypedDict, total=False):
    """What a request for a sub-task may say besides profile and command. It selects a profile, and narrows it.

    `trust` is trusted or untrusted (without: untrusted), `max_risk` a lower ceiling. `limits` are of memory, cpus, pids, time
    and output: {"memory": "1G", "time": "10m"}. `without` are tools that it is not to have. `label` is for people; `goal`
    and `context` are for the sub-task's agent, in $BROKER_TASK.
    """

    trust: str
    max_risk: str
    limits: Mapping[str, str | int | float]
    without: Sequence[str]
    label: str
    goal: str
    context: str


def requested(profile: str, command: Command, **options: Unpack[DelegateOptions]) -> TaskRequest:
    """Return the request for a sub-task. Raises UsageError."""
    table: dict[str, Any] = {"profile": profile, "command": list(words_of(command)), **options}
    for ours, theirs in (("trust", "trust_level"), ("without", "tools_disabled")):
        if ours in table:
            table[theirs] = table.pop(ours)
    return request_from(table)


def wanted(
    request: Request | None, profile: str, command: Command, **options: Unpack[DelegateOptions]
) -> TaskRequest:
    """Return what a sub-task is to be. Raises UsageError when it is said twice."""
    if request is None:
        return requested(profile, command, **options)
    if profile or command or options:
        raise UsageError("a request says all that is to be said of a sub-task: leave out profile, command and the others")
    return request_from(request)


def delegate(
    task: Opened, request: TaskRequest, stop: Stop, *, given: Given = None, cwd: str = "", on_output: Output | None = None
) -> Outcome:
    """Run a sub-task to its end."""
    source = _source(given)

    def work() -> Outcome:
        with task.call(stop) as session:
            return _delegate(session, request, Told(on_output, stop), source, cwd, stop)

    return attended(work, stop)


def _delegate(
    session: Session, request: TaskRequest, told: Told, source: int | Source, cwd: str, stop: Stop
) -> Outcome:
    stage = session.stage
    assignment = Assignment(
        stdin=source, cwd=os.path.join(stage.plot.workspace.path, cwd), output=told,
        begun=lambda path: stop.does(lambda: stage.run.tree.stop(path, CALLER)),
    )  # fmt: skip
    with recording(stage):
        table = delegate_task(stage, request, assignment)
    told.check()
    journal = stage.run.journal
    return outcome_of(table, run=journal.run, engine=stage.run.engine.name, journal=str(journal.path))


def delegate_many(task: Opened, requests: Sequence[TaskRequest], stop: Stop) -> tuple[Outcome, ...]:
    """Run sub-tasks next to each other, as many at once as the profile permits and eight at most. In the order of asking."""
    from concurrent.futures import ThreadPoolExecutor

    if not requests:
        return ()
    breadth = task.header.profile.delegate.breadth
    each = [Stop() for _ in requests]
    for one in each:
        stop.does(one.ask)

    def one_of(number: int) -> Outcome:
        return delegate(task, requests[number], each[number])

    def work() -> tuple[Outcome, ...]:
        with ThreadPoolExecutor(max(1, min(AT_ONCE, breadth, len(requests))), "broker-delegate") as pool:
            return tuple(pool.map(one_of, range(len(requests))))

    return attended(work, stop)


def _ask(task: Opened, make: Callable[[str], Operation]) -> tuple[Assessment, Verdict]:
    with task.call() as session:
        operation = make(session.stage.plot.workspace.path)
        assessment, verdict = considered(session.stage, operation)
        return assessment, Verdict.of(verdict_table(operation, assessment, verdict))


def can_i(task: Opened, command: Command | str) -> Verdict:
    """Say what would become of a program start, or (for a text) of what a shell would make of it. Nothing is recorded."""
    if isinstance(command, str):
        return _ask(task, lambda _cwd: ShellText(text=command))[1]
    words = words_of(command)
    return _ask(task, lambda cwd: Exec(argv=words, cwd=cwd))[1]


def explain(task: Opened, text: str) -> Explanation:
    """Say how a shell text is understood, part by part."""
    if not isinstance(text, str):
        raise UsageError("explain takes a shell text; of a list of words ask can_i")
    assessment, verdict = _ask(task, lambda _cwd: ShellText(text=text))
    parts = tuple(
        Part(
            kind=part.kind.value, argv=part.argv, effects=tuple(event.labels(part.effects)),
            reasons=tuple(Reason(rule=one.rule, risk=one.risk.label, text=one.text) for one in part.reasons),
        )
        for part in assessment.parts
    )  # fmt: skip
    return Explanation(text=text, verdict=verdict, parts=parts)


def profiles(task: Opened) -> tuple[ProfileInfo, ...]:
    """List the profiles that a sub-task may have, and what is left of each below this task."""
    with task.call() as session:
        rows = [left_of(session.stage, profile) for profile in session.stage.run.known()]
    return tuple(
        ProfileInfo.of(
            row, allowlist=tuple(row["here"]["allowlist"]), available=row["here"]["available"],
            **{f"{name}_here": row["here"][name] for name in ("max_risk", "trust", "workspace")},
            effects_here=tuple(row["here"]["effects"]),
        )
        for row in rows
    )  # fmt: skip


def denials(task: Opened) -> tuple[Denial, ...]:
    """List what was refused so far, in the task and below it."""
    with task.call() as session:
        found, path = denials_of(session.stage), session.stage.task.path
    return tuple(denial_of(row, path) for row in (*found["denials"], *found["denials_below"]))


def tasks(task: Opened) -> tuple[TaskInfo, ...]:
    """List every task of the run, parents first."""
    with task.call() as session:
        return tuple(TaskInfo.of(row) for row in session.stage.run.tree.picture())


def kill(task: Opened, path: str) -> tuple[str, ...]:
    """End a task and all below it. Returns their paths; of one that is unknown or over, none."""
    with task.call() as session:
        return tuple(session.stage.run.tree.stop(path, "killed"))


def discard(task: Opened) -> Outcome:
    """End a task and throw its changes away, recorded as `broker discard` records it."""
    from broker.api.values import Changes
    from broker.enforce.layer import find_layer, layers_base
    from broker.task.landing import discard as throw_away

    result = task.close("never")
    if result.changes.kept:
        state = task.session.stage.run.state
        throw_away(find_layer(layers_base(state), result.changes.kept), state)
        task.result = replace(result, changes=Changes())
    assert task.result is not None
    return task.result


class Once(NamedTuple):
    """One command in a sandbox of its own."""

    request: RunRequest
    land: Land
    start: Start


def once(
    command: Command, profile: str | Profile, workspace: str | os.PathLike[str], judged: bool, run: RunOptions | None,
    options: Options,
) -> Once:  # fmt: skip
    """Return what is to run. Raises UsageError and ProfileError."""
    start = start_of(command, **(run or {}))
    request = request_for(start.argv, profile, workspace, judged=judged, seconds=start.seconds, **options)
    return Once(request, options.get("land", "auto"), start)


def run_once(what: Once, stop: Stop, *, capture: bool) -> Outcome:
    """Run one command in a sandbox of its own, as `broker run` does. Without `capture` it has this process's streams."""
    request, land, start = what
    captures = {"stdout": Capture(start.most), "stderr": Capture(start.most)} if capture else {}
    told, asked = Told(start.output, stop), Asked(land)

    def work() -> Outcome:
        headers: list[Header] = []
        watcher = Watcher(
            started=headers.append, called=answer, land=lambda judged: asked.may_land(judged, headers[0].workspace)
        )
        with opened(request, watcher) as (here, plot):
            stop.does(lambda: here.tree.stop(event.ROOT, CALLER))
            plot = replace(plot, cwd=os.path.join(plot.cwd, start.cwd), extra=tuple(start.env.items()))
            if capture:
                plot = replace(
                    plot, stdin=start.stdin, stdout=told.sink("stdout", captures["stdout"]),
                    stderr=told.sink("stderr", captures["stderr"]),
                )  # fmt: skip
            result = carry(here, plot)
        written = {name: one.text() for name, one in captures.items()}
        counted = {f"{name}_bytes": one.total for name, one in captures.items()}
        return root_outcome(result, plot.envelope, **written, **counted)

    outcome = attended(work, stop)
    told.check()
    asked.check()
    return outcome
