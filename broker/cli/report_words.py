"""What every form of a report says in the same words: times, amounts, results."""

from __future__ import annotations

from datetime import UTC, datetime

from broker.cli.terminal import command_line, escape
from broker.record.summary import RunSummary, TaskSummary

# Name, what the usage event calls it, and how it is written.
USAGE = (
    ("time", "wall_seconds", "seconds"), ("processor", "cpu_seconds", "seconds"), ("memory at most", "peak_memory", "bytes"),
    ("processes at most", "peak_processes", "count"), ("read", "read_bytes", "bytes"), ("written", "write_bytes", "bytes"),
    ("output", "output_bytes", "bytes"),
)  # fmt: skip
TROUBLE = {
    "exec.race": "something else started than was approved; it was killed",
    "exec.unreadable": "a program start could not be read, and was refused",
    "exec.too_large": "a program start was too large to be judged, and was refused",
    "limits.exceeded": "a limit was reached",
    "guard.lost": "the guard died, and everything in the sandbox with it",
    "answer.timeout": "an answer came too late, and was a refusal",
    "landing.failed": "the changes could not be landed",
    "journal.resumed": "the broker had died; another one recorded how it ended",
    "spawn.failed": "the command could not be started",
    "task.killed": "the task was ended by force",
    "budget.exceeded": "a budget was used up",
    "call.refused": "a call was refused",
}


def moment(micros: int) -> str:
    """Return a time for people, UTC."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S") if micros else "?"


def clock(micros: int) -> str:
    """Return the time of the day, with milliseconds, UTC."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC).strftime("%H:%M:%S.%f")[:-3] if micros else "?"


def seconds(value: float) -> str:
    """Return a span for people: 0.47 s, 3 min 20 s, 2 h 5 min."""
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def amount(value: float, kind: str) -> str:
    """Return a measured value with its unit."""
    if kind == "seconds":
        return seconds(value)
    if kind == "count":
        return f"{value:,.0f}"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError(value)


def usage_of(task: TaskSummary) -> list[tuple[str, str]]:
    """Return what a task took, as far as it was measured."""
    return [(name, amount(task.usage[key], kind)) for name, key, kind in USAGE if key in task.usage]


def result(summary: RunSummary) -> tuple[str, str]:
    """Return how the run ended, in a word or two, and whether that is good, bad or open."""
    end = summary.end
    if not summary.finished:
        return "no end recorded: still running, or interrupted", "open"
    if end.get("oom"):
        return "out of memory", "bad"
    if end.get("timed_out"):
        return "timed out", "bad"
    if end.get("signal"):
        return f"ended by {escape(str(end['signal']))}", "bad"
    code = end.get("exit_code")
    if code == 0:
        return "finished, exit 0", "good"
    return f"{escape(str(end.get('status', 'finished')))}, exit {escape(str(code))}", "bad"


def facts(summary: RunSummary) -> list[tuple[str, str]]:
    """Return what a run was, as pairs of words; every value is safe to show."""
    start = summary.start
    command = start.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    found = [
        ("command", command_line(words, 300) if words else "?"),
        ("profile", _named(start, "profile") + (f" (from {escape(str(start['source']))})" if start.get("source") else "")),
        ("trust", _named(start, "trust")),
        ("engine", _named(start, "engine") + (f" ({escape(str(start['engine_why']))})" if start.get("engine_why") else "")),
        ("workspace", _named(start, "workspace")),
        ("began", f"{moment(summary.began)} UTC"),
        ("ended", f"{moment(summary.ended)} UTC, after {seconds((summary.ended - summary.began) / 1_000_000)}"),
        ("journal", escape(summary.journal)),
    ]
    return [(name, value) for name, value in found if value]


def _named(start: dict[str, object], name: str) -> str:
    return escape(str(start.get(name) or ""))


def changes_line(summary: RunSummary) -> str:
    """Return in a line what landed and what did not."""
    words = [f"{summary.landed_count:,} landed"]
    if summary.withheld:
        words.append(f"{len(summary.withheld):,} withheld")
    if summary.conflicts:
        words.append(f"{len(summary.conflicts):,} in conflict")
    return " · ".join(words)


STATES = {"done": "good", "pass": "good", "active": "open", "pending": "open", "stale": "open", "blocked": "bad", "block": "bad", "removed": "open"}


def step_rows(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Return of each step of a plan: its task and name, its state, and what else there is to know. None of it is escaped."""
    rows = []
    for step in summary.steps:
        more = [f"said to be done and refused: {step.refused:,} times"] if step.refused else []
        more += [f"waived: {step.waived}"] if step.waived else []
        rows.append((f"{step.task} {step.step}", step.state, " · ".join((step.title, *more))))
    return rows


def review_rows(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Return of each judge and each panel: who, the verdict, and why. None of it is escaped."""
    rows = []
    for review in summary.reviews:
        who = f"judge {review.judge}" if review.judge else f"panel {review.panel}"
        rows.append((who, review.verdict, " · ".join(filter(None, (review.reason, *review.findings)))))
    return rows


def depth(path: str) -> int:
    """Return how far below the root a task is."""
    return path.count("/")


def in_tree(summary: RunSummary) -> list[TaskSummary]:
    """Return the tasks as a tree is read: each before those below it, siblings by number."""
    return sorted(summary.tasks.values(), key=lambda task: [(len(word), word) for word in task.path.split("/")])
