"""What `broker tasks` says of a task, in cells: for plain text, and for a terminal (tasks_live.py).

Labels, commands and reasons are a task's own words: they are escaped here, before anything else is done with them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

from broker.cli.terminal import command_line, escape, shorten
from broker.task.watching import place_of

if TYPE_CHECKING:
    from broker.task.watching import Watched

HEADINGS = ("TASK", "PROFILE", "UP TO", "TRUST", "STATE", "DENIED", "CPU", "MEMORY", "TIME", "WHAT IT DOES")
NUMBERS = frozenset({5, 6, 7, 8})  # columns that are read from the right
SHOWN_WORDS = 200


def plain(one: Watched) -> str:
    """Return a run's tree as text."""
    if not one.answers:
        return no_answer(one)
    lines = ["  ".join([*padded, what]).rstrip() for _, padded, what in laid_out(one)]
    return "\n".join([heading(one), *lines, *last_denials(one)])


def laid_out(one: Watched, hidden: Container[str] = ()) -> list[tuple[dict[str, Any] | None, list[str], str]]:
    """Return the lines of a run's tree: the task (None: the headings), its cells of one width each, and what it does."""
    rows = [(None, HEADINGS), *((row, cells(one, row, guide)) for guide, row in guided(one, hidden))]
    widths = [max(len(texts[number]) for _, texts in rows) for number in range(len(HEADINGS) - 1)]
    return [
        (
            row,
            [
                cell.rjust(width) if number in NUMBERS else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(texts, widths, strict=False))
            ],
            texts[-1],
        )
        for row, texts in rows
    ]


def heading(one: Watched) -> str:
    """Return the line above a run's tree."""
    facts = one.facts
    count = sum(row["state"] != "ended" for row in one.tasks.values())
    words = f"{count} of {len(one.tasks)} tasks" if len(one.tasks) != count else f"{count} task{'s' if count != 1 else ''}"
    return f"{one.run}  {escape(str(facts['engine']))}  {escape(str(facts['workspace']))}  {words}  (broker {facts['pid']})"


def no_answer(one: Watched) -> str:
    """Say that a run's broker says nothing."""
    return f"{one.run}  its broker does not answer. It may be stopped (Ctrl-Z); its tasks are held until it goes on"


def guided(one: Watched, hidden: Container[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each task with the lines that lead to it, and its place in the tree; `hidden` ones are left out."""
    rows = [row for row in one.below() if row["task"] not in hidden]
    last = {row["parent"]: row["task"] for row in rows}
    for row in rows:
        path = row["task"]
        steps = path.split("/")
        above = ["/".join(steps[: number + 1]) for number in range(1, len(steps) - 1)]
        parents = ["/".join(steps[:number]) for number in range(1, len(steps) - 1)]
        lead = "".join("   " if last.get(parent) == step else "│  " for parent, step in zip(parents, above, strict=True))
        if len(steps) > 1:
            lead += "└─ " if last[row["parent"]] == path else "├─ "
        yield lead + place_of(path), row


def cells(one: Watched, row: dict[str, Any], guide: str) -> tuple[str, ...]:
    """Return the cells of a task, safe to show."""
    return (
        guide, escape(str(row["profile"])), escape(str(row["ceiling"])), escape(str(row["trust"])), state(row),
        str(row["denied"]), f"{row['cpu_seconds']:.1f} s", f"{row['memory'] >> 20} MiB", duration(one.seconds(row)),
        what_it_does(row, SHOWN_WORDS),
    )  # fmt: skip


def state(row: dict[str, Any]) -> str:
    """Say where a task is: of one that ended, how; of one that is being ended, that."""
    if row["state"] == "ended":
        return escape(str(row["status"] or "ended"))
    if row["stopped"] and row["state"] in ("starting", "running"):
        return "stopping"
    return escape(str(row["state"]))


def what_it_does(row: dict[str, Any], width: int) -> str:
    """Return a task's label, if it has one, and its command."""
    command = command_line(row["argv"], width)
    return f"{shorten(escape(row['label']), 60)}: {command}" if row["label"] else command


def last_denials(one: Watched) -> list[str]:
    """Return a line for each task that was refused something: the last of it."""
    rows = [row for row in one.below() if row["last_denial"] is not None]
    return [
        f"refused in {place_of(row['task'])}: {denial_text(row['last_denial'])}"
        + (f", and {row['denied'] - 1} more" if row["denied"] > 1 else "")
        for row in rows
    ]


def denial_text(denial: dict[str, Any]) -> str:
    """Return a denial in a line."""
    return f"{shorten(escape(denial['what']), 100)}  ({escape(denial['class'])}, {escape(denial['rule'])})"


def duration(seconds: float) -> str:
    """Return a time as people read it: 4.2 s, 3m 12s, 2h 5m."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60}m"
