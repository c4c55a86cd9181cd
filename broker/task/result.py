"""A task's result: one value, always the same fields, for programs and for people."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.decide.verdict import Deny
from broker.enforce.attach import Ending
from broker.enforce.sandbox import Process
from broker.enforce.status import LayerStatus
from broker.exit_codes import BUDGET, DENIED_COMMAND, HELD_BACK, INTERNAL, NOT_FOUND, TIMEOUT
from broker.record.denials import DenialRow
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a task ended. `exit_code` is what `broker` itself ends with."""

    status: str  # finished, signalled, timeout, memory, output, layer, denied, not_found, killed, budget, failed
    exit_code: int
    reason: str = ""
    signal: str | None = None
    timed_out: bool = False
    oom: bool = False
    denials: tuple[DenialRow, ...] = ()
    denied_count: int = 0
    denials_below: tuple[DenialRow, ...] = ()
    denied_below: int = 0
    usage: dict[str, float | int] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    engine: str = ""
    layers: tuple[LayerStatus, ...] = ()
    journal: str = ""
    run: str = ""
    task: str = "root"

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "status": self.status, "exit_code": self.exit_code, "reason": self.reason, "signal": self.signal,
            "timed_out": self.timed_out, "oom": self.oom, "denials": list(self.denials), "denied": self.denied_count,
            "denials_below": list(self.denials_below), "denied_below": self.denied_below,
            "usage": self.usage, "changes": self.changes, "engine": self.engine,
            "layers": [{"name": layer.name, "effective": layer.effective, "evidence": layer.evidence} for layer in self.layers],
            "journal": self.journal, "run": self.run, "task": self.task,
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return what the journal's last events hold."""
        return {
            "status": self.status, "exit_code": self.exit_code, "reason": self.reason, "signal": self.signal,
            "timed_out": self.timed_out, "oom": self.oom, "denials": self.denied_count, "denials_below": self.denied_below, "usage": self.usage,
            "changes": self.changes.get("counts", {}),
        }  # fmt: skip


def refused(denial: Deny, **common: Any) -> Result:
    """Return the result of a command that was denied before it started."""
    return Result(status="denied", exit_code=DENIED_COMMAND, reason=denial.reason, **_shared(**common))


def held_back(result: Result, why: str) -> Result:
    """Return a result whose changes are kept because what the operator asked for is not so. A failure keeps its own code."""
    return replace(result, exit_code=result.exit_code or HELD_BACK, reason="; ".join(filter(None, (result.reason, why))))


def finished(process: Process | None, ending: Ending, **common: Any) -> Result:
    """Return the result of a command from how its process and its attachment ended."""
    task = common["task"]
    shared = _shared(**common)
    if process is not None and process.failed is not None:
        return _not_started(process.failed.error, process.failed.step, shared)
    if ending.timed_out:
        return Result(
            status="timeout", exit_code=TIMEOUT, timed_out=True, reason="the time limit was reached", **shared
        )
    if ending.stopped:
        return _stopped(ending.stopped, shared)
    if ending.output_exceeded:
        return Result(
            status="output", exit_code=128 + signal.SIGKILL, signal="SIGKILL",
            reason="the output cap was reached (sandbox.output)", **shared,
        )  # fmt: skip
    if ending.layer_exceeded:
        return Result(
            status="layer", exit_code=128 + signal.SIGKILL, signal="SIGKILL",
            reason="the changes took more than they may (sandbox.layer_size); they are kept, not landed", **shared,
        )  # fmt: skip
    if process is None and not ending.ours:
        return Result(status="finished", exit_code=0, oom=task.oom, reason=_MEMORY if task.oom else "", **shared)
    if process is None or process.exited is None:
        if task.oom:
            return Result(
                status="memory", exit_code=128 + signal.SIGKILL, signal="SIGKILL", oom=True, reason=_MEMORY, **shared
            )
        if ending.interrupted:
            return Result(
                status="signalled", exit_code=128 + ending.interrupted, signal=_signal_name(ending.interrupted), reason="ended on request", **shared
            )
        return Result(status="failed", exit_code=INTERNAL, reason="the guard is gone", **shared)
    status = process.exited.status
    reason = _MEMORY if task.oom else ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Result(
            status="memory" if task.oom else "signalled", exit_code=128 + number, signal=_signal_name(number),
            oom=task.oom, reason=reason, **shared,
        )  # fmt: skip
    if ending.output_lost and os.WEXITSTATUS(status) == 0:
        # The command does not know: it wrote into a pipe. A success without its output is none.
        reason = f"its output could not be written ({ending.output_lost})"
        return Result(status="failed", exit_code=INTERNAL, oom=task.oom, reason=reason, **shared)
    return Result(status="finished", exit_code=os.WEXITSTATUS(status), oom=task.oom, reason=reason, **shared)


_STOPPED = {
    "killed": "ended on request (broker tasks kill)",
    "interrupted": "ended on request",
    "caller": "whoever asked for it is gone",
    "parent": "the task above it has ended",
}


def _stopped(why: str, shared: dict[str, Any]) -> Result:
    if why == "budget":
        reason = "a budget that it shares with other sub-tasks is used up (delegate in the profile)"
        return Result(status="budget", exit_code=BUDGET, reason=reason, **shared)
    return Result(
        status="killed", exit_code=128 + signal.SIGKILL, signal="SIGKILL", reason=_STOPPED.get(why, why), **shared
    )


_MEMORY = "the memory limit was reached (sandbox.memory)"


def _not_started(error: int, step: str, shared: dict[str, Any]) -> Result:
    if error == errno.ENOENT and step != "chdir":  # it is the folder that is missing then, and the command was not looked for
        return Result(status="not_found", exit_code=NOT_FOUND, reason="the command was not found in the sandbox", **shared)
    denied = error in (errno.EACCES, errno.EPERM) and shared["denied_count"] > 0
    return Result(
        status="denied" if denied else "failed", exit_code=DENIED_COMMAND,
        reason=f"the command did not start: {os.strerror(error)} ({step})", **shared,
    )  # fmt: skip


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _shared(
    *, engine: str, layers: tuple[LayerStatus, ...], journal: Path, run: str, task: Task, changes: dict[str, Any]
) -> dict[str, Any]:
    return {
        "engine": engine, "layers": layers, "journal": str(journal), "run": run,
        "denials": tuple(task.denials.as_result()), "denied_count": task.denials.total, "task": task.path,
        "denials_below": tuple(task.below.as_result()), "denied_below": task.below.total,
        "usage": task.usage.as_dict() if task.usage is not None else {}, "changes": changes,
    }  # fmt: skip

