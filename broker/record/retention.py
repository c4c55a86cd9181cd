"""Step 5: retention: runs that an operator removes leave a tombstone in the chain file.

In: what is to be kept. Out: the runs that go, or went. The tombstone (`run.removed`, with the run's last hash and how
many events it had) is written before the files go, so that `verify` tells a run that retention removed from one that
vanished. A run that is written, that changes are kept of, or that does not verify is never removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from broker.errors import JournalError
from broker.record import chain
from broker.record.chain import Chain
from broker.record.evidence import Finding, State, examine
from broker.record.journal import is_being_written
from broker.record.line_file import sync_folder, take
from broker.record.run_files import list_runs, segments
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """A run that is older than what is kept. `stays`: why it is not removed all the same ("": it is)."""

    run: str
    path: Path
    bytes: int
    age: float
    stays: str = ""


def old_runs(state: Path, *, now: float, older_than: float = 0, keep: int = 0, needed: AbstractSet[str] = frozenset()) -> Iterator[Old]:
    """Yield the runs whose last event is older (in seconds) than that, but for the `keep` newest, newest first.

    `needed` are runs that something else still refers to. Each is verified: that takes its time.
    """
    for path in list_runs(state)[keep:]:
        try:
            files = [file.stat() for file in segments(path)]
        except FileNotFoundError:
            continue  # removed by another at this moment
        age = now - max(file.st_mtime for file in files)
        if age < older_than:
            continue
        stays = "it is being written" if is_being_written(path) else ""
        if path.stem in needed:
            stays = stays or "changes of it are kept: broker diff, land, discard"
        if not stays and not (finding := next(examine(state, [path]))).ok:
            stays = f"it does not verify, and would be evidence: {finding.problem}"
        yield Old(run=path.stem, path=path, bytes=sum(file.st_size for file in files), age=age, stays=stays)


def remove(state: Path, old: Old) -> None:
    """Write the tombstone, then remove the run's files. Raises JournalError when either cannot be done."""
    try:
        descriptor = os.open(old.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise JournalError(f"cannot remove {old.path}: {error.strerror}") from error
    take(old.path, descriptor)  # nobody resumes it meanwhile
    try:
        finding: Finding = next(examine(state, [old.path]))
        if finding.state is not State.OK or finding.found is None:
            raise JournalError(f"{old.path} is not removed: {finding.problem}")
        files = segments(old.path)
        Chain(state).append(
            chain.REMOVED, force=True, run=old.run, count=finding.found.count, head=finding.found.head, uid=os.geteuid(), files=len(files)
        )
        for file in reversed(files):  # what is left of it when this is interrupted is still one run
            file.unlink()
        sync_folder(old.path.parent)
    except OSError as error:
        raise JournalError(f"cannot remove {old.path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
