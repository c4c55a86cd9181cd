"""The tools of a task, as plain functions: what an agent is given, whatever protocol it speaks.

In: a tool's name and its arguments, which nobody trusts. Out: a table with a `code`, always: `ok`, or why not; a refusal
(`denied`) says class, ceiling, rule, whether an approval could change it, and what to do instead. Every tool that touches a
file or runs something does so inside the sandbox of its task. What the profile disables is not listed, and refused by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from broker.classify.risk import Risk
from broker.decide.verdict import Deny, Layer
from broker.decide.wording import command_line, shorten
from broker.enforce.attach import OutputBudget
from broker.errors import BrokerError, GuardError, JournalError
from broker.record import event
from broker.record.log import diagnose
from broker.request.operation import Exec, Operation, ShellText
from broker.serve import inside_plan
from broker.serve import tools_files as files
from broker.serve import tools_list as shapes
from broker.serve.inside import considered, denials_of, explanation_of, verdict_table
from broker.serve.tools_inside import Call, Problem, Workplace, run_inside
from broker.serve.tools_schema import Invalid, check
from broker.serve.tools_tasks import Delegations, list_subagent_profiles
from broker.stage import Stage
from broker.task.outcome import Capture, capped
from broker.task.task import JOURNAL_LIMIT, REFUSALS_RECORDED
from broker.values import dataclass

MOST_CALLS = 16  # of one client, at once
CLOSE_SECONDS = 30.0
SHELL_SECONDS = 120.0

Run = Callable[[Workplace, Call, dict[str, Any]], dict[str, Any] | Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: how it is shown, and what it does. `disabled_by` is what a profile calls it; `asks`: it only answers."""

    shape: shapes.Shape
    run: Run
    disabled_by: str = ""
    asks: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.shape.name


