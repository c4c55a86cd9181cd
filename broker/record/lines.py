"""Step 5, reading: a run's lines, and where they lie.

In: a run's journal. Out: its whole lines, in their order, each with its place. A torn last line is none: what it
announced did not happen. Reads a piece at a time, so that the size of a journal is nobody's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from broker.errors import JournalError
from broker.record import event
from broker.record.run_files import segments
from broker.record.select import needle

PIECE = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a line begins: in which of the run's files (0, 1, 2 …), at which byte."""

    segment: int
    offset: int


START = Place(0, 0)


def lines(path: Path, start: Place = START) -> Iterator[tuple[Place, bytes]]:
    """Yield each whole line, without its newline, from a place on. Raises JournalError when it cannot be read."""
    for number, file in enumerate(segments(path)):
        if number < start.segment:
            continue
        try:
            with file.open("rb") as source:
                offset = start.offset if number == start.segment else 0
                if offset:  # a pipe cannot seek, and need not
                    source.seek(offset)
                for line in source:
                    if not line.endswith(b"\n"):
                        return
                    yield Place(number, offset), line[:-1]
                    offset += len(line)
        except OSError as error:
            raise cannot_read(file, error) from error


def containing(path: Path, text: str) -> Iterator[tuple[Place, bytes]]:
    """Yield the lines that hold a text, looking through whole pieces at once: most lines are never looked at."""
    word, exact = needle(text)
    for number, file in enumerate(segments(path)):
        try:
            with file.open("rb") as source:
                base = 0
                while piece := source.read(PIECE):
                    piece += b"" if piece.endswith(b"\n") else source.readline()
                    at = 0
                    while (hit := piece.find(word, at)) >= 0:
                        begin = piece.rfind(b"\n", 0, hit) + 1
                        end = piece.find(b"\n", hit)
                        if end < 0:
                            return
                        if exact.search(line := piece[begin:end]):
                            yield Place(number, base + begin), line
                        at = end + 1
                    base += len(piece)
        except OSError as error:
            raise cannot_read(file, error) from error


def event_at(path: Path, place: Place, line: bytes) -> dict[str, Any]:
    """Return a line's event. Raises JournalError, with the line's number, when it is none."""
    try:
        return event.decode(line)
    except ValueError as error:
        number = 1 + sum(1 for before, _ in lines(path) if before < place)
        raise JournalError(f"{path}: line {number} is no event ({error})") from error


class Lines:
    """Reads single lines of a run by their places, keeping its files open."""

    def __init__(self, path: Path) -> None:
        """Take the files as they are now. Raises JournalError when they cannot be read."""
        self._files: list[BinaryIO] = []
        for file in segments(path):
            try:
                self._files.append(file.open("rb"))
            except OSError as error:
                self.close()
                raise cannot_read(file, error) from error

    def at(self, place: Place) -> bytes:
        """Return the line that begins at a place, or b"" when no whole line does."""
        if place.segment >= len(self._files):
            return b""
        source = self._files[place.segment]
        source.seek(place.offset)
        line = source.readline()
        return line[:-1] if line.endswith(b"\n") else b""

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def cannot_read(file: Path, error: OSError) -> JournalError:
    """Return the exception for a journal's file that cannot be read."""
    return JournalError(f"cannot read {file}: {error.strerror}")
