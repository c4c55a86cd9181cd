"""How far each run was handed on to one sink, kept where a crash cannot lose it.

A cursor is written after the sink has what it says, never before: after a crash some events are sent again, and none is
missing (at least once; the ids of messages are the same each time). INVARIANT: tests/record/test_export_crash.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Collection
from pathlib import Path

from broker.errors import JournalError, UsageError
from broker.record.lines import START, Place
from broker.record.run_files import prepare

FOLDER = "export"
_USER = re.compile(r"(?<=://)[^/@]*@")


class Cursor:
    """The cursor of one format and one sink. One process has it at a time."""

    def __init__(self, state: Path, format_: str, to: str, name: str = "") -> None:
        """Read it, or begin. `name` tells it from others with the same target. Raises UsageError while another process has it."""
        prepare(state)
        folder = state / FOLDER
        shown = _USER.sub("", to)
        self._about = {"format": format_, "to": shown, **({"name": name} if name else {})}
        key = hashlib.sha256(f"{format_}\0{shown}\0{name}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self.path = folder / f"{key}.json"
            self._lock = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JournalError(f"cannot keep a cursor in {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(
                f"another `broker export` is handing on to {shown} right now. End it, or say --cursor NAME for one of its own"
            ) from None
        self._places = self._read()

    def _read(self) -> dict[str, Place]:
        try:
            data = json.loads(self.path.read_bytes())
            return {run: Place(int(segment), int(offset)) for run, (segment, offset) in data["runs"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"the cursor {self.path} cannot be read ({error}). Remove it, and everything is sent again"
            ) from error

    def place(self, run: str) -> Place:
        """Return where a run goes on."""
        return self._places.get(run, START)

    def forget(self) -> None:
        """Begin anew."""
        self._places = {}

    def keep_only(self, runs: Collection[str]) -> None:
        """Forget runs that are gone."""
        self._places = {run: place for run, place in self._places.items() if run in runs}

    def save(self, places: dict[str, Place]) -> None:
        """Remember these places, on the disk, before returning. Raises JournalError."""
        self._places |= places
        runs = {run: [place.segment, place.offset] for run, place in sorted(self._places.items())}
        new = self.path.with_suffix(".new")
        try:
            with open(new, "w", encoding="utf-8", opener=_private) as file:
                json.dump({**self._about, "runs": runs}, file, separators=(",", ":"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # the new name, too
            finally:
                os.close(folder)
        except OSError as error:
            raise JournalError(f"cannot write the cursor {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
