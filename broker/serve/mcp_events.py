"""The record of a task, as resources: `broker://events/root`, and of each of its sub-tasks; never of another task.

In: a resource's address. Out: the events as lines of JSON, a page at a time. The journal is read from the place that the
address says, and only a bounded piece of it, however long it is and however few of its events are of the task.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from broker.record import event
from broker.record.lines import Place, lines
from broker.stage import Stage
from broker.values import dataclass

SCHEME = "broker://events/"
TEMPLATE = "broker://events/{+task}{?after,limit}"
MEDIA_TYPE = "application/x-ndjson"
MOST_EVENTS = 200
MOST_BYTES = 256 * 1024
MOST_LOOKED_AT = 8 << 20  # bytes of the journal, for one page
MOST_LISTED = 100  # tasks
# What is about the run and its host, and no task's business.
_NOT_ITS_OWN = ("run.", "journal.", "sandbox.", "layer.")

_PLACE = re.compile(r"(\d{1,6})\.(\d{1,12})")


class NoSuchResource(ValueError):
    """There is nothing at this address, or not for this task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some events, in their order. `after` is where the next page begins, '' at the end of what there is now."""

    text: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A task, and where in its record to begin."""

    task: str
    after: Place | None = None
    limit: int = MOST_EVENTS


def tasks_of(stage: Stage) -> list[str]:
    """Return the tasks whose events may be read: this one, and those below it, parents first."""
    return [node.path for node in stage.plot.node.family()]


def address_of(stage: Stage, uri: str) -> Address:
    """Return what an address means. Raises NoSuchResource."""
    parts = urlsplit(uri)
    if not uri.startswith(SCHEME) or parts.fragment:
        raise NoSuchResource(f"the resources here are {TEMPLATE}")
    task = uri[len(SCHEME) :].partition("?")[0]
    if task not in tasks_of(stage):
        raise NoSuchResource(f"there is no task {task[:64]!a} here")
    after, limit = None, MOST_EVENTS
    for name, value in parse_qsl(parts.query, keep_blank_values=True, max_num_fields=8):
        if name == "after" and (place := _PLACE.fullmatch(value)):
            after = Place(int(place[1]), int(place[2]))
        elif name == "limit" and value.isascii() and value.isdigit() and 0 < int(value[:9]) <= MOST_EVENTS:
            limit = int(value)
        else:
            raise NoSuchResource(f"{name[:32]!a}: give after as the last page said it, and limit up to {MOST_EVENTS}")
    return Address(task=task, after=after, limit=limit)


def page(stage: Stage, address: Address) -> Page:
    """Return a page of a task's events. Raises JournalError when the record cannot be read."""
    rows: list[str] = []
    size = looked_at = 0
    for place, line in lines(stage.run.journal.path, address.after or Place(0, 0)):
        if len(rows) == address.limit or size > MOST_BYTES or looked_at > MOST_LOOKED_AT:
            return Page(text="".join(rows), after=f"{place.segment}.{place.offset}")
        looked_at += len(line)
        try:
            found = event.decode(line)
        except ValueError:  # the place was not the beginning of a line
            continue
        if found.get("task") == address.task and not str(found.get("type")).startswith(_NOT_ITS_OWN):
            rows.append(line.decode("ascii") + "\n")
            size += len(line)
    return Page(text="".join(rows), after="")
