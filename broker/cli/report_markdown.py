"""A run's report as Markdown (CommonMark, with the tables of GitHub's), for a ticket or a pull request.

What a process wrote stands in code spans, or with every character escaped that could mean something: no link, no
image, no mention and no HTML of an agent's making.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from broker.cli.report_words import (
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
from broker.cli.terminal import escape, shorten
from broker.record.summary import RunSummary

SHOWN = 200
_MEANS = re.compile(r"([\\`*_{}\[\]<>#|~&@!:$]|(?<=www)\.)")  # `:`, `@` and `www.` would become links by themselves


def markdown(summary: RunSummary, *, record: str) -> str:
    """Return the report."""
    how, _ = result(summary)
    lines = [f"# Run {plain(summary.run)}", "", f"**{plain(how)}** — {plain(_in_short(summary))}", ""]
    lines += _table(("", ""), [(f"**{name}**", code(value)) for name, value in [*facts(summary), ("record", escape(record))]])
    lines += ["", "## Tasks", ""]
    lines += _table(
        ("task", "profile", "trust", "ended", "allowed", "refused", "took"),
        [
            (
                "&nbsp;&nbsp;" * depth(task.path) + code(escape(task.path)), plain(task.profile), plain(task.trust),
                plain(task.status or "no end recorded") + (f", exit {task.exit_code}" if task.exit_code is not None else ""),
                f"{task.allowed:,}", f"{task.refused:,}", plain(", ".join(f"{name} {value}" for name, value in usage_of(task))),
            )
            for task in in_tree(summary)[:SHOWN]
        ],
    )  # fmt: skip
    lines += _denials(summary)
    for title, rows in (("Plan", step_rows(summary)), ("Review", review_rows(summary))):
        if rows:
            lines += ["", f"## {title}", ""]
            lines += _table(("", "", ""), [(code(escape(who)), plain(state), plain(shorten(text, 500))) for who, state, text in rows[:SHOWN]])
    lines += _changes(summary)
    if summary.trouble:
        lines += ["", "## Trouble", ""]
        lines += [f"- {clock(time)} {code(escape(task))} {plain(kind)}: {plain(TROUBLE.get(kind, ''))} (event {seq})" for seq, time, kind, task in summary.trouble[:SHOWN]]
    if summary.layers:
        lines += ["", "## Layers", ""]
        lines += _table(("layer", "holds", "evidence"), [(plain(name), "yes" if ok else "**no**", plain(evidence)) for name, ok, evidence in summary.layers])
    return "\n".join(lines) + "\n"


def _in_short(summary: RunSummary) -> str:
    return f"{summary.allowed:,} operations allowed, {summary.denied:,} refused; changes: {changes_line(summary)}"


def _denials(summary: RunSummary) -> list[str]:
    lines = ["", f"## Refused: {summary.denied:,}", ""]
    if not summary.denied:
        return [*lines, "Nothing."]
    lines += _table(("class", "times"), [(plain(name), f"{count:,}") for name, count in summary.counted("risk")])
    lines += ["", *_table(("rule", "times"), [(code(escape(name)), f"{count:,}") for name, count in summary.counted("rule")[:50]]), ""]
    lines += _table(
        ("event", "task", "class", "what", "why", "times"),
        [
            (str(denial.seq), code(escape(denial.task)), plain(denial.risk), code(shorten(escape(denial.what), 200)),
             plain(shorten(denial.reason, 300)), f"{denial.count:,}")
            for denial in summary.denials[:SHOWN]
        ],
    )  # fmt: skip
    left = len(summary.denials) - SHOWN + summary.more_denials
    if left > 0:
        lines += ["", f"… and {left:,} more."]
    return [*lines, "", f"How to allow one: `broker events show {summary.run}:EVENT`"]


def _changes(summary: RunSummary) -> list[str]:
    rows = [("landed", plain(change.kind), code(escape(change.path)), "") for change in summary.landed[:SHOWN]]
    rows += [("**withheld**", "", code(escape(denial.what)), code(escape(denial.rule))) for denial in summary.withheld[:SHOWN]]
    rows += [("**conflict**", "", code(escape(change.path)), plain(change.note)) for change in summary.conflicts[:SHOWN]]
    if not rows:
        return []
    return ["", f"## Changes: {changes_line(summary)}", "", *_table(("", "kind", "path", "rule"), rows)]


def _table(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [_row(heading), _row(("---",) * len(heading)), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """Return text that means itself, whatever is in it."""
    return _MEANS.sub(r"\\\1", escape(text)).replace("\n", " ")


def code(text: str) -> str:
    """Return escaped text as code. A code span knows no escapes, and a table's cell ends at `|` even within one."""
    if not text:
        return ""
    return f"`{text}`" if not re.search(r"[`|\\]", text) and text == text.strip() else f"<code>{plain(text)}</code>"
