"""A run's report as one HTML page that needs nothing else: no script, no font, no picture, no network.

The page is a tree of elements, and the tree is written out by the standard library: what a process wrote is a text or
an attribute in it, and cannot become an element. On top of that, a Content-Security-Policy allows nothing but this one
style sheet, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from xml.etree.ElementTree import Element, tostring

from broker.cli.report_svg import bars, timeline
from broker.cli.report_words import (
    STATES,
    TROUBLE,
    changes_line,
    clock,
    depth,
    facts,
    in_tree,
    moment,
    result,
    review_rows,
    seconds,
    step_rows,
    usage_of,
)
from broker.cli.terminal import escape
from broker.record.summary import DenialSummary, RunSummary, TaskSummary

Content = Element | str | None
_SHOWN = 500  # of each list
_GRAVE = {"safe": "mild", "local_write": "mild", "code_execution": "middle", "install": "middle"}


def page(summary: RunSummary, *, record: str, intact: bool) -> str:
    """Return the whole page."""
    style = files("broker.cli").joinpath("report.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = e(
        "head", {},
        e("meta", {"charset": "utf-8"}),
        e("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        e("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        e("meta", {"name": "referrer", "content": "no-referrer"}),
        e("meta", {"name": "color-scheme", "content": "light dark"}),
        e("title", {}, f"Run {summary.run}"),
        e("style", {}),
    )  # fmt: skip
    body = e(
        "body", {}, _header(summary, record, intact=intact),
        e("main", {}, *_sections(summary)),
        e("footer", {}, f"Told from {escape(summary.journal)}: {summary.events:,} events. Times are UTC."),
    )  # fmt: skip
    written = tostring(e("html", {"lang": "en"}, head, body), encoding="unicode", method="html")
    # The style is ours, and must not be escaped: its hash is that of its bytes.
    return f"<!doctype html>\n{written.replace('<style></style>', f'<style>{style}</style>', 1)}\n"


def e(name: str, attributes: dict[str, str], *content: Content) -> Element:
    """Make an element. Text and attributes are shown as text, whatever is in them."""
    made = Element(name, {key: escape(value) for key, value in attributes.items()})
    last: Element | None = None
    for each in content:
        if isinstance(each, str):
            text = escape(each)
            if last is None:
                made.text = (made.text or "") + text
            else:
                last.tail = (last.tail or "") + text
        elif each is not None:
            made.append(each)
            last = each
    return made


def _header(summary: RunSummary, record: str, *, intact: bool) -> Element:
    how, state = result(summary)
    withheld = len(summary.withheld)
    took = (summary.ended - summary.began) / 1_000_000
    tiles = (
        (f"{summary.allowed:,}", "allowed", ""), (f"{summary.denied:,}", "refused", "bad" if summary.denied else "good"),
        (f"{summary.landed_count:,}", "landed", ""), (f"{withheld:,}", "withheld", "bad" if withheld else ""),
        (f"{len(summary.tasks):,}", "task" if len(summary.tasks) == 1 else "tasks", ""), (seconds(took), "took", ""),
    )  # fmt: skip
    return e(
        "header", {},
        e("p", {"class": "eyebrow"}, "Report of a supervised run"),
        e("h1", {}, summary.run, " ", e("span", {"class": f"pill {state}"}, how)),
        e("p", {"class": "command"}, e("code", {}, dict(facts(summary)).get("command", ""))),
        e("ul", {"class": "tiles"}, *(e("li", {"class": kind}, e("b", {}, value), " ", e("span", {}, name)) for value, name, kind in tiles)),
        e("dl", {"class": "facts"}, *_pairs(summary)),
        e("p", {"class": f"record {'good' if intact else 'bad'}"}, "Record ", e("code", {}, record)),
    )  # fmt: skip


def _pairs(summary: RunSummary) -> Iterable[Element]:
    for name, value in facts(summary):
        if name != "command":
            yield e("div", {}, e("dt", {}, name), e("dd", {}, value))


def _sections(summary: RunSummary) -> Iterable[Element]:
    yield _section("Tasks", _tasks(summary))
    if any(sum(pair) for pair in summary.slices):
        yield _section("Timeline", *_timeline(summary))
    yield _section("Refused", *_refused(summary))
    for title, rows in (("Plan", step_rows(summary)), ("Review", review_rows(summary))):
        if rows:
            yield _section(title, _judged(rows))
    if summary.landed or summary.withheld or summary.conflicts:
        yield _section("Changes", e("p", {"class": "note"}, changes_line(summary)), *_changes(summary))
    yield _section("Resources", _resources(summary))
    if summary.trouble:
        yield _section("Trouble", _trouble(summary))
    if summary.programs:
        yield _section("Programs started", bars([(name, count, "") for name, count in summary.most_started(15)]))
    if summary.layers:
        yield _section("Layers, proven before anything started", _layers(summary))


def _section(title: str, *content: Content) -> Element:
    return e("section", {}, e("h2", {}, title), *content)


def _table(heading: tuple[str, ...], rows: Iterable[tuple[Content, ...]], kind: str = "") -> Element:
    """Return a table whose cells carry their heading, so that a narrow screen can show rows as cards."""
    body = [
        e("tr", {}, *(e("td", {"data-label": name}, cell) for name, cell in zip(heading, row, strict=True))) for row in rows
    ]
    head = e("thead", {}, e("tr", {}, *(e("th", {"scope": "col"}, name) for name in heading)))
    return e("table", {"class": kind}, head, e("tbody", {}, *body))


# --- tasks


def _tasks(summary: RunSummary) -> Element:
    return _table(
        ("task", "profile", "ended", "allowed", "refused", "time"),
        (
            (
                e("span", {"class": f"tree d{min(depth(task.path), 8)}"}, e("code", {}, task.path)),
                e("span", {}, task.profile, e("span", {"class": "tag"}, "untrusted") if task.trust == "untrusted" else None),
                _ended(task), f"{task.allowed:,}",
                e("b", {"class": "bad"}, f"{task.refused:,}") if task.refused else "0",
                seconds((task.ended - task.began) / 1_000_000),
            )
            for task in in_tree(summary)[:_SHOWN]
        ),
        "tasks",
    )  # fmt: skip


def _ended(task: TaskSummary) -> str:
    if not task.status:
        return "no end recorded"
    return task.status + (f", exit {task.exit_code}" if task.exit_code is not None else "") + (f" ({task.reason})" if task.reason else "")


def _timeline(summary: RunSummary) -> Iterable[Content]:
    yield e(
        "p", {"class": "note"}, "Decisions in each sixtieth of the run: ", e("span", {"class": "key allowed"}, "allowed"), " ",
        e("span", {"class": "key refused"}, "refused"), ". Below, each task from its beginning to its end; each red mark is a refusal.",
    )  # fmt: skip
    yield timeline(summary, in_tree(summary))
    yield e("p", {"class": "axis"}, e("span", {}, clock(summary.began)), e("span", {}, moment(summary.began)[:10]), e("span", {}, clock(summary.ended)))


# --- what was refused


def _refused(summary: RunSummary) -> Iterable[Content]:
    if not summary.denied:
        yield e("p", {"class": "note"}, "Nothing was refused.")
        return
    yield e(
        "div", {"class": "two"},
        e("div", {}, e("h3", {}, "by class"), bars([(name, count, _grave(name)) for name, count in summary.counted("risk")])),
        e("div", {}, e("h3", {}, "by rule"), bars([(name, count, "") for name, count in summary.counted("rule")[:12]])),
    )  # fmt: skip
    yield e("h3", {}, "one by one")
    yield e("div", {"class": "denials"}, *(_denial(summary, denial) for denial in summary.denials[:_SHOWN]))
    left = len(summary.denials[_SHOWN:]) + summary.more_denials
    if left:
        yield e("p", {"class": "note"}, f"… and {left:,} more. All: broker events {summary.run} --type task.denied")


def _denial(summary: RunSummary, denial: DenialSummary) -> Element:
    times = e("span", {"class": "times"}, f"×{denial.count:,}") if denial.count > 1 else None
    return e(
        "details", {},
        e(
            "summary", {}, e("span", {"class": f"class {_grave(denial.risk)}"}, denial.risk),
            e("code", {"class": "what"}, denial.what), times, e("code", {"class": "where"}, denial.task),
        ),
        e("p", {}, denial.reason),
        e("p", {"class": "hint"}, denial.hint) if denial.hint else None,
        e(
            "dl", {"class": "facts"},
            *(
                e("div", {}, e("dt", {}, name), e("dd", {}, e("code", {}, value)))
                for name, value in (
                    ("rule", denial.rule), ("layer", denial.layer), ("task", denial.task), ("first at", clock(denial.time)),
                    ("how to allow it", f"broker events show {summary.run}:{denial.seq}"),
                )
            ),
        ),
    )  # fmt: skip


def _grave(risk: str) -> str:
    return _GRAVE.get(risk, "grave")


# --- the rest


def _judged(rows: list[tuple[str, str, str]]) -> Element:
    kinds = {"good": "mild", "bad": "grave"}
    return _table(
        ("who", "", "what"),
        (
            (e("code", {}, who), e("span", {"class": f"class {kinds.get(STATES.get(state, ''), '')}"}, state), text)
            for who, state, text in rows[:_SHOWN]
        ),
    )


def _changes(summary: RunSummary) -> Iterable[Element]:
    rows: list[tuple[Content, ...]] = [
        (e("span", {"class": "class grave"}, "withheld"), e("code", {}, denial.what), e("code", {}, denial.rule)) for denial in summary.withheld[:_SHOWN]
    ]
    rows += [(e("span", {"class": "class grave"}, "conflict"), e("code", {}, change.path), change.note) for change in summary.conflicts[:_SHOWN]]
    rows += [(e("span", {"class": "class mild"}, "landed"), e("code", {}, f"{change.kind} {change.path}"), "") for change in summary.landed[:_SHOWN]]
    yield _table(("", "change", "why"), rows, "changes")
    left = summary.landed_count - len(summary.landed[:_SHOWN])
    if left > 0:
        yield e("p", {"class": "note"}, f"… and {left:,} more that landed")


def _resources(summary: RunSummary) -> Element:
    measured = [task for task in in_tree(summary) if task.usage][:_SHOWN]
    if not measured:
        return e("p", {"class": "note"}, "Nothing was measured.")
    names = list(dict.fromkeys(name for task in measured for name, _ in usage_of(task)))
    rows: list[tuple[Content, ...]] = [(e("code", {}, task.path), *(dict(usage_of(task)).get(name, "") for name in names)) for task in measured]
    return _table(("task", *names), rows, "numbers")


def _trouble(summary: RunSummary) -> Element:
    return _table(
        ("time", "task", "event", ""),
        ((clock(time), e("code", {}, task), f"{kind} ({seq})", TROUBLE.get(kind, "")) for seq, time, kind, task in summary.trouble[:_SHOWN]),
    )


def _layers(summary: RunSummary) -> Element:
    return _table(
        ("layer", "", "evidence"),
        (
            (name.replace("_", " "), e("span", {"class": f"class {'mild' if ok else 'grave'}"}, "holds" if ok else "no effect"), evidence)
            for name, ok, evidence in summary.layers
        ),
    )
