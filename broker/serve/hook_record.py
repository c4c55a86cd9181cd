"""The record of a session with hooks: one run for all of them, though each is answered by a process of its own.

In: the session's name, and what was decided. Out: lines in the session's journal, before the agent has its answer; only
that they are forced to the disk, and bound into the chain, may come after it (`settle`): a busy disk takes long for that. The
first one begins a run, the next ones go on with it, one after the other, under a lock; what ends it is the session's end
where the agent tells of it. `<state directory>/hooks/<digest of the session>` holds which run it is.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from broker.errors import JournalError
from broker.record import event
from broker.record.journal import Journal
from broker.record.run_files import RUN_ID, journal_path, state_dir
from broker.sha256 import sha256
from broker.values import dataclass

JOURNAL_LIMIT = 1 << 30  # bytes: an agent that calls tools for ever must not fill the disk
_left: list[Callable[[], None]] = []  # what `settle` does


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Whose record it is: the agent's name for its session, and the profile that it is held to."""

    id: str
    profile: str
    workspace: str

    @property
    def key(self) -> str:
        """The name of the file that holds which run it is."""
        return sha256(f"{self.id}\0{self.profile}\0{self.workspace}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


@contextmanager
def recording(session: Session, digest: str, first: dict[str, Any], state: Path | None = None) -> Iterator[Journal]:
    """Open the session's journal for this process alone. `digest`: of the profile, `first`: the fields of a run's first event.

    A session whose profile has changed goes on in another run: what is in one was judged by one. The journal is held until
    `settle`. Raises JournalError.
    """
    settle()
    where = state or state_dir()
    with ExitStack() as held:
        file = held.enter_context(_held(where, session.key))
        journal = _go_on(where, file, digest)
        if journal is None:
            journal = Journal.create(where)
            held.callback(journal.close)
            journal.append(event.RUN_STARTED, **first)
            _remember(file, f"{journal.run} {digest}")
        else:
            held.callback(journal.close)
        if journal.size > JOURNAL_LIMIT:
            raise JournalError(f"{journal.path} has reached {JOURNAL_LIMIT >> 20} MiB: nothing more is done in this session")
        yield journal
        _left.append(held.pop_all().close)


def settle() -> None:
    """Let go of what was recorded to: the agent has its answer."""
    while _left:
        _left.pop()()


def end(session: Session, state: Path | None = None) -> None:
    """Record that the session ended. Of one without a record there is nothing to say. Raises JournalError."""
    settle()
    where = state or state_dir()
    if not (where / "hooks" / session.key).exists():
        return
    with _held(where, session.key) as file:
        journal = _go_on(where, file, None)
        if journal is not None:
            with journal:
                journal.append(event.RUN_FINISHED, status="ok", exit_code=0)
        os.unlink(where / "hooks" / session.key)


@contextmanager
def _held(state: Path, key: str) -> Iterator[int]:
    """Hold the session's file: agents call several tools at once, and a journal has one writer at a time."""
    folder = state / "hooks"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise JournalError(
            f"cannot record to {folder}: {error.strerror}. Mend its permissions, or set BROKER_STATE_DIR to a folder of yours"
        ) from error
    try:
        # Who waits here too long is ended by the alarm of `broker hook`, and blocks.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _go_on(state: Path, file: int, digest: str | None) -> Journal | None:
    """Return the session's journal if it has one that can be gone on with; `digest`: only if its profile is this one."""
    run, _, was = os.pread(file, 200, 0).decode("ascii", "replace").partition(" ")
    if not RUN_ID.fullmatch(run):
        return None
    path = journal_path(state, run)
    if not path.exists():  # retention removed it
        return None
    journal = Journal.go_on(path)
    if journal is not None and digest is not None and was != digest:
        with journal:
            journal.append(event.RUN_FINISHED, status="ok", exit_code=0, reason="the profile changed")
        return None
    return journal


def _remember(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode("ascii"), 0)
