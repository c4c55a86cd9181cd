"""What can be asked of an open task. One function a question, so that the two Brokers, with and without await, are thin.

In: an open task, and what somebody wants of it. Out: values. `stop` ends what takes long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from broker.api.opened import Opened, attended
from broker.api.program import Output, Start, Told, recording, run_program
from broker.api.settings import Command, text_of, words_of
from broker.api.stop import CALLER
from broker.api.values import (
    Outcome,
    RunResult,
    outcome_of,
)
from broker.delegation import Assignment
from broker.delegation import delegate as delegate_task
from broker.enforce.attach import Source
from broker.errors import UsageError
from broker.request.delegation import MOST_BYTES, RequestRefused, TaskRequest, read_request, request_of
from broker.stop import Stop
from broker.supervisor import Session

AT_ONCE = 8
LEAST_KEPT = 64
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
    variables = {text_of(name, "a variable's name"): text_of(value, f"the variable {name}") for name, value in (env or {}).items()}
    if wrong := [name for name in variables if not name or "=" in name]:
        raise UsageError(f"env: {wrong[0]!r} cannot be a variable's name")
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout <= threading.TIMEOUT_MAX):
        raise UsageError(f"timeout is a number of seconds above 0, not {timeout!r}")
    if not isinstance(keep, int) or keep < LEAST_KEPT:
        raise UsageError(f"keep is a number of bytes, {LEAST_KEPT} at least, not {keep!r}")
    return Start(
        argv=words_of(command), cwd=text_of(cwd, "cwd"), env=variables, stdin=_source(input), seconds=timeout, most=keep,
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
    if isinstance(given, TaskRequest):
        given = {
            "profile": given.profile, "command": given.argv, "trust_level": given.trust, "max_risk": given.max_risk,
            "limits": dict(given.limits), "tools_disabled": given.tools_disabled, "label": given.label, "goal": given.goal,
            "context": given.context,
        }  # fmt: skip
    try:
        if isinstance(given, Mapping):
            return request_of(given)
        with open(text_of(given, "a request is a task file's path or its content; a path"), "rb") as file:
            return read_request(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise UsageError(f"the task file {given} cannot be read: {error.strerror}") from None
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
    source, folder = _source(given), text_of(cwd, "cwd")

    def work() -> Outcome:
        with task.call(stop) as session:
            return _delegate(session, request, Told(on_output, stop), source, folder, stop)

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


def requests_from(given: Sequence[Request]) -> list[TaskRequest]:
    """Return several requests. Raises UsageError."""
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise UsageError("delegate_many takes a list of requests; delegate takes one")
    return [request_from(one) for one in given]


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
