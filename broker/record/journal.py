"""Step 5: the append-only, hash-chained journal of one run.

In: event types and fields. Out: one canonical JSON line each, in the file before `append` returns. Whoever
wants something to happen appends first: no record, no run. Each line holds the hash of the line before it,
so that what was changed, dropped or reordered afterwards shows (verify.py). It never holds a secret on
purpose, never loses an event silently, and is never written by two processes at once.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.errors import JournalError
from broker.record import event
from broker.record.run_files import journal_path, new_run_id, prepare

# O_APPEND: the kernel puts each line at the end of the file, wherever that is (open(2)).
_OPEN = os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Sync(StrEnum):
    """When lines are forced to the disk. Without it they survive kill -9, but not a power cut."""

    ENDS = "ends"  # the first and the last line of a run
    EVERY = "every"  # each line


class Journal:
    """The journal of one run, open for writing. Safe to use from several threads."""

    def __init__(self, path: Path, descriptor: int, *, sync: Sync = Sync.ENDS) -> None:
        """Take an open, locked descriptor of an empty file. Use `create` or `resume` instead."""
        self.path = path
        self.run = path.stem
        self._descriptor = descriptor
        self._sync = sync
        self._lock = threading.Lock()
        self._size = 0
        self._seq = 0
        self._head = event.GENESIS
        self._broken = ""

    @classmethod
    def create(cls, state_dir: Path, run_id: str | None = None, *, sync: Sync = Sync.ENDS) -> Self:
        """Make the journal of a new run. Raises JournalError with the remedy."""
        runs = prepare(state_dir)
        for _ in range(64):
            path = journal_path(state_dir, run_id or new_run_id())
            try:
                descriptor = os.open(path, _OPEN | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                if run_id is not None:
                    raise JournalError(f"{path} exists: a run's journal has one writer, once") from None
                continue  # two runs within 4 ms drew the same byte
            except OSError as error:
                raise _cannot_write(path, error) from error
            _take(path, descriptor)
            _sync_folder(runs)
            return cls(path, descriptor, sync=sync)
        raise JournalError(f"cannot find a free run id in {runs}")

    @classmethod
    def resume(cls, path: Path, *, sync: Sync = Sync.ENDS) -> Self:
        """Go on with the journal of a run whose broker died, to record how it ended.

        A torn last line is cut off, and said so in a `journal.resumed` event. Raises JournalError when
        somebody still writes it, when the run is finished, or when it does not verify.
        """
        from broker.record.verify import verify  # verify reads, and needs `read` from here

        try:
            descriptor = os.open(path, _OPEN | os.O_RDWR)
        except OSError as error:
            raise _cannot_write(path, error) from error
        _take(path, descriptor)
        found = verify(path)
        if not found.ok or found.finished:
            os.close(descriptor)
            state = "is finished" if found.ok else f"does not verify ({found.problem})"
            raise JournalError(f"{path} {state}: nothing may be added to it")
        journal = cls(path, descriptor, sync=sync)
        journal._seq, journal._head = found.count, found.head
        journal._size = os.fstat(descriptor).st_size - found.torn
        os.ftruncate(descriptor, journal._size)
        journal.append(event.JOURNAL_RESUMED, torn=found.torn)
        return journal

    def append(self, type: str, /, *, task: str = event.ROOT, **fields: object) -> int:
        """Write one event and return its number. It is in the file when this returns.

        Raises JournalError when it could not be written whole: then what it announces must not happen.
        """
        if clash := event.ENVELOPE & fields.keys():
            raise ValueError(f"an event's own fields cannot be called {', '.join(sorted(clash))}")
        record = {name: event.plain(value) for name, value in fields.items()}
        with self._lock:
            self._refuse_if_closed()
            record |= {"run": self.run, "task": task, "type": type}
            record |= {"seq": self._seq + 1, "prev": self._head, "time": _now()}
            last = type == event.RUN_FINISHED
            if last:
                # The last line has no successor to hold its hash, so it holds one of itself.
                record["seal"] = event.digest(event.encode(record))
            line = event.encode(record)
            self._write(line + b"\n")
            self._seq += 1
            self._head = event.digest(line)
            if last or self._seq == 1 or self._sync is Sync.EVERY:
                self._force()
            if last:
                self._broken = "the run is finished"
            return self._seq

    def _refuse_if_closed(self) -> None:
        if self._descriptor < 0:
            raise JournalError(f"{self.path} is closed")
        if self._broken:
            raise JournalError(f"{self.path}: {self._broken}, nothing more can be recorded")

    def _write(self, data: bytes) -> None:
        """Write the line with one call, or take back what was written of it and raise."""
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        if written != len(data):
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:
                self._broken = "a line was written in part"
            raise JournalError(
                f"cannot record to {self.path}: the disk is full (or a quota is used up). "
                f"Make room, or set BROKER_STATE_DIR to a place with room"
            )
        self._size += written

    def _force(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # After a failed fsync the kernel may have dropped the pages (fsync(2)): nothing is sure any more.
            self._broken = "the disk failed"
            raise _cannot_write(self.path, error) from error

    @property
    def head(self) -> str:
        """The hash of the last line: whoever keeps it elsewhere can prove that nothing was cut off."""
        return self._head

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self._size

    @property
    def count(self) -> int:
        """How many events were written."""
        return self._seq

    def close(self) -> None:
        """Let go of the file. May be called twice. Writes nothing: a run ends with `run.finished`."""
        with self._lock:
            if self._descriptor >= 0:
                with suppress(OSError):
                    os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, one at a time. A torn last line is left out.

    Raises JournalError when the file cannot be read or a line is no event; `verify` says more.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield event.decode(line)
                except ValueError as error:
                    raise JournalError(f"{path}: line {number} is no event ({error})") from error
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error


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


def _take(path: Path, descriptor: int) -> None:
    """Lock the file for this process: the kernel lets go of it when the process dies, however it dies."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JournalError(f"{path} is being written by another broker") from None
    except OSError as error:
        os.close(descriptor)
        raise JournalError(
            f"cannot lock {path}: {error.strerror}. Set BROKER_STATE_DIR to a local disk"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make the file's name as durable as its lines (fsync(2): a new entry needs its folder's own fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems cannot; the first line's own fsync still reports a bad disk.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    """Return the time as RFC 3339, UTC, microseconds."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    return f"{_to_the_second(seconds)}.{rest // 1000:06}Z"


@lru_cache(maxsize=1)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


def _cannot_write(path: Path, error: OSError) -> JournalError:
    return JournalError(
        f"cannot record to {path}: {error.strerror}. Nothing runs without a record. "
        f"Make it writable with room to grow, or set BROKER_STATE_DIR to a place that is"
    )
