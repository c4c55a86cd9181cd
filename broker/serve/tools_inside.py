"""A tool's way into the sandbox: what it runs is judged, started by the guard, watched, and ended.

In: a command, and a Call that may be cancelled. Out: how it ended, or a Problem. Nothing here touches the task's files on
the host: whatever is read, written or run is so by a process inside, under the task's own rules.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Any

from broker.decide.verdict import Allow, Ask, Deny, Layer
from broker.delegation import ceiling_of
from broker.enforce import confinement
from broker.enforce.attach import OutputBudget, Sink, Source, Streams
from broker.enforce.sandbox import Command, Process
from broker.errors import GuardError
from broker.record.denials import DenialRow, row_of
from broker.request.operation import Operation
from broker.stage import Stage
from broker.stop import Stop
from broker.supervisor import MOST_WORDS
from broker.values import dataclass

DRAIN_SECONDS = 0.5  # for output that comes after the end, from what was left running
KILL_SECONDS = 10.0
MOST_LEFT = 16  # calls whose leftovers still hold their output


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a tool has no result. A refusal is one with the code `denied`, and has all that a denial has."""

    code: str  # denied, invalid, not_found, changed, no_match, too_large, timeout, cancelled, busy, ended, failed
    message: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a result."""
        return {"code": self.code, "message": self.message, **self.facts}


class Call(Stop):
    """One call of a tool: it can be stopped, which is to cancel it, and says how far it is (`note`)."""

    def __init__(self) -> None:
        """Nothing is said yet."""
        super().__init__()
        self.note = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended. `left_running`: something that it started goes on, and still holds its output."""

    status: str  # finished, signalled
    exit_code: int
    signal: str  # its name, '' if it ended by itself
    seconds: float
    left_running: bool = False


@dataclass(slots=True)
class Workplace:
    """Where the tools of one client work. `budget` counts what their programs write (sandbox.output)."""

    stage: Stage
    budget: OutputBudget = field(default_factory=lambda: OutputBudget(None, lambda: None))
    left: deque[Process] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def root(self) -> str:
        """The folder that relative paths start from."""
        return self.stage.confined.context.cwd

    @property
    def patience(self) -> float:
        """How many seconds a program may wait for the operator, beside its own time."""
        desk = self.stage.task.approvals
        return desk.patience if desk is not None else 0.0

    def path(self, text: str) -> str:
        """Return a path as it is inside, absolute and plain."""
        return os.path.normpath(os.path.join(self.root, text))

    def permit(self, tool: str, operation: Operation, *, held_there: bool = False) -> Allow | Problem:
        """Judge and record what a tool is about to do. The gate judges what it starts again.

        `held_there`: what an approval could permit goes as far as the gate, which holds it until the operator has answered.
        """
        assessment, verdict = self.stage.task.judge(operation, at_gate=True, can_wait=held_there)
        if isinstance(verdict, Allow):
            return verdict
        if isinstance(verdict, Ask):
            return Allow(layer=Layer.APPROVAL, rule="approval.at_gate", effects=assessment.effects)
        assert isinstance(verdict, Deny)
        return self.refuse(tool, verdict)

    def refuse(self, tool: str, denial: Deny) -> Problem:
        """Make a denial loud, and return it as a result."""
        self.stage.task.refuse(tool, denial)
        return self.refusal(row_of(tool, denial))

    def refusal(self, row: dict[str, Any] | DenialRow) -> Problem:
        """Return a denial that was made loud as a result."""
        shown = {name: row[name] for name in ("what", "class", "effects", "rule", "layer", "hint", "approvable")}
        facts = {**shown, "ceiling": ceiling_of(self.stage.plot.envelope).label}
        return Problem(code="denied", message=row["reason"], facts=facts)

    def denied_since(self) -> Callable[[], list[DenialRow]]:
        """Return what says which denials came since now, in this task and below it; counts are of that time."""
        before = {_key(row): row["count"] for row in self._rows()}

        def since() -> list[DenialRow]:
            rows = []
            for row in self._rows():
                if (count := row["count"] - before.get(_key(row), 0)) > 0:
                    row["count"] = count
                    rows.append(row)
            return rows

        return since

    def _rows(self) -> list[DenialRow]:
        return [*self.stage.task.denials.as_result(), *self.stage.task.below.as_result()]