class Tools:
    """The tools of one client of a task. Safe to use from several threads; `close` when the client is gone."""

    def __init__(self, stage: Stage, budget: OutputBudget | None = None) -> None:
        """Take the task. `budget` counts what its programs write."""
        self.here = Workplace(stage=stage) if budget is None else Workplace(stage=stage, budget=budget)
        self.delegations = Delegations(self.here)
        self._calls: set[Call] = set()
        self._idle = threading.Condition()
        self._closed = False
        self._tools = {tool.name: tool for tool in self._all()}

    def _all(self) -> tuple[Tool, ...]:
        tasks = self.delegations
        return (
            Tool(shape=shapes.SHELL, run=shell, disabled_by="shell"),
            Tool(shape=shapes.READ_FILE, run=files.read_file, disabled_by="read_file"),
            Tool(shape=shapes.WRITE_FILE, run=files.write_file, disabled_by="write_file"),
            Tool(shape=shapes.PATCH, run=files.patch, disabled_by="patch"),
            Tool(shape=shapes.BATCH_PATCH, run=files.batch_patch, disabled_by="batch_patch"),
            Tool(shape=shapes.DELEGATE_TASKS, run=lambda _here, call, args: tasks.delegate_tasks(call, args), disabled_by="delegate"),
            Tool(shape=shapes.TASK_RESULT, run=lambda _here, call, args: tasks.task_result(call, args), disabled_by="delegate", asks=True),
            Tool(shape=shapes.PLAN, run=plan),
            Tool(shape=shapes.LIST_SUBAGENT_PROFILES, run=list_subagent_profiles, asks=True),
            Tool(shape=shapes.CAN_I, run=can_i, asks=True),
            Tool(shape=shapes.EXPLAIN, run=explain, asks=True),
            Tool(shape=shapes.DENIALS, run=denials, asks=True),
        )

    def listed(self) -> tuple[Tool, ...]:
        """Return the tools that the task has, always in the same order."""
        disabled = self.here.stage.plot.envelope.disabled_tools
        return tuple(tool for tool in self._tools.values() if tool.disabled_by not in disabled)

    def known(self, name: str) -> bool:
        """Whether there is such a tool, disabled or not."""
        return name in self._tools

    def call(self, name: str, args: dict[str, Any], call: Call) -> dict[str, Any]:
        """Run a tool to its end. Raises KeyError for a tool that there is not, GuardError and JournalError when the task is over."""
        tool = self._tools[name]
        if not self._enter(call):
            return Problem(code="busy", message=f"{MOST_CALLS} calls of tools are open, and no more at once: wait for one to end").as_dict()
        began = time.monotonic()
        try:
            answer = self._answer(tool, args, call)
            result = answer.as_dict() if isinstance(answer, Problem) else {"code": "ok", **answer}
            self._record(tool, args, result["code"], time.monotonic() - began)
        except JournalError as error:
            self.here.stage.fail(error)  # what cannot be recorded must not go on
            raise
        finally:
            self._leave(call)
        return _printable(result)

    def _answer(self, tool: Tool, args: dict[str, Any], call: Call) -> dict[str, Any] | Problem:
        if tool.disabled_by in self.here.stage.plot.envelope.disabled_tools:
            return self.here.refuse(tool.disabled_by, _disabled(tool))
        try:
            check(tool.shape.takes, args)
        except Invalid as error:
            return Problem(code="invalid", message=str(error))
        try:
            return tool.run(self.here, call, args)
        except (JournalError, GuardError):
            raise
        except BrokerError as error:
            return Problem(code="failed", message=str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours ends the call, not the run
            diagnose("tool.failed", tool=tool.name, error=repr(error))
            return Problem(code="internal", message=f"internal error: {type(error).__name__}")

    def _record(self, tool: Tool, args: dict[str, Any], code: str, seconds: float) -> None:
        """Record the call. What only asks is not recorded any more when it would fill the disk."""
        journal = self.here.stage.run.journal
        if journal.size > JOURNAL_LIMIT:
            raise JournalError(f"{journal.path} has reached {JOURNAL_LIMIT >> 20} MiB: the task is ended")
        if (tool.asks or code in ("invalid", "denied")) and journal.size > REFUSALS_RECORDED:
            return
        journal.append(
            event.TOOL_CALLED, task=self.here.stage.task.path, tool=tool.name, what=_what(args), outcome=code,
            milliseconds=round(seconds * 1000, 1),
        )  # fmt: skip

    def _enter(self, call: Call) -> bool:
        with self._idle:
            if self._closed or len(self._calls) >= MOST_CALLS:
                return False
            self._calls.add(call)
            return True

    def _leave(self, call: Call) -> None:
        with self._idle:
            self._calls.discard(call)
            self._idle.notify_all()

    def close(self) -> None:
        """The client is gone: end what runs for it, and wait for that."""
        with self._idle:
            self._closed = True
            running = list(self._calls)
        for call in running:
            call.ask()
        self.delegations.close()
        with self._idle:
            self._idle.wait_for(lambda: not self._calls, CLOSE_SECONDS)


def _disabled(tool: Tool) -> Deny:
    risk = Risk.SAFE if tool.shape.read_only else Risk.CODE_EXECUTION if tool.disabled_by in ("shell", "delegate") else Risk.LOCAL_WRITE
    return Deny(
        what=f"the tool {tool.name}", effects=frozenset({risk}), layer=Layer.PROFILE, rule=f"tool.{tool.disabled_by}.disabled",
        reason=f"The task's profile, or one above it, disables the tool {tool.disabled_by}.",
        hint="Use the tools that are listed, or report what you need.",
    )  # fmt: skip


def _what(args: dict[str, Any]) -> str:
    """Return in a few words what a tool was called with, and never a content."""
    for key in ("command", "path", "shell", "text", "task"):
        if isinstance(value := args.get(key), str):
            return shorten(value, 200)
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return command_line(value)
    for key, name in (("edits", "path"), ("tasks", "profile")):
        if isinstance(rows := args.get(key), list):
            return shorten(", ".join(str(row.get(name, "")) for row in rows[:8] if isinstance(row, dict)), 200)
    return ""


def _printable(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result that has a form in UTF-8, whatever bytes its texts were made of."""
    return {key: _whole(value) for key, value in result.items()}


def _whole(value: Any) -> Any:
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {_whole(key): _whole(item) for key, item in value.items()}
        case list() | tuple():
            return [_whole(item) for item in value]
        case _:
            return value


# The tools that are neither about files nor about sub-tasks


def shell(here: Workplace, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Run a text with bash, and return what it wrote, how it ended, and what was denied meanwhile."""
    argv = ("/bin/bash", "-c", args["command"])
    cwd = here.path(args.get("cwd", "."))
    since = here.denied_since()
    allowed = here.permit("shell", Exec(argv=argv, cwd=cwd), held_there=True)
    if isinstance(allowed, Problem):
        return allowed
    out, err = Capture(), Capture()
    call.note = "running"
    ended = run_inside(
        here, call, allowed, argv, cwd=cwd, stdout=out, stderr=err, seconds=args.get("timeout", SHELL_SECONDS) + here.patience,
    )
    denied = since()
    written: dict[str, Any] = {
        "stdout": out.text(), "stderr": err.text(), "stdout_bytes": out.total, "stderr_bytes": err.total, "denials": denied,
    }  # fmt: skip
    if isinstance(ended, Problem):
        if ended.code == "failed" and denied:
            return here.refusal(denied[-1])
        return Problem(code=ended.code, message=ended.message, facts=capped({**ended.facts, **written}))
    by_signal = {"signal": ended.signal} if ended.signal else {}
    return capped({
        "status": ended.status, "exit_code": ended.exit_code, **by_signal, "seconds": ended.seconds,
        "left_running": ended.left_running, **written,
    })  # fmt: skip


def plan(here: Workplace, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Make the task's plan, show it, have its checks run, or say that a step is done."""
    action, step = args["action"], args.get("step", "")
    if bool(step) != (action in ("begin", "check", "complete")) or ("steps" in args) != (action in ("create", "revise")):
        return Problem(code="invalid", message="begin, check and complete take a step; create and revise take steps; show takes nothing")
    found = inside_plan.act(here, call, action, step=step, steps=args.get("steps"))
    return found if isinstance(found, Problem) else capped(found)


def can_i(here: Workplace, _call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Say what would become of a command. Nothing is run, and nothing recorded but that it was asked."""
    if ("command" in args) == ("shell" in args):
        return Problem(code="invalid", message="give a command as a list of words, or a shell text: one of both")
    operation: Operation
    if "shell" in args:
        operation = ShellText(text=args["shell"])
    else:
        operation = Exec(argv=tuple(args["command"]), cwd=here.path(args.get("cwd", ".")))
    return _capped_verdict(verdict_table(operation, *considered(here.stage, operation)))


def explain(here: Workplace, _call: Call, args: dict[str, Any]) -> dict[str, Any]:
    """Say how a shell text is understood."""
    table = explanation_of(here.stage, args["text"])
    if len(parts := table["parts"]) > shapes.MOST_PARTS:
        table |= {"parts": parts[: shapes.MOST_PARTS], "parts_left_out": len(parts) - shapes.MOST_PARTS}
    return _capped_verdict(table)


def _capped_verdict(table: dict[str, Any]) -> dict[str, Any]:
    del table["operation"]  # whoever asked knows it, and it may be long
    return table


def denials(here: Workplace, _call: Call, _args: dict[str, Any]) -> dict[str, Any]:
    """Return what was refused so far."""
    return capped(denials_of(here.stage))
