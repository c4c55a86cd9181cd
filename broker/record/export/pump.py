"""Carries events from journals to a sink: in batches, again when it must be, and each time from where the cursor is.

In: runs, a format, a sink, a cursor. Out: how much was handed on. What is held is one batch, so memory does not grow with what
is read. The cursor moves when the sink has a batch, and not before.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from broker.record import event
from broker.record.export.cursor import Cursor
from broker.record.export.facts import Facts, before
from broker.record.export.message import Format, Message, Sink, Unreachable
from broker.record.lines import Place, event_at, lines
from broker.values import dataclass

BATCH = 1_000  # messages
BATCH_BYTES = 1 << 20  # of lines
FIRST_WAIT, LONGEST_WAIT = 0.2, 30.0
QUIET = 0.05  # seconds without a new event, after which what there is goes out


@dataclass(frozen=True, slots=True)
class Item:
    """An event of a run, and where the next one begins."""

    path: Path
    after: Place
    line: bytes
    event: dict[str, Any]


@dataclass(slots=True)
class Counts:
    """What was handed on. `passed`: events that the format has no words for."""

    events: int = 0
    messages: int = 0
    passed: int = 0
    batches: int = 0
    retries: int = 0


@dataclass(slots=True)
class Pump:
    """One export. `cursor`: None where nothing is remembered. `patience`: seconds to go on trying; None: for ever."""

    format: Format
    sink: Sink
    cursor: Cursor | None = None
    patience: float | None = 300.0
    tell: Callable[[str], None] = lambda _: None
    counts: Counts = field(default_factory=Counts)
    _batch: list[Message] = field(default_factory=list)
    _places: dict[str, Place] = field(default_factory=dict)
    _facts: dict[str, Facts] = field(default_factory=dict)
    _bytes: int = 0

    def carry(self, items: Iterator[Item | None]) -> Counts:
        """Hand on all items; at None, what there is. Raises Refused, or Unreachable when patience is over."""
        for item in items:
            if item is None:
                self._flush()
                continue
            self._take(item)
            if len(self._batch) >= BATCH or self._bytes >= BATCH_BYTES:
                self._flush()
        self._flush()
        return self.counts

    def _take(self, item: Item) -> None:
        run = item.path.stem
        facts = self._facts.get(run)
        if facts is None:
            facts = self._facts[run] = before(item.path, self._begin(item))
        facts.take(item.event)
        said = list(self.format.messages(item.line, item.event, facts))
        self._batch += said
        self._bytes += len(item.line)
        self._places[run] = item.after
        self.counts.events += 1
        self.counts.passed += not said
        if item.event.get("type") == event.RUN_FINISHED:
            del self._facts[run]

    @staticmethod
    def _begin(item: Item) -> Place:
        return Place(item.after.segment, item.after.offset - len(item.line) - 1)

    def _flush(self) -> None:
        if self._batch:
            self._deliver()
            self.counts.batches += 1
            self.counts.messages += len(self._batch)
            self._batch = []
        if self.cursor is not None and self._places:
            self.cursor.save(self._places)
        self._places, self._bytes = {}, 0

    def _deliver(self) -> None:
        began, wait = time.monotonic(), FIRST_WAIT
        while True:
            try:
                self.sink.deliver(self.format, self._batch)
            except Unreachable as error:
                pause = error.after if error.after is not None else wait * random.uniform(0.5, 1.0)  # not all at once
                if self.patience is not None and time.monotonic() - began + pause > self.patience:
                    raise
                self.counts.retries += 1
                self.tell(f"{error}; again in {pause:.1f} s")
                time.sleep(pause)
                wait = min(wait * 2, LONGEST_WAIT)
            else:
                return


def recorded(paths: list[Path], place: Callable[[str], Place]) -> Iterator[Item]:
    """Yield what the runs hold now, run by run, from where each goes on."""
    for path in paths:
        for where, line in lines(path, place(path.stem)):
            yield Item(path, Place(where.segment, where.offset + len(line) + 1), line, event_at(path, where, line))


def followed(paths: list[Path], place: Callable[[str], Place], folder: Path | None) -> Iterator[Item | None]:
    """Yield what the runs hold, and what comes, as it comes; None when nothing comes for a moment.

    Ends when every run has ended; with a `folder`, in which others may begin, never.
    """
    from broker.record.follow import Follower
    from broker.record.select import Selection

    follower = Follower(paths, folder=folder)
    follower.start_at({path: place(path.stem) for path in paths})
    waiting: queue.Queue[Item | BaseException | None] = queue.Queue(maxsize=2 * BATCH)

    def read() -> None:
        try:
            for found in follower.events(Selection()):
                after = Place(found.place.segment, found.place.offset + len(found.line) + 1)
                waiting.put(Item(found.path, after, found.line, found.event))
            waiting.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits for it
            waiting.put(error)

    # A thread, because reading waits for the kernel, and a batch must go out meanwhile.
    threading.Thread(target=read, name="export-follow", daemon=True).start()
    quiet = True
    while True:
        try:
            item = waiting.get(timeout=None if quiet else QUIET)
        except queue.Empty:
            quiet = True
            yield None
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        quiet = False
        yield item
