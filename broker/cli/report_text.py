"""A run's report on a terminal."""

from __future__ import annotations

from broker.cli.report_words import (
    STATES,
    TROUBLE,
    changes_line,
    clock,
    depth,
    facts,
    in_tree,
    result,
    review_rows,
    step_rows,
    usage_of,
)
from broker.cli.terminal import Colours, escape, shorten
from broker.record.summary import RunSummary, TaskSummary

SHOWN = 40  # of each list; the other forms have more
_BARS = " ▁▂▃▄▅▆▇█"


def text(summary: RunSummary, colours: Colours, *, record: str) -> str:
    """Return the report, ready to print."""
    bold = colours.paint
    how, state = result(summary)
    style = {"good": "green", "bad": "red"}.get(state, "yellow")
    lines = [f"{bold(escape(summary.run), 'bold')}  {colours.paint(how, style)}", ""]
    lines += [f"  {name:<10} {value}" for name, value in facts(summary)]
    lines.append(f"  {'record':<10} {colours.paint(escape(record), 'green' if record.startswith('intact') else 'red')}")
    lines += _tasks(summary, colours)
    lines += _timeline(summary, colours)
    lines += _denials(summary, colours)
    lines += _judged("Plan", step_rows(summary), colours)
    lines += _judged("Review", review_rows(summary), colours)
    lines += _changes(summary, colours)
    lines += _rest(summary, colours)
    return "\n".join(lines) + "\n"


def _heading(title: str, colours: Colours) -> list[str]:
    return ["", colours.paint(title, "bold")]


def _tasks(summary: RunSummary, colours: Colours) -> list[str]:
    lines = _heading("Tasks", colours)
    for task in in_tree(summary)[:SHOWN]:
        refused = colours.paint(f"{task.refused} refused", "red") if task.refused else "nothing refused"
        lines.append(
            f"  {'  ' * depth(task.path)}{colours.paint(escape(task.path), 'cyan')}  {escape(task.profile)}"
            f"{' · untrusted' if task.trust == 'untrusted' else ''} · {_ended(task)} · {task.allowed} allowed · {refused}"
        )
        if used := usage_of(task):
            lines.append(f"  {'  ' * depth(task.path)}  {colours.paint(' · '.join(f'{name} {value}' for name, value in used), 'dim')}")
    return [*lines, *_more(len(summary.tasks))]


def _ended(task: TaskSummary) -> str:
    if not task.status:
        return "no end recorded"
    return escape(task.status) + (f", exit {task.exit_code}" if task.exit_code is not None else "")


def _more(count: int) -> list[str]:
    return [f"  … and {count - SHOWN:,} more"] if count > SHOWN else []


def _timeline(summary: RunSummary, colours: Colours) -> list[str]:
    most = max((sum(pair) for pair in summary.slices), default=0)
    if not most:
        return []
    bars = "".join(
        colours.paint(_BARS[-(-sum(pair) * 8 // most)], "red" if pair[1] else "green") if sum(pair) else " " for pair in summary.slices
    )
    left, right = clock(summary.began), clock(summary.ended)
    axis = f"{left}{' ' * max(1, len(summary.slices) - len(left) - len(right))}{right}"
    return [*_heading("Decisions over time (red: with refusals)", colours), f"  {bars}", f"  {colours.paint(axis, 'dim')}"]


def _denials(summary: RunSummary, colours: Colours) -> list[str]:
    if not summary.denied:
        return [*_heading("Refused", colours), "  Nothing."]
    lines = _heading(f"Refused: {summary.denied:,}", colours)
    for title, by in (("by class", "risk"), ("by rule", "rule")):
        counts = summary.counted(by)
        named = ", ".join(f"{colours.risk(escape(name)) if by == 'risk' else escape(name)} {count:,}" for name, count in counts[:12])
        lines.append(f"  {title:<9} {named}{' …' if len(counts) > 12 else ''}")
    lines.append("")
    for denial in summary.denials[:SHOWN]:
        times = f" ×{denial.count:,}" if denial.count > 1 else ""
        lines.append(
            f"  {colours.paint(f'{denial.seq:>5}', 'dim')} {colours.paint(escape(denial.task), 'cyan')} {colours.risk(escape(denial.risk))}  "
            f"{shorten(escape(denial.what), 100)}{times}"
        )
        lines.append(f"        {colours.paint(shorten(escape(denial.reason), 200), 'dim')}")
    lines += _more(len(summary.denials))
    if summary.more_denials:
        lines.append(f"  … and {summary.more_denials:,} that are only counted")
    return [*lines, f"  How to allow one: broker events show {escape(summary.run)}:NUMBER"]


def _judged(title: str, rows: list[tuple[str, str, str]], colours: Colours) -> list[str]:
    if not rows:
        return []
    styles = {"good": "green", "bad": "red", "open": "yellow"}
    return [*_heading(title, colours), *(
        f"  {colours.paint(f'{escape(state):<8}', styles[STATES.get(state, 'open')])} {escape(who)}  {shorten(escape(text), 300)}".rstrip()
        for who, state, text in rows[:SHOWN]
    ), *_more(len(rows))]  # fmt: skip


def _changes(summary: RunSummary, colours: Colours) -> list[str]:
    if not (summary.landed or summary.withheld or summary.conflicts):
        return []
    lines = _heading(f"Changes: {changes_line(summary)}", colours)
    lines += [f"  {colours.paint('landed', 'green')}    {escape(change.kind):<9} {escape(change.path)}" for change in summary.landed[:SHOWN]]
    lines += _more(len(summary.landed))
    lines += [f"  {colours.paint('withheld', 'red')}  {escape(denial.what)}  [{escape(denial.rule)}]" for denial in summary.withheld[:SHOWN]]
    lines += _more(len(summary.withheld))
    lines += [f"  {colours.paint('conflict', 'red')}  {escape(change.path)}  {escape(change.note)}" for change in summary.conflicts[:SHOWN]]
    return lines


def _rest(summary: RunSummary, colours: Colours) -> list[str]:
    lines = []
    if summary.trouble:
        lines += _heading("Trouble", colours)
        lines += [
            f"  {clock(time)} {escape(task)} {escape(kind)}: {TROUBLE.get(kind, 'see the event')} (event {seq})"
            for seq, time, kind, task in summary.trouble[:SHOWN]
        ]
        lines += _more(len(summary.trouble))
    if summary.programs:
        lines += _heading("Programs started", colours)
        lines.append("  " + ", ".join(f"{escape(name)} {count:,}" for name, count in summary.most_started(20)))
    if summary.layers:
        lines += _heading("Layers, as they were proven before anything started", colours)
        lines += [
            f"  {colours.paint('holds' if ok else 'NO EFFECT', 'green' if ok else 'red')}  {escape(name):<12} {colours.paint(shorten(escape(evidence), 100), 'dim')}"
            for name, ok, evidence in summary.layers
        ]
    return lines
