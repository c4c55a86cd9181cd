"""What can be asked of an open task, and is answered at once. Nothing here runs anything in it.

In: an open task. Out: values.
"""

from __future__ import annotations

from broker.api.opened import Opened
from broker.api.settings import Command, text_of, words_of
from broker.api.values import Denial, Explanation, Part, ProfileInfo, Reason, TaskInfo, Verdict, denial_of
from broker.delegation import left_of
from broker.request.operation import Exec, Operation, ShellText
from broker.serve.inside import considered, denials_of, explanation_of, verdict_table


def can_i(task: Opened, command: Command | str) -> Verdict:
    """Say what would become of a program start, or (for a text) of what a shell would make of it. Nothing is recorded."""
    with task.call() as session:
        stage, operation = session.stage, _operation(command, session.stage.plot.workspace.path)
        return Verdict.of(verdict_table(operation, *considered(stage, operation)))


def _operation(command: Command | str, cwd: str) -> Operation:
    if isinstance(command, str):
        return ShellText(text=text_of(command, "a shell text"))
    return Exec(argv=words_of(command), cwd=cwd)


def explain(task: Opened, text: str) -> Explanation:
    """Say how a shell text is understood, part by part."""
    text = text_of(text, "explain takes a shell text; it")
    with task.call() as session:
        table = explanation_of(session.stage, text)
    parts = tuple(
        Part.of(part, reasons=tuple(Reason.of(one, risk=one["class"]) for one in part["reasons"])) for part in table["parts"]
    )
    return Explanation(text=text, verdict=Verdict.of(table), parts=parts)


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
