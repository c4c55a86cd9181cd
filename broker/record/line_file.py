"""Step 5: a file that only grows, by whole lines: what a journal's segments and the chain file have in common.

In: lines. Out: each of them whole in the file when `write` returns, or not at all and a JournalError that says
what to do. It never leaves part of a line behind on purpose, and never follows a link.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import time
from contextlib import suppress
from pathlib import Path

from broker.errors import JournalError

# O_APPEND: the kernel puts each line at the end of the file, wherever that is (open(2)).
FLAGS = os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
LOCK_SECONDS = 10.0  # a line takes microseconds; whoever holds the lock for longer is stopped, or broken


class LineFile:
    """An open file that lines are added to. Not safe to use from several threads at once."""

    def __init__(self, path: Path, descriptor: int, size: int = 0) -> None:
        """Take a descriptor that was opened with FLAGS, and the file's size."""
        self.path = path
        self.descriptor = descriptor
        self.size = size
        self.broken = ""
        self._before = size

    def write(self, line: bytes) -> None:
        """Write the line with one call, or take back what was written of it and raise."""
        if self.broken:
            raise JournalError(f"{self.path}: {self.broken}, nothing more can be recorded")
        try:
            written = os.write(self.descriptor, line)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._before = self.size
        if written != len(line):
            self.take_back()
            raise JournalError(
                f"cannot record to {self.path}: the disk is full (or a quota is used up). "
                f"Make room, or set BROKER_STATE_DIR to a place with room"
            )
        self.size += written

    def take_back(self) -> None:
        """Remove the line that was written last, or what was written of it."""
        try:
            os.ftruncate(self.descriptor, self._before)
            self.size = self._before
        except OSError:
            self.broken = "a line was written that does not count"

    def force(self) -> None:
        """Force the lines to the disk."""
        try:
            os.fdatasync(self.descriptor)
        except OSError as error:
            # After a failed fsync the kernel may have dropped the pages (fsync(2)): nothing is sure any more.
            self.broken = "the disk failed"
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        if self.descriptor >= 0:
            with suppress(OSError):
                os.close(self.descriptor)
        self.descriptor = -1


def take(path: Path, descriptor: int) -> None:
    """Lock the file for this process: the kernel lets go of it when the process dies, however it dies.

    Closes the descriptor and raises JournalError when another has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JournalError(f"{path} is being written by another broker") from None
    except OSError as error:
        os.close(descriptor)
        raise _cannot_lock(path, error) from error


def wait_for(path: Path, descriptor: int) -> None:
    """Lock the file, waiting for others to be done with a line of theirs. Raises JournalError when one never is."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise JournalError(
                    f"another process has held {path} for {LOCK_SECONDS:.0f} seconds. Find it: fuser {shlex.quote(str(path))}"
                ) from None
            time.sleep(0.001)
        except OSError as error:
            raise _cannot_lock(path, error) from error


def refuse_if_shared(path: Path, status: os.stat_result) -> None:
    """Raise JournalError for a file or folder of the record that somebody else could change."""
    if status.st_uid not in (os.geteuid(), 0):
        raise JournalError(
            f"{path} belongs to uid {status.st_uid}, who could change the record. Set BROKER_STATE_DIR to a folder of yours"
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise JournalError(f"others can write to {path}. Run: chmod go-w {shlex.quote(str(path))}")


def sync_folder(folder: Path) -> None:
    """Make a file's name as durable as its lines (fsync(2): a new entry needs its folder's own fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems cannot; the first line's own fsync still reports a bad disk.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> JournalError:
    """Return the sentence for what the kernel said."""
    return JournalError(
        f"cannot record to {path}: {error.strerror}. Nothing runs without a record. "
        f"Make it writable with room to grow, or set BROKER_STATE_DIR to a place that is"
    )


def _cannot_lock(path: Path, error: OSError) -> JournalError:
    return JournalError(f"cannot lock {path}: {error.strerror}. Set BROKER_STATE_DIR to a local disk")
