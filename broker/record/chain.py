"""Step 5: the chain file, which binds all runs of a state directory to each other.

In: which run began, how far it got, how it ended, and that retention removed it. Out: one canonical JSON line each,
in `<state directory>/chain.jsonl`, holding the hash of the line before it. A run that was dropped, replaced as a
whole or cut off no longer fits what stands here (evidence.py). Several brokers write it in turn, under a lock.

An entry has `seq`, `prev`, `time`, `type`; one about a run has `run`, `count` (how many events it had) and `head`
(the hash of the last of them). `torn`: the broker before died in its line, and that many bytes were cut off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from broker.errors import JournalError
from broker.record import event
from broker.record.clock import now
from broker.record.line_file import FLAGS, LineFile, cannot_write, refuse_if_shared, sync_folder, wait_for
from broker.record.links import follow
from broker.values import dataclass

NAME = "chain.jsonl"
STARTED = "run.started"
REACHED = "run.reached"
FINISHED = "run.finished"
REMOVED = "run.removed"
CHECKPOINT = "checkpoint"

_REQUIRED = frozenset({"seq", "prev", "time", "type"})
_TAIL = 1 << 16  # more than any entry has


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the chain file. `digest` is its hash, `fields` what it says."""

    seq: int
    type: str
    time: str
    run: str
    count: int
    head: str
    digest: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """The whole chain file as it was found. `entries` go as far as the chain holds; `problem`: where and why no further."""

    entries: tuple[Entry, ...]
    problem: str
    torn: int

    @property
    def head(self) -> str:
        """The hash of the last entry: whoever keeps it elsewhere can prove that nothing before it was changed."""
        return self.entries[-1].digest if self.entries else event.GENESIS


class Chain:
    """The chain file of a state directory."""

    def __init__(self, state: Path) -> None:
        """Name it. It is made with its first entry."""
        self.path = state / NAME

    def append(
        self, type: str, /, *, force: bool = False, sign: Callable[[bytes], str] | None = None, **fields: object
    ) -> Entry:
        """Add one entry, behind what any other broker added. `sign` makes its `signature` out of the rest of it.

        Raises JournalError when it could not be written whole.
        """
        try:
            new = not self.path.exists()
            descriptor = os.open(self.path, FLAGS | os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        file = LineFile(self.path, descriptor)
        try:
            wait_for(self.path, descriptor)
            refuse_if_shared(self.path, os.fstat(descriptor))
            seq, head, torn = self._last(descriptor)
            file.size = os.fstat(descriptor).st_size - torn
            if torn:
                os.ftruncate(descriptor, file.size)
                fields["torn"] = torn
            record = {"seq": seq + 1, "prev": head, "time": now(), "type": type, **fields}
            if sign is not None:
                record["signature"] = sign(event.encode(record))
            line = event.encode(record)
            file.write(line + b"\n")
            if force:
                _force(file)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            file.close()
        if new:
            sync_folder(self.path.parent)
        return _entry(record, event.digest(line))

    def head(self) -> tuple[int, str]:
        """Return number and hash of the last entry; of none yet: 0 and zeros."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0, event.GENESIS
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            seq, head, _ = self._last(descriptor)
            return seq, head
        finally:
            os.close(descriptor)

    def _last(self, descriptor: int) -> tuple[int, str, int]:
        """Return number and hash of the last whole entry, and how many bytes of a torn one stand behind it."""
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, _TAIL, max(0, size - _TAIL))
        whole, _, torn = data.rpartition(b"\n")
        if not whole and len(torn) < _TAIL:
            return 0, event.GENESIS, len(torn)
        line = whole.rpartition(b"\n")[2]
        try:
            seq = event.decode(line)["seq"]
        except (ValueError, KeyError):
            seq = 0
        if type(seq) is not int or seq < 1:
            raise JournalError(
                f"the last entry of {self.path} is damaged, and nothing may be added to it. Look into it with "
                f"`broker events verify`; then move it away: a new one begins, and verify says of the old runs that theirs is gone"
            )
        return seq, event.digest(line), len(torn)

    def read(self) -> ChainRecord:
        """Return all entries, each checked against the one before. No file yet: none."""
        entries: list[Entry] = []
        head, problem, torn = event.GENESIS, "", 0
        for number, line in enumerate(self._lines(), 1):
            if not line.endswith(b"\n"):
                torn = len(line)
                break
            found, problem = follow(line[:-1], number, head, _REQUIRED, "entry")
            problem = problem or _wrong_fields(found)
            if problem:
                problem = f"{NAME}, line {number}: {problem}"
                break
            head = event.digest(line[:-1])
            entries.append(_entry(found, head))
        return ChainRecord(entries=tuple(entries), problem=problem, torn=torn)

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as lines:
                yield from lines
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror}") from error


def _force(file: LineFile) -> None:
    try:
        file.force()
    except JournalError:
        file.take_back()  # what it is about will not count, either
        raise


def _wrong_fields(found: dict[str, Any]) -> str:
    about_a_run = str(found["type"]).startswith("run.")
    kinds = {"run": str, "count": int, "head": str} if about_a_run else {}
    wrong = [name for name, kind in kinds.items() if type(found.get(name)) is not kind]
    return f"the entry's {', '.join(wrong)} makes no sense; it was altered" if wrong else ""


def _entry(found: dict[str, Any], digest: str) -> Entry:
    return Entry(
        seq=found["seq"], type=str(found["type"]), time=str(found["time"]), run=str(found.get("run", "")),
        count=found.get("count", 0), head=str(found.get("head", "")), digest=digest, fields=found,
    )  # fmt: skip
