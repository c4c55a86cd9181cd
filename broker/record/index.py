"""Step 5, reading: an SQLite index of the journals, so that a question about a million events is no matter of minutes.

In: journals. Out: the places of the lines that a Selection wants. The index is a cache and never the truth: whoever
uses it reads each line again from the journal, compares its hash, and asks the question again of what is written
there (query.py). It is made when it is missing, goes on where a journal grew, begins anew for a run whose file is
another one, and is thrown away when it is damaged or of another version. Where it cannot be used, nothing is lost
but time: a full disk, a state directory that is read-only, a lock that nobody lets go of.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256  # OpenSSL's: sqlite3 is loaded anyway, and a million lines are many
from pathlib import Path
from typing import Any

from broker.record import event
from broker.record.index_file import Untrue, complaints, connected
from broker.record.lines import START, Lines, Place, lines
from broker.record.run_files import segments
from broker.record.select import Facts, Reader, Selection, when
from broker.values import dataclass

BATCH = 50_000  # lines between two commits: others can go on, and what was done is kept
PAGE = 5_000  # rows held at once
FEW = 20_000  # up to here rows are looked up by their facts and then sorted; above, read in their order


@dataclass(frozen=True, slots=True)
class Row:
    """One line as the index has it."""

    number: int
    place: Place
    hash: int
    facts: Facts


@dataclass(frozen=True, slots=True)
class _Known:
    """How far a run is indexed."""

    id: int
    files: list[list[int]]
    end: Place
    head: str
    count: int
    profiles: dict[str, str]
    trouble: str


def short_hash(line: bytes) -> int:
    """Return the first eight bytes of the line's SHA-256, as SQLite's integer."""
    return _short(sha256(line).digest())


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


class Index:
    """The index of one state directory. Use `opened`; every method may raise Unusable or Untrue."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Take a connection to a file with our tables."""
        self._db = connection
        self._ids: dict[Facts, int] = {}

    # --- bringing it up to date

    def update(self, paths: list[Path], all_runs: list[Path]) -> None:
        """Index what the journals at `paths` hold and the index does not; forget runs that are gone."""
        with complaints():
            known = {str(run) for (run,) in self._db.execute("SELECT run FROM runs")}
            for run in sorted(known - {path.stem for path in all_runs}):
                self._forget(run)
            for path in paths:
                while self._is_stale(path) and not self._add_batch(path):
                    pass

    def _is_stale(self, path: Path) -> bool:
        known = self._known(path.stem)
        return known is None or known.files != _files(path)

    def _known(self, run: str) -> _Known | None:
        row = self._db.execute("SELECT * FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            return None
        number, _, files, segment, offset, head, count, profiles, trouble = row
        return _Known(number, json.loads(files), Place(segment, offset), head, count, json.loads(profiles), trouble)

    def _forget(self, run: str) -> None:
        with self._transaction():
            self._delete(run)

    def _delete(self, run: str) -> None:
        for table in ("events", "counts"):
            self._db.execute(f"DELETE FROM {table} WHERE run = (SELECT id FROM runs WHERE run = ?)", (run,))  # noqa: S608
        self._db.execute("DELETE FROM runs WHERE run = ?", (run,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")  # the lock first: what is read below must be the last word
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._ids.clear()
            raise
        self._db.execute("COMMIT")

    def _add_batch(self, path: Path) -> bool:
        """Index the next lines of a run, from its beginning if what is indexed is not the beginning of its file.

        Return whether these were the last: a run that is being written always has more a moment later.
        """
        with self._transaction():
            files = _files(path)  # before the lines: what is written meanwhile makes it stale, not wrong
            known = self._known(path.stem)
            if known is not None and not _grew_from(known, files, path):
                self._delete(path.stem)
                known = None
            if known is None:
                self._db.execute("INSERT INTO runs VALUES (NULL, ?, '[]', 0, 0, ?, 0, '{}', '')", (path.stem, event.GENESIS))
                known = self._known(path.stem)
                assert known is not None
            return self._add(path, known, files)

    def _add(self, path: Path, known: _Known, files: list[list[int]]) -> bool:
        reader = Reader(known.profiles)
        rows: list[tuple[int, ...]] = []
        counts: dict[int, int] = {}
        end, head, number, trouble = known.end, known.head, known.count, known.trouble
        whole = True
        for place, line in lines(path, known.end):
            if len(rows) == BATCH:
                whole = False
                break
            try:
                one = _decoded(line)
            except (ValueError, RecursionError):
                trouble = trouble or f"line {number + 1} is no event"
                break
            number += 1
            if one.get("prev") != head or one.get("seq") != number:
                trouble = trouble or f"line {number} does not follow from the line before it"
            digest = sha256(line)
            end, head = Place(place.segment, place.offset + len(line) + 1), digest.hexdigest()
            facts = self._id(reader.facts(one))
            counts[facts] = counts.get(facts, 0) + 1
            rows.append((known.id, number, facts, when(one), place.segment, place.offset, _short(digest.digest())))
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._db.executemany(
            "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (run, facts) DO UPDATE SET count = count + excluded.count",
            [(known.id, facts, count) for facts, count in counts.items()],
        )
        self._db.execute(
            "UPDATE runs SET files = ?, segment = ?, offset = ?, head = ?, count = ?, profiles = ?, trouble = ? WHERE id = ?",
            (json.dumps(files if whole else []), end.segment, end.offset, head, number, json.dumps(reader.profiles),
             trouble, known.id),
        )  # fmt: skip
        return whole

    def _id(self, facts: Facts) -> int:
        found = self._ids.get(facts)
        if found is None:
            text = json.dumps(facts)
            found = self._ids[facts] = short_hash(text.encode())
            self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (found, text))
        return found

    # --- asking

    def trouble(self, path: Path) -> str:
        """Return what is wrong with the chain of a run, as far as it showed while the run was indexed."""
        with complaints():
            known = self._known(path.stem)
            return "" if known is None else known.trouble

    def end(self, path: Path) -> tuple[Place, Reader]:
        """Return how far a run is indexed, and a reader that goes on from there."""
        with complaints():
            known = self._known(path.stem)
            return (START, Reader()) if known is None else (known.end, Reader(known.profiles))

    def rows(self, path: Path, source: Lines, selection: Selection, newest: int | None = None) -> Iterator[Row]:
        """Yield the lines of a run that the selection's facts and times want, in their order; only the `newest`.

        Raises Untrue, before the first of them, when the index has not as many as it once counted, or has another
        last line than the journal.
        """
        with complaints():
            known = self._known(path.stem)
            if known is None:
                raise Untrue
            wanted = self._wanted(source, known, selection)
            if wanted:
                yield from self._rows(known, wanted, selection, newest)

    def _wanted(self, source: Lines, known: _Known, selection: Selection) -> dict[int, Facts]:
        query = "SELECT facts.id, facts.facts, counts.count FROM counts JOIN facts ON facts.id = counts.facts WHERE run = ?"
        wanted, total, expected = {}, 0, 0
        for number, text, count in self._db.execute(query, (known.id,)):
            total += count
            if short_hash(text.encode()) != number:
                raise Untrue
            if selection.admits(facts := _facts(text)):
                wanted[number] = facts
                expected += count
        if total != known.count:
            raise Untrue
        self._compare_last(source, known)
        if wanted:
            query = f"SELECT count(*) FROM events INDEXED BY by_facts WHERE run = ? AND {_among(wanted)}"  # noqa: S608 - numbers
            found = self._db.execute(query, (known.id,))
            if found.fetchone()[0] != expected:
                raise Untrue
        return wanted

    def _compare_last(self, source: Lines, known: _Known) -> None:
        """Find the last line in the journal, where the index says that it is, and where it says that it goes on."""
        if known.count == 0:
            if known.end != START:
                raise Untrue
            return
        query = "SELECT segment, offset FROM events WHERE run = ? AND number = ?"
        last = self._db.execute(query, (known.id, known.count)).fetchone()
        line = b"" if last is None else source.at(Place(*last))
        if not line or event.digest(line) != known.head or known.end != Place(last[0], last[1] + len(line) + 1):
            raise Untrue

    def _rows(self, known: _Known, wanted: dict[int, Facts], selection: Selection, newest: int | None) -> Iterator[Row]:
        since = selection.since if selection.since is not None else 0
        until = selection.until if selection.until is not None else 1 << 62
        few = len(wanted) < 500 and self._count(known, wanted) <= FEW
        where = f"run = ? AND {_among(wanted)} AND time BETWEEN ? AND ?"
        how = "INDEXED BY by_facts" if few else "NOT INDEXED"  # without a word from us SQLite reads on to the next one
        columns = f"SELECT number, segment, offset, hash, facts FROM events {how} WHERE"  # noqa: S608 - numbers
        if newest is not None:
            query = f"{columns} {where} ORDER BY number DESC LIMIT ?"
            found = self._db.execute(query, (known.id, since, until, newest)).fetchall()[::-1]
            yield from (_row(each, wanted) for each in found)
            return
        after = 0
        while True:  # in pages: a reader who stops to think holds no lock, and no memory
            query = f"{columns} {where} AND number > ? ORDER BY number LIMIT ?"
            page = self._db.execute(query, (known.id, since, until, after, PAGE)).fetchall()
            yield from (_row(each, wanted) for each in page)
            if len(page) < PAGE:
                return
            after = page[-1][0]

    def _count(self, known: _Known, wanted: dict[int, Facts]) -> int:
        query = f"SELECT sum(count) FROM counts WHERE run = ? AND {_among(wanted)}"  # noqa: S608 - numbers
        return int(self._db.execute(query, (known.id,)).fetchone()[0])


def _decoded(line: bytes) -> dict[str, Any]:
    """Return an event, without looking for a key that occurs twice: whoever shows it looks (lines.py)."""
    one = _DECODER.decode(line.decode("ascii"))
    if not isinstance(one, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - it is the text that is wrong, not a type
    return one


_DECODER = json.JSONDecoder()


def _among(wanted: dict[int, Facts]) -> str:
    return f"facts IN ({','.join(map(str, wanted))})"


def _row(columns: tuple[int, int, int, int, int], wanted: dict[int, Facts]) -> Row:
    number, segment, offset, short, facts = columns
    return Row(number, Place(segment, offset), short, wanted[facts])


def _facts(text: str) -> Facts:
    task, kind, verdict, effects, rules, profile = json.loads(text)
    return Facts(task, kind, verdict, tuple(effects), tuple(rules), profile)


def _files(path: Path) -> list[list[int]]:
    """Return what tells whether a run's files are as they were: nobody can set a file's ctime (inode(7))."""
    found = []
    for file in segments(path):
        status = os.stat(file)
        found.append([status.st_ino, status.st_size, status.st_ctime_ns])
    return found


def _grew_from(known: _Known, files: list[list[int]], path: Path) -> bool:
    """Tell whether what is indexed is how the run's files still begin."""
    if known.count == 0:
        return True
    if not known.files:  # a batch of a larger whole; the last line decides
        return known.end.segment < len(files) and _last_is_there(known, path)
    last = len(known.files) - 1
    if known.files[:last] != files[:last] or len(files) <= last:
        return False
    (inode, size, _), (inode_now, size_now, _) = known.files[last], files[last]
    return inode == inode_now and (size_now > size or len(files) > last + 1) and _last_is_there(known, path)


def _last_is_there(known: _Known, path: Path) -> bool:
    """Tell whether the last line that was indexed still ends where it ended."""
    with segments(path)[known.end.segment].open("rb") as source:
        back = min(known.end.offset, 1 << 16)
        while True:
            source.seek(known.end.offset - back)
            tail = source.read(back)
            line = tail[:-1].rpartition(b"\n")[2]
            if len(line) < len(tail) - 1 or back == known.end.offset:
                return tail.endswith(b"\n") and event.digest(line) == known.head
            back = min(known.end.offset, back * 4)


@contextmanager
def opened(state: Path) -> Iterator[Index]:
    """Open the index of a state directory, made anew if need be. Raises Unusable when it cannot be used."""
    with connected(state) as connection:
        yield Index(connection)
