"""Step 5: the append-only, hash-chained journal of one run.

In: event types and fields. Out: one canonical JSON line each, in the file before `append` returns. Whoever
wants something to happen appends first: no record, no run. Each line holds the hash of the line before it,
so that what was changed, dropped or reordered afterwards shows (verify.py); the chain file holds how far the run
got, so that a run which is gone, replaced or cut off shows, too (evidence.py). It never holds a secret on purpose
(redact.py), never loses an event silently, and is never written by two processes at once.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.errors import JournalError
from broker.record import chain, event
from broker.record.chain import Chain
from broker.record.clock import now
from broker.record.line_file import FLAGS, LineFile, cannot_write, sync_folder, take
from broker.record.needles import may_hold_any
from broker.record.run_files import journal_path, new_run_id, prepare, segment_path, segments

SEGMENT = 64 << 20  # bytes; a larger journal goes on in the next segment
_TAIL = 1 << 12  # bytes of a journal's end: most events are shorter
# A run's head is put into the chain file at its start, at its end, and whenever one of these has passed.
BOUND_EVENTS = 1_000
BOUND_NANOSECONDS = 10 * 10**9


class Sync(StrEnum):
    """When lines are forced to the disk. Without it they survive kill -9, but not a power cut."""

    ENDS = "ends"  # the first and the last line of a run
    EVERY = "every"  # each line


class Journal:
    """The journal of one run, open for writing. Safe to use from several threads."""

    def __init__(self, path: Path, descriptor: int, *, sync: Sync = Sync.ENDS, segment: int = SEGMENT) -> None:
        """Take an open, locked descriptor of an empty file. Use `create` or `resume` instead."""
        self.path = path
        self.run = path.stem
        self._file = LineFile(path, descriptor)
        # The first segment's descriptor holds the lock for as long as the run is written.
        self._locked = descriptor
        self._segment, self._segment_size = 1, segment
        self._sync = sync
        self._lock = threading.Lock()
        self._earlier = 0  # bytes in the segments before this one
        self._seq = 0
        self._head = event.GENESIS
        self._broken = ""
        self._chain = Chain(path.parent.parent)
        self._bound = 0
        self._bound_at = time.monotonic_ns()

    @classmethod
    def create(
        cls, state_dir: Path, run_id: str | None = None, *, sync: Sync = Sync.ENDS, segment: int = SEGMENT
    ) -> Self:
        """Make the journal of a new run. Raises JournalError with the remedy."""
        runs = prepare(state_dir)
        for _ in range(64):
            path = journal_path(state_dir, run_id or new_run_id())
            try:
                descriptor = os.open(path, FLAGS | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                if run_id is not None:
                    raise JournalError(f"{path} exists: a run's journal has one writer, once") from None
                continue  # two runs within 4 ms drew the same byte
            except OSError as error:
                raise cannot_write(path, error) from error
            take(path, descriptor)
            sync_folder(runs)
            return cls(path, descriptor, sync=sync, segment=segment)
        raise JournalError(f"cannot find a free run id in {runs}")

    @classmethod
    def resume(cls, path: Path, *, sync: Sync = Sync.ENDS) -> Self:
        """Go on with the journal of a run whose broker died, to record how it ended.

        A torn last line is cut off, and said so in a `journal.resumed` event. Raises JournalError when
        somebody still writes it, when the run is finished, or when it does not verify.
        """
        from broker.record.verify import verify  # nobody else who writes has to verify

        try:
            descriptor = os.open(path, FLAGS | os.O_RDWR)
        except OSError as error:
            raise cannot_write(path, error) from error
        take(path, descriptor)
        journal = cls(path, descriptor, sync=sync)
        try:
            found = verify(path)
            if not found.ok or found.finished:
                state = "is finished" if found.ok else f"does not verify ({found.problem})"
                raise JournalError(f"{path} {state}: nothing may be added to it")
            journal._seq, journal._head = found.count, found.head
            journal._file.size = os.fstat(descriptor).st_size
            for _ in segments(path)[1:]:
                journal._open_segment()
            journal._file.size -= found.torn
            os.ftruncate(journal._file.descriptor, journal._file.size)
            journal.append(event.JOURNAL_RESUMED, torn=found.torn)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def go_on(cls, path: Path, *, sync: Sync = Sync.ENDS) -> Self | None:
        """Go on where a process left off that let go of it in order, without reading all it wrote; None: the run is finished.

        What was altered before is not looked for, and shows as ever: this goes on from the last line's hash, and the chain file
        knows it. Raises JournalError when somebody still writes it, or when its last line is no event.
        """
        try:
            descriptor = os.open(path, FLAGS | os.O_RDWR)
        except OSError as error:
            raise cannot_write(path, error) from error
        take(path, descriptor)
        journal = cls(path, descriptor, sync=sync)
        try:
            line = _last_line(path)
            if not line.endswith(b"\n"):
                journal.close()
                return cls.resume(path, sync=sync)
            try:
                last = event.decode(line)
                journal._seq, journal._head = int(last["seq"]), event.digest(line[:-1])
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(f"the last line of {path} is no event: nothing may be added to it. Look: broker events verify") from error
            if last.get("type") == event.RUN_FINISHED:
                journal.close()
                return None
            journal._bound = journal._seq
            journal._file.size = os.fstat(descriptor).st_size
            for _ in segments(path)[1:]:
                journal._open_segment()
        except BaseException:
            journal.close()
            raise
        return journal

    def append(self, type: str, /, *, task: str = event.ROOT, **fields: object) -> int:
        """Write one event and return its number. It is in the file when this returns.

        Raises JournalError when it could not be written whole: then what it announces must not happen.
        """
        if clash := event.ENVELOPE & fields.keys():
            raise ValueError(f"an event's own fields cannot be called {', '.join(sorted(clash))}")
        record = {name: event.plain(value) for name, value in fields.items()}
        if may_hold_any(record):
            from broker.record.redact import (
                redact,  # most runs have no secret, and need not wait for its rules
            )

            record, rules = redact(record)
            if rules:
                record["redacted"] = rules
        with self._lock:
            self._refuse_if_closed()
            record |= {"run": self.run, "task": task, "type": type}
            record |= {"seq": self._seq + 1, "prev": self._head, "time": now()}
            if self._seq == 0:
                seq, head = self._chain.head()
                record |= {"schema": event.SCHEMA, "chain": {"seq": seq, "head": head}}
            last = type == event.RUN_FINISHED
            line = event.sealed(record) if last else event.encode(record)
            self._commit(line, last=last)
            return self._seq

    def _refuse_if_closed(self) -> None:
        if self._locked < 0:
            raise JournalError(f"{self.path} is closed")
        if self._broken or self._file.broken:
            raise JournalError(f"{self.path}: {self._broken or self._file.broken}, nothing more can be recorded")

    def _commit(self, line: bytes, *, last: bool) -> None:
        """Write the line, and what has to stand in the chain file because of it; or neither."""
        if self._file.size and self._file.size + len(line) >= self._segment_size:
            self._next_segment()
        self._file.write(line + b"\n")
        first = self._seq == 0
        bind = (
            first or last or self._seq + 1 - self._bound >= BOUND_EVENTS
            or time.monotonic_ns() - self._bound_at > BOUND_NANOSECONDS
        )  # fmt: skip
        if bind or self._sync is Sync.EVERY:
            # Before a power cut the chain file must not get to the disk with a head whose lines do not.
            self._file.force()
        head = event.digest(line)
        if bind:
            kind = chain.FINISHED if last else chain.STARTED if first else chain.REACHED
            try:
                self._bind(kind, self._seq + 1, head, force=first or last)
            except JournalError:
                self._file.take_back()
                raise
        self._seq, self._head = self._seq + 1, head
        if last:
            self._broken = "the run is finished"

    def _bind(self, kind: str, count: int, head: str, *, force: bool) -> None:
        self._chain.append(kind, force=force, run=self.run, count=count, head=head)
        self._bound, self._bound_at = count, time.monotonic_ns()

    def _next_segment(self) -> None:
        # What a later segment's end forces to the disk must not lie behind a gap.
        self._file.force()
        self._open_segment(empty=True)

    def _open_segment(self, *, empty: bool = False) -> None:
        """Go on in the next file. One that is there and empty is what a full disk left of an earlier attempt."""
        path = segment_path(self.path, self._segment + 1)
        try:
            descriptor = os.open(path, FLAGS | os.O_WRONLY | os.O_CREAT, 0o600)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise cannot_write(path, error) from error
        if empty and size:
            os.close(descriptor)
            raise JournalError(f"{path} is there already: somebody put it there. Nothing runs without a record of its own")
        sync_folder(path.parent)
        self._earlier += self._file.size
        if self._file.descriptor != self._locked:
            self._file.close()
        self._file = LineFile(path, descriptor, size)
        self._segment += 1

    @property
    def head(self) -> str:
        """The hash of the last line: whoever keeps it elsewhere can prove that nothing was cut off."""
        return self._head

    @property
    def size(self) -> int:
        """How many bytes the journal has, in all its segments."""
        return self._earlier + self._file.size

    @property
    def count(self) -> int:
        """How many events were written."""
        return self._seq

    def close(self) -> None:
        """Let go of the files. May be called twice. Adds no event: a run ends with `run.finished`."""
        with self._lock:
            if self._locked < 0:
                return
            if self._bound < self._seq and not self._broken:
                with suppress(JournalError):
                    self._file.force()
                    self._bind(chain.REACHED, self._seq, self._head, force=False)
            if self._file.descriptor != self._locked:
                self._file.close()
            with suppress(OSError):
                os.close(self._locked)
            self._locked = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _last_line(path: Path) -> bytes:
    """Return the last line of a run, with its newline if it has one; nothing of a run without a line."""
    for segment in reversed(segments(path)):
        with segment.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            tail, length = b"", min(_TAIL, size)
            while length:
                file.seek(size - length)
                tail = file.read(length)
                if b"\n" in tail[:-1] or length == size:
                    return tail[:-1].rpartition(b"\n")[2] + tail[-1:]
                length = min(length * 16, size)
    return b""


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, all its segments, one at a time. A torn last line is left out.

    Raises JournalError when a file cannot be read or a line is no event; `verify` says more.
    """
    for segment, number, line in lines(path):
        if not line.endswith(b"\n"):
            return
        try:
            yield event.decode(line)
        except ValueError as error:
            raise JournalError(f"{segment}: line {number} is no event ({error})") from error


def lines(path: Path) -> Iterator[tuple[Path, int, bytes]]:
    """Yield the lines of a journal as they are: segment, number in the segment, bytes with the newline."""
    segment: Path | None = path
    following = 2
    while segment is not None:
        after = segment_path(path, following)
        try:
            with segment.open("rb") as file:
                number, rest = 0, b""
                # A writer that goes on in the next segment wrote its last line to this one before: when the next one
                # is seen, there may be more here than was read until then.
                more = after.exists()
                while True:
                    for line in file:
                        if not line.endswith(b"\n"):
                            rest = line
                            break
                        number += 1
                        yield segment, number, rest + line
                        rest = b""
                    if more or not (more := after.exists()):
                        break
                if rest:
                    yield segment, number + 1, rest
        except OSError as error:
            raise JournalError(f"cannot read {segment}: {error.strerror}") from error
        segment, following = (after, following + 1) if more else (None, following)


def is_being_written(path: Path) -> bool:
    """Tell whether a living process holds this journal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two readers who look at the same time do not see each other as writers.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
