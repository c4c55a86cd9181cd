"""One program in an open task: judged, started, waited for, and nothing of it left.

In: an open session and a command. Out: a RunResult. The same steps as for the command of `broker exec`; what the program
starts is judged at the gate like everything else in the task.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker.api.stop import CALLER, wait_for
from broker.api.values import RunResult, denial_of
from broker.decide.verdict import Allow, Deny
from broker.enforce import confinement
from broker.enforce.attach import Ending, Sink, Source, Streams
from broker.enforce.sandbox import Command, Process
from broker.errors import BrokerError, JournalError
from broker.record import event
from broker.record.denials import DenialRow
from broker.request.operation import Exec
from broker.serve.tools_inside import Workplace
from broker.stage import Stage
from broker.stop import Stop
from broker.supervisor import Session, refuse_too_long
from broker.task.outcome import Capture
from broker.task.result import Result, finished, refused

END_SECONDS = 10.0  # for a killed program to be gone, and then for what it wrote to be taken
Output = Callable[[str, bytes], object]  # told (stdout or stderr, bytes) as they come


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is to run, and how. `seconds` is its time limit, None: the task's only; `most` bytes of each stream are kept."""

    argv: tuple[str, ...]
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: int | Source = -1
    seconds: float | None = None
    most: int = 1 << 20
    output: Output | None = None


class Told:
    """A caller's own function, told of output. What it raises stops the program, and is raised where it was called."""

    def __init__(self, output: Output | None, stop: Stop) -> None:
        """`output` may be None: then nobody is told."""
        self._output, self._stop = output, stop
        self._raised: BaseException | None = None

    def sink(self, stream: str, capture: Capture) -> Sink:
        """Return what takes a stream: it is kept, and told."""

        def take(data: bytes) -> None:
            capture(data)
            self(stream, data)

        return take

    def __call__(self, stream: str, data: bytes) -> None:
        """Tell of some output."""
        if self._output is None or self._raised is not None:
            return
        try:
            self._output(stream, data)
        except BaseException as error:  # noqa: BLE001 - it is the caller's, and gets there by `check`
            self._raised = error
            self._stop.ask()

    def check(self) -> None:
        """Raise what the caller's function raised."""
        if self._raised is not None:
            raise self._raised


def run_program(session: Session, start: Start, stop: Stop) -> RunResult:
    """Run a program to its end. Raises JournalError when nothing can be recorded; the task is over then."""
    stage = session.stage
    with recording(stage):
        return _run(session, start, stop)


@contextlib.contextmanager
def recording(stage: Stage) -> Iterator[None]:
    """What cannot be recorded must not go on: the same as when the gate cannot record."""
    try:
        yield
    except JournalError as error:
        stage.sandbox.failure = error
        stage.sandbox.kill()
        raise


def _run(session: Session, start: Start, stop: Stop) -> RunResult:
    stage = session.stage
    task, plot = stage.task, stage.plot
    cwd = posixpath.normpath(posixpath.join(plot.workspace.path, start.cwd))
    extra = (*plot.extra, *start.env.items())
    refuse_too_long(replace(plot, argv=start.argv, extra=extra))
    since = Workplace(stage=stage).denied_since()
    captures = {"stdout": Capture(start.most), "stderr": Capture(start.most)}
    _, verdict = task.judge(Exec(argv=start.argv, cwd=cwd), at_gate=True)
    if isinstance(verdict, Deny):
        task.refuse("exec", verdict)
        return _result(refused(verdict, **_common(stage)), start, captures, since())
    assert isinstance(verdict, Allow)  # there is nobody to ask here, and the task says so
    env = confinement.environment(
        plot.envelope.profile, read_only=plot.workspace.read_only, terminal=False, extra=extra
    )
    stage.run.journal.append(event.SPAWN_STARTED, task=task.path, argv=start.argv, terminal=False)
    plan = stage.confined.plan
    told = Told(start.output, stop)
    streams = Streams(
        start.stdin, told.sink("stdout", captures["stdout"]), told.sink("stderr", captures["stderr"]), session.budget,
        owner=(plan.uid, plan.gid),
    )  # fmt: skip
    process = stage.sandbox.spawn(verdict, Command(argv=start.argv, cwd=cwd, env=env), streams.inside)
    streams.start()
    try:
        stop.does(lambda: stage.sandbox.kill_process(process))
        wait_for(process.wait, lambda: process.over, start.seconds)
        ending = Ending(timed_out=not process.over, stopped=CALLER if stop.asked else "")
    finally:
        # Whatever it left behind ends with it, or its output would have no end.
        stage.sandbox.kill_process(process)
        process.wait(END_SECONDS)
        streams.drain(END_SECONDS)
        process.close()
    told.check()
    if isinstance(stage.sandbox.failure, BrokerError):
        raise stage.sandbox.failure
    ending.output_lost = "; ".join(streams.problems)
    if process.exited is None and session.ending.ours:
        ending = session.ending  # the whole task was ended, and this says why
    elif process.exited is None and not ending.ours:
        ending.stopped = plot.node.stopped  # who ended it says so in the tree first
    _record(stage, process)
    return _result(finished(process, ending, **_common(stage)), start, captures, since())


def _common(stage: Stage) -> dict[str, Any]:
    return {
        "engine": stage.run.engine.name, "layers": stage.layers, "journal": stage.run.journal.path,
        "run": stage.run.journal.run, "task": stage.task, "changes": {},
    }  # fmt: skip


def _record(stage: Stage, process: Process) -> None:
    append, task = stage.run.journal.append, stage.task.path
    if process.failed is not None:
        append(event.SPAWN_FAILED, task=task, error=os.strerror(process.failed.error), step=process.failed.step)
    elif process.exited is not None:
        append(
            event.SPAWN_EXITED, task=task, wait_status=process.exited.status, pid=process.pid,
            user_us=process.exited.user_us, system_us=process.exited.system_us, max_rss_kib=process.exited.max_rss,
        )  # fmt: skip


def _result(
    result: Result, start: Start, captures: Mapping[str, Capture], denied: Iterable[DenialRow]
) -> RunResult:
    out, err = captures["stdout"], captures["stderr"]
    return RunResult(
        argv=start.argv, status=result.status, exit_code=result.exit_code, reason=result.reason, signal=result.signal,
        stdout=out.text(), stderr=err.text(), stdout_bytes=out.total, stderr_bytes=err.total,
        denials=tuple(denial_of(row, result.task) for row in denied),
    )  # fmt: skip
