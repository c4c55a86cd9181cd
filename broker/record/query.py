"""Step 5, reading: the events that a Selection wants, of one run or of many, in the order of time.

In: journals, a Selection. Out: events, each read from its journal and judged as it stands there. For large journals
the index says where to look; it is never believed (index.py). Of several runs one at a time is held open, and of each
run one event: memory does not grow with what is read.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import JournalError
from broker.record.lines import START, Lines, Place, containing, event_at, lines
from broker.record.run_files import list_runs, segments
from broker.record.select import Facts, Reader, Selection, when
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.record.index import Row

LARGE = 4 << 20  # bytes; below, reading the lines is as fast as opening the index


@dataclass(frozen=True, slots=True)
class Found:
    """An event, the run it is of, its line as it stands in the journal, and where that is."""

    path: Path
    place: Place
    line: bytes
    event: dict[str, Any]
    time: int  # microseconds since 1970

    @property
    def id(self) -> str:
        """What `events show` calls it."""
        return f"{self.path.stem}:{self.event.get('seq', '?')}"


def find(
    state: Path, paths: list[Path], selection: Selection, *, newest: int | None = None, index: bool = True,
    warn: Callable[[str], None] = print,
) -> Iterator[Found]:  # fmt: skip
    """Yield the wanted events of these runs, merged by time; of those, only the `newest` so many.

    Raises JournalError when a journal cannot be read. `warn` is told in a sentence when a record shows that it was altered.
    """
    paths = list(dict.fromkeys(paths))
    if index and not selection.grep and (selection.by_facts or selection.since or selection.until or newest):
        mine = [path for path in paths if path.parent == state / "runs"]
        if sum(_size(path) for path in mine) > LARGE:
            yield from _newest(_with_index(state, paths, mine, selection, newest, warn), newest)
            return
    yield from _newest(_merged(paths, lambda path: scan(path, selection)), newest)


def _newest(found: Iterable[Found], newest: int | None) -> Iterator[Found]:
    return iter(found) if newest is None else iter(deque(found, maxlen=newest))


def _size(path: Path) -> int:
    try:
        return sum(file.stat().st_size for file in segments(path))
    except OSError:
        return 0


# --- without the index


def scan(path: Path, selection: Selection, start: Place = START, reader: Reader | None = None) -> Iterator[Found]:
    """Yield the wanted events of one run by reading its lines, from a place on."""
    if selection.grep and not selection.profiles:
        # Nothing has to be known from the lines before, so lines without the text need no look.
        candidates: Iterator[tuple[Place, bytes]] = (each for each in containing(path, selection.grep) if each[0] >= start)
    else:
        candidates = lines(path, start)
    reader = reader or Reader()
    for place, line in candidates:
        one = event_at(path, place, line)
        time = when(one)
        if selection.admits(reader.facts(one)) and selection.in_time(time) and selection.in_text(line):
            yield Found(path, place, line, one, time)


# --- with it


def _with_index(
    state: Path, paths: list[Path], mine: list[Path], selection: Selection, newest: int | None, warn: Callable[[str], None]
) -> Iterator[Found]:
    from broker.record.index import opened  # sqlite3 takes its time to load
    from broker.record.index_file import Untrue, Unusable, throw_away

    suspect = False
    try:
        with opened(state) as index:
            index.update(mine, list_runs(state))
            for path in mine:
                if trouble := index.trouble(path):
                    warn(f"{path.stem}: {trouble}: the record was altered. Run: broker events verify {path.stem}")

            def of_run(path: Path) -> Iterator[Found]:
                nonlocal suspect
                if path not in mine:
                    yield from scan(path, selection)
                    return
                last = None
                source = Lines(path)
                try:
                    for row in index.rows(path, source, selection, newest):
                        found = _checked(path, source, row, selection, last)
                        yield found
                        last = found.place
                    # What was written since, and the complaint about a line that is no event.
                    end, reader = index.end(path)
                    yield from scan(path, selection, end, reader)
                except (Untrue, Unusable) as error:
                    suspect = suspect or isinstance(error, Untrue)
                    yield from (each for each in scan(path, selection) if last is None or each.place > last)
                finally:
                    source.close()

            yield from _merged(paths, of_run)
    except (Unusable, Untrue) as error:
        suspect = suspect or isinstance(error, Untrue)
        yield from _merged(paths, lambda path: scan(path, selection))
    if suspect:
        throw_away(state)


def _checked(path: Path, source: Lines, row: Row, selection: Selection, last: Place | None) -> Found:
    """Return what the journal has at a row's place. Raises Untrue unless it is what the index says it is.

    INVARIANT: what is shown is a line of the journal, and the journal's own words answer the question
    (test_index.py: test_an_index_cannot_make_an_event_appear).
    """
    from broker.record.index import short_hash
    from broker.record.index_file import Untrue

    line = source.at(row.place)
    if short_hash(line) != row.hash or (last is not None and row.place <= last):
        raise Untrue
    one = event_at(path, row.place, line)
    facts, time = Reader({"root": row.facts.profile}).facts(one), when(one)
    if _without_profile(facts) != _without_profile(row.facts) or not selection.in_time(time):
        raise Untrue
    return Found(path, row.place, line, one, time)


def _without_profile(facts: Facts) -> Facts:
    return facts._replace(profile="")


# --- several runs


def _merged(paths: list[Path], of_run: Callable[[Path], Iterator[Found]]) -> Iterator[Found]:
    """Yield the events of all runs in the order of time; each run keeps its own order, whatever its clock did.

    A run is opened when the others have come to its beginning: a thousand runs are not a thousand open files.
    """
    waiting = deque(sorted((_start(path), number) for number, path in enumerate(paths)))
    heads: list[tuple[int, int, Found, Iterator[Found]]] = []
    while heads or waiting:
        while waiting and (not heads or waiting[0][0] <= heads[0][0]):
            _, number = waiting.popleft()
            _push(heads, number, of_run(paths[number]))
        if heads:
            _, number, found, rest = heapq.heappop(heads)
            yield found
            _push(heads, number, rest)


def _push(heads: list[tuple[int, int, Found, Iterator[Found]]], number: int, rest: Iterator[Found]) -> None:
    if (found := next(rest, None)) is not None:
        heapq.heappush(heads, (found.time, number, found, rest))


def _start(path: Path) -> int:
    """Return when a run began, as its id says; a file with another name is opened at once."""
    try:
        return int(datetime.strptime(path.stem[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()) * 1_000_000
    except ValueError:
        return 0


# --- one event


def find_one(path: Path, seq: int) -> Found:
    """Return the event of a run with this number. Raises JournalError when there is none."""
    count = 0
    for place, line in lines(path):
        count += 1
        if count == seq:
            one = event_at(path, place, line)
            return Found(path, place, line, one, when(one))
    raise JournalError(f"{path.stem} has no event {seq}: it holds {count}")


