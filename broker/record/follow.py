"""Step 5, reading: events as they are written.

In: runs, and the places from which to go on. Out: each new event, as soon as its line is whole. The kernel says when
a file grows (inotify(7)); nothing is asked in turns, so a quiet run costs nothing and a busy one waits for nobody.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from broker.errors import JournalError
from broker.record import event
from broker.record.journal import is_being_written
from broker.record.lines import START, Place, event_at, lines
from broker.record.query import Found
from broker.record.run_files import RUN_ID, segments
from broker.record.select import Reader, Selection, when

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x8, 0x80, 0x100
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")


class Follower:
    """Follows runs. Make it first and read what there is afterwards: nothing can be written in between unseen."""

    def __init__(self, paths: list[Path], *, folder: Path | None = None) -> None:
        """Begin to listen. With a `folder`, to runs that begin in it as well. Raises JournalError with the remedy."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue < 0:
            raise _cannot_listen()
        self._folder = folder
        self._runs = {path.absolute(): _State() for path in paths}
        for parent in {path.parent for path in self._runs} | ({folder.absolute()} if folder else set()):
            self._watch(parent)

    def _watch(self, folder: Path) -> None:
        # The folder, not the files: it reports on each file in it, and on those of a run that goes on in the next one.
        mask = _MODIFY | _CLOSE_WRITE | _CREATE | _MOVED_TO
        if self._libc.inotify_add_watch(self._queue, os.fsencode(folder), mask) < 0:
            raise _cannot_listen(folder)

    def ends(self) -> dict[Path, Place]:
        """Return where each run ends now; `events` goes on from there."""
        for path, state in self._runs.items():
            state.next = _end(path)
        return {path: state.next for path, state in self._runs.items()}

    def start_at(self, places: Mapping[Path, Place]) -> None:
        """Have `events` begin at these places: what is written there and after."""
        for path, place in places.items():
            self._runs[path.absolute()].next = place

    def events(self, selection: Selection) -> Iterator[Found]:
        """Yield the wanted events from now on, until every run has ended (never, with a folder).

        Ends as well when nobody reads stdout any more.
        """
        if selection.profiles:
            for path, state in self._runs.items():
                state.reader = _reader_at(path, state.next)
        poller = select.poll()
        poller.register(self._queue, select.POLLIN)
        poller.register(1, 0)  # POLLERR comes unasked, when the other end of a pipe is closed (poll(2))
        changed: set[Path] | None = set(self._runs)
        while changed is not None:
            for path in sorted(changed & self._runs.keys()):
                yield from self._new_events(path, selection)
            if self._folder is None and all(state.ended for state in self._runs.values()):
                return
            changed = self._wait(poller)

    def _new_events(self, path: Path, selection: Selection) -> Iterator[Found]:
        state = self._runs[path]
        # Asked first: what the last writer wrote is then read below. And only when somebody let go of the file: asking
        # takes its lock for a moment, in which a broker that begins a run would find it taken.
        over = state.closed and self._folder is None and not is_being_written(path)
        state.closed = False
        for place, line in lines(path, state.next):
            one = event_at(path, place, line)
            state.next = Place(place.segment, place.offset + len(line) + 1)
            state.ended = one.get("type") == event.RUN_FINISHED
            time = when(one)
            if selection.admits(state.reader.facts(one)) and selection.in_time(time) and selection.in_text(line):
                yield Found(path, place, line, one, time)
        state.ended = state.ended or over

    def _wait(self, poller: select.poll) -> set[Path] | None:
        """Return the runs that changed; None when nobody reads what is printed."""
        while True:
            ready = dict(poller.poll())
            if ready.get(1, 0) & (select.POLLERR | select.POLLNVAL):
                return None
            try:
                packet = os.read(self._queue, 1 << 16)
            except BlockingIOError:
                continue
            if changed := self._changed(packet):
                return changed

    def _changed(self, packet: bytes) -> set[Path]:
        at = 0
        names: dict[str, int] = {}
        while at < len(packet):
            _, mask, _, length = _EVENT.unpack_from(packet, at)
            name = os.fsdecode(packet[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            names[name] = names.get(name, 0) | mask
            at += _EVENT.size + length
        if any(mask & _OVERFLOW for mask in names.values()):  # too many to be told one by one: look at all
            names = dict.fromkeys([path.name for path in self._runs], _CLOSE_WRITE)
            names |= dict.fromkeys(os.listdir(self._folder) if self._folder else [], _CLOSE_WRITE)
        self._begin(names)
        return {path for name, mask in names.items() for path in self._of(name, mask)}

    def _of(self, name: str, mask: int) -> Iterator[Path]:
        for path, state in self._runs.items():
            if name == path.name or _is_part(name, path):
                state.closed = state.closed or bool(mask & _CLOSE_WRITE)
                yield path

    def _begin(self, names: Iterable[str]) -> None:
        """Take up the runs that have begun."""
        if self._folder is not None:
            for path in {self._folder.absolute() / name for name in names if _is_run(name)} - self._runs.keys():
                self._runs[path] = _State()

    def close(self) -> None:
        """Stop listening."""
        os.close(self._queue)


class _State:
    """How far a run was read."""

    __slots__ = ("closed", "ended", "next", "reader")

    def __init__(self) -> None:
        self.next: Place = START
        self.reader = Reader()
        self.ended = False
        self.closed = True  # by whoever wrote it, perhaps long ago


def _is_run(name: str) -> bool:
    return name.endswith(".jsonl") and RUN_ID.fullmatch(name.removesuffix(".jsonl")) is not None


def _is_part(name: str, path: Path) -> bool:
    """Tell whether a file is a later part of a run."""
    return name.startswith(f"{path.stem}.") and name.endswith(".jsonl")


def _end(path: Path) -> Place:
    """Return where the whole lines of a run end."""
    files = segments(path)
    last = files[-1]
    try:
        with last.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            back = 1 << 12
            while True:
                start = max(0, size - back)
                source.seek(start)
                found = source.read(size - start).rfind(b"\n")
                if found >= 0 or start == 0:
                    return Place(len(files) - 1, start + found + 1)
                back *= 4
    except OSError as error:
        raise JournalError(f"cannot read {last}: {error.strerror}") from error


def _reader_at(path: Path, end: Place) -> Reader:
    """Return a reader that knows which profiles were said before a place."""
    from broker.record.lines import containing

    reader = Reader()
    for kind in (event.RUN_STARTED, event.TASK_CREATED):
        for place, line in containing(path, kind):
            if place < end:
                reader.facts(event_at(path, place, line))
    return reader


def _cannot_listen(folder: Path | None = None) -> JournalError:
    why = os.strerror(ctypes.get_errno())
    return JournalError(
        f"cannot follow{f' what is in {folder}' if folder else ''} (inotify: {why}). Raise fs.inotify.max_user_instances "
        f"and max_user_watches, or end other programs of this user; without --follow all can be read"
    )