def _key(row: DenialRow) -> tuple[str, ...]:
    return (row.get("of", ""), row["tool"], row["rule"], row["layer"], row["what"])


def run_inside(
    here: Workplace, call: Call, allowed: Allow, argv: tuple[str, ...], *, cwd: str = "", stdin: int | Source = -1,
    stdout: Sink, stderr: Sink, seconds: float, leave: bool = True, agreed: str = "",
) -> Ended | Problem:  # fmt: skip
    """Start a program that was allowed, and stay with it to its end; at a limit, all that it started is killed.

    Without `leave` also when it ends by itself: nothing of it goes on in the background. `agreed` is a path that the operator
    has agreed to have written by it, which is broker's own client.
    """
    stage = here.stage
    profile, plan, sandbox = stage.plot.envelope.profile, stage.confined.plan, stage.sandbox
    env = confinement.environment(
        profile, read_only=stage.plot.workspace.read_only, terminal=False, extra=stage.plot.extra
    )
    if (size := sum(len(os.fsencode(word)) + 1 for word in (*argv, *env))) > MOST_WORDS:
        return Problem(code="too_large", message=f"the command has {size} bytes with its environment, and at most {MOST_WORDS} "
                       "can be judged. Write long text to a file first")  # fmt: skip
    began = time.monotonic()
    streams = Streams(stdin, stdout, stderr, here.budget, owner=(plan.uid, plan.gid))
    passes = stage.task.passes if agreed else None
    process = sandbox.spawn(
        allowed, Command(argv=argv, cwd=cwd or here.root, env=env), streams.inside,
        numbered=None if passes is None else lambda number: passes.give_spawn(number, agreed),
    )  # fmt: skip
    streams.start()
    try:
        call.does(lambda: sandbox.kill_process(process))
        process.wait(seconds)
        in_time = process.over
        if not in_time or not leave:
            sandbox.kill_process(process)
            process.wait(KILL_SECONDS)
        all_out = streams.drain(DRAIN_SECONDS)
        streams.close()
        if not all_out:
            _leave(here, process)
        return _ended(process, call, in_time=in_time, seconds=time.monotonic() - began, left_running=not all_out)
    finally:
        if passes is not None:
            passes.take_back(process.number)
        process.close()


def _ended(process: Process, call: Call, *, in_time: bool, seconds: float, left_running: bool) -> Ended | Problem:
    if call.asked:
        return Problem(code="cancelled", message="the call was cancelled, and what it ran was ended")
    if not in_time:
        return Problem(code="timeout", message="the time limit was reached, and what it ran was ended", facts={"seconds": round(seconds, 3)})
    if process.failed is not None:
        code = "not_found" if process.failed.error == errno.ENOENT else "failed"
        why = os.strerror(process.failed.error)
        return Problem(code=code, message=f"the command could not start ({process.failed.step}): {why}")
    if process.exited is None:
        raise GuardError("the sandbox has ended")
    status, seconds = process.exited.status, round(seconds, 3)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"SIG{number}"
        return Ended(status="signalled", exit_code=128 + number, signal=name, seconds=seconds, left_running=left_running)
    return Ended(status="finished", exit_code=os.WEXITSTATUS(status), signal="", seconds=seconds, left_running=left_running)


def _leave(here: Workplace, process: Process) -> None:
    """Let what a command left behind go on, as a server in the background does; but not without an end.

    Each holds two pipes and two threads of ours: the oldest are ended when there are many.
    """
    with here.lock:
        here.left.append(process)
        ended = here.left.popleft() if len(here.left) > MOST_LEFT else None
    if ended is not None:
        here.stage.sandbox.kill_process(ended)
