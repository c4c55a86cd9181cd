"""The pictures in a run's report: bars and the timeline, as SVG elements, which take no style of their own."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from broker.cli.terminal import escape, shorten
from broker.record.summary import SLICES, RunSummary, TaskSummary

_LANES = 40
_HIGH = 72  # the height of the highest bar
_WIDTH = 1200  # in the pictures' own units; they are stretched to the page


def bars(rows: list[tuple[str, int, str]]) -> Element:
    """Return a list of names with their numbers, each with a bar; the third value is the bar's kind."""
    most = max((count for _, count, _ in rows), default=1)
    listed = Element("ul", {"class": "bars"})
    for name, count, kind in rows:
        item = SubElement(listed, "li")
        SubElement(item, "code").text = escape(name) or "-"
        SubElement(item, "b").text = f"{count:,}"
        picture = SubElement(item, "svg", {"viewBox": "0 0 100 4", "preserveAspectRatio": "none", "aria-hidden": "true"})
        SubElement(picture, "rect", {"class": "ground", "width": "100", "height": "4"})
        SubElement(picture, "rect", {"class": f"bar {kind}".strip(), "width": f"{max(1.0, 100 * count / most):.1f}", "height": "4"})
    return listed


def timeline(summary: RunSummary, tasks: list[TaskSummary]) -> Element:
    """Return the decisions in each slice of the run, and below them, on the same scale, a lane for each task."""
    listed = Element("ul", {"class": "timeline"})
    item = SubElement(listed, "li", {"class": "high"})
    SubElement(item, "span").text = "all tasks"
    picture = _picture(item, _HIGH, f"{summary.allowed:,} operations allowed and {summary.denied:,} refused")
    most = max(1, *(sum(pair) for pair in summary.slices))
    step = _WIDTH / SLICES
    for number, (allowed, refused) in enumerate(summary.slices):
        top = float(_HIGH)
        for count, kind in ((allowed, "allowed"), (refused, "refused")):
            size = max(2.0, _HIGH * count / most) if count else 0.0
            top -= size
            if size:
                _rect(picture, kind, number * step + 1, max(0.0, top), step - 2, size)
    for task in tasks[:_LANES]:
        item = SubElement(listed, "li")
        SubElement(item, "code").text = escape(task.path)
        _lane(item, summary, task)
    return listed


def _lane(item: Element, summary: RunSummary, task: TaskSummary) -> None:
    span = max(1, summary.ended - summary.began)
    picture = _picture(item, 10, f"{task.path} ({task.profile}): {task.refused:,} refused")
    _rect(picture, "ground", 0, 0, _WIDTH, 10)
    _rect(picture, "allowed", (task.began - summary.began) * _WIDTH / span, 0, max(3.0, (task.ended - task.began) * _WIDTH / span), 10)
    for column in sorted({round((time - summary.began) * 400 / span) for time in task.refusals}):
        _rect(picture, "refused", min(_WIDTH - 3, column * _WIDTH / 400), 0, 3, 10)


def _picture(within: Element, height: int, title: str) -> Element:
    box = {"viewBox": f"0 0 {_WIDTH} {height}", "preserveAspectRatio": "none", "role": "img"}
    picture = SubElement(within, "svg", box)
    SubElement(picture, "title").text = shorten(escape(title), 120)
    return picture


def _rect(picture: Element, kind: str, x: float, y: float, width: float, height: float) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    SubElement(picture, "rect", {"class": kind, **place})
