"""Step 5: whether all of the record is there: the runs held against the chain file.

In: a state directory. Out: one finding for each run, and one for the chain file. A run that vanished, was replaced
by another or by an older copy of itself, or lost its end no longer fits what the chain file says; a chain file that
was edited no longer follows, and one that was shortened or begun anew lacks entries that the runs' own first events
refer to. A broker that died (a torn line, a run without an end) is told from all of these.

It cannot see what somebody changed who may write all of it, and wrote all of it anew: checkpoints are for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from broker.errors import JournalError
from broker.record import chain, event
from broker.record.chain import Chain, ChainRecord, Entry
from broker.record.journal import is_being_written
from broker.record.run_files import list_runs
from broker.record.verify import Verification, verify
from broker.values import dataclass


class State(StrEnum):
    """What became of a run's record."""

    OK = "ok"
    TAMPERED = "tampered"
    VANISHED = "vanished"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of a run. `problem`: where and how the record stops being one; `notes`: what is no proof of anything.

    `bound`: up to which event the chain file vouches for it.
    """

    run: str
    path: Path
    state: State
    problem: str = ""
    line: int = 0
    notes: tuple[str, ...] = ()
    bound: int = 0
    running: bool = False
    found: Verification | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against the record."""
        return self.state in (State.OK, State.REMOVED)


def examine(state: Path, paths: Iterable[Path] | None = None) -> Iterator[Finding]:
    """Yield a finding for each of these journals; without any, for every run there is or ever was, newest first.

    Raises JournalError when a file cannot be read.
    """
    record = Chain(state).read()
    entries = by_run(record)
    if paths is None:
        present = {path.stem: path for path in list_runs(state)}
        names = sorted({*present, *entries}, reverse=True)
        paths = [state / "runs" / f"{run}.jsonl" for run in names]
    for path in paths:
        if path.parent != state / "runs":
            yield _alone(path)
            continue
        yield _bound(path, entries.get(path.stem, []), record, state)


def by_run(record: ChainRecord) -> dict[str, list[Entry]]:
    """Return what the chain file says of each run, in order."""
    entries: dict[str, list[Entry]] = {}
    for entry in record.entries:
        if entry.run:
            entries.setdefault(entry.run, []).append(entry)
    return entries


def _alone(path: Path) -> Finding:
    """Look at a journal that lies elsewhere: nothing but its own chain can be held against it."""
    found = verify(path)
    return _finding(path, found, str(found.problem or ""), notes=_notes(path, found))


def _bound(path: Path, entries: list[Entry], record: ChainRecord, state: Path) -> Finding:
    removed = next((entry for entry in reversed(entries) if entry.type == chain.REMOVED), None)
    if not path.exists():
        # It may have been removed since the chain file was read.
        if removed is None and (again := by_run(Chain(state).read()).get(path.stem)):
            removed = next((entry for entry in again if entry.type == chain.REMOVED), None)
        return _missing(path, entries, removed)
    marks = {entry.count: entry for entry in entries}
    found = verify(path, run=path.stem, marks=marks.keys())
    problem = str(found.problem or "") or _against_entries(found, entries) or _against_chain(found, entries, record)
    notes = list(_notes(path, found))
    if removed is not None:
        notes.append(f"retention recorded at {removed.time} that it removes this run, and it is still here, or here again")
    finished = any(entry.type == chain.FINISHED for entry in entries)
    last = max(marks, default=0)
    if found.finished and entries and not finished and last < found.count and not removed:
        notes.append(f"broker died before it bound the end: the chain file vouches for {last} of {found.count} events")
    elif not found.finished and not is_being_written(path) and last < found.count:
        notes.append(f"the chain file vouches for {last} of {found.count} events")
    return _finding(path, found, problem, notes=tuple(notes), bound=last)


def _missing(path: Path, entries: list[Entry], removed: Entry | None) -> Finding:
    if removed is not None:
        who = f" (uid {removed.fields['uid']})" if "uid" in removed.fields else ""
        note = f"removed by retention at {removed.time}{who}: {removed.count} events, head {removed.head}"
        return Finding(run=path.stem, path=path, state=State.REMOVED, notes=(note,), bound=removed.count)
    last = entries[-1]
    text = f"the run is gone: entry {last.seq} of the chain file saw {last.count} events of it at {last.time}"
    return Finding(run=path.stem, path=path, state=State.VANISHED, problem=text, bound=last.count)


def _against_entries(found: Verification, entries: list[Entry]) -> str:
    """Say what the chain file saw of the run and is not there."""
    matched = 0
    for entry in sorted(entries, key=lambda each: each.count):
        said = f"entry {entry.seq} of the chain file, of {entry.time}"
        if entry.count > found.count:
            missing = entry.count - found.count
            return (
                f"cut off after event {found.count}: {missing} more {'was' if missing == 1 else 'were'} recorded ({said})"
            )
        if found.marks.get(entry.count) != entry.head:
            if not matched:
                return f"this is another record: event {entry.count} is not the one that was written ({said})"
            return f"rewritten between events {matched + 1} and {entry.count}: they are not what was written ({said})"
        matched = entry.count
        if entry.type == chain.FINISHED and not found.finished:
            return f"the end was altered: the run had finished with event {entry.count} ({said})"
    return ""


def _against_chain(found: Verification, entries: list[Entry], record: ChainRecord) -> str:
    """Say what the run's first event knows of the chain file, and the chain file does not."""
    known = found.first.get("chain")
    if not isinstance(known, dict):
        older = not record.entries or str(found.first.get("time", "")) < record.entries[0].time
        if not entries and not older and (found.count > 1 or found.finished):
            return "the chain file knows nothing of this run: it was put here, or its entries were removed"
        return ""
    seq, head = known.get("seq"), known.get("head")
    if type(seq) is not int or seq < 0:
        return f"its first event refers to entry {seq!r} of the chain file; it was altered"
    digest = event.GENESIS if seq == 0 else ""
    if 0 < seq <= len(record.entries):
        digest = record.entries[seq - 1].digest
    if digest and digest != head:
        return f"it began after another entry {seq} of the chain file than the one that stands there: the chain file was made anew"
    if not digest and not record.problem:
        return f"it began after entry {seq} of the chain file, which has only {len(record.entries)}: its end was cut off, or it was removed"
    # Of a run with one event broker may have died before it put it there.
    if not entries and not record.problem and (found.count > 1 or found.finished):
        return "the chain file knows nothing of this run: its entries were removed, or the run was put here"
    return ""


def _notes(path: Path, found: Verification) -> Iterator[str]:
    if found.torn:
        yield f"a torn last line of {found.torn} bytes: broker died while writing it, and what it announced did not happen"
    if found.ok and not found.finished:
        died = "open: its agent has not said that the session ended" if found.first.get("verb") == "hook" else "unfinished: broker died"
        yield "still running" if is_being_written(path) else died
    if found.ok and found.count and "chain" not in found.first:
        yield "written by a broker that kept no chain file: its own chain holds, and nothing says that all of it is there"


def _finding(path: Path, found: Verification, problem: str, *, notes: Iterable[str], bound: int = 0) -> Finding:
    return Finding(
        run=path.stem, path=path, state=State.TAMPERED if problem else State.OK, problem=problem,
        line=found.problem.line if found.problem else 0, notes=() if problem else tuple(notes), bound=bound,
        running=not found.finished and is_being_written(path), found=found,
    )  # fmt: skip


def bind_dead(state: Path, paths: Iterable[Path] | None = None) -> list[Entry]:
    """Bind what brokers that died had written since their last entry, as it stands now. Returns the entries.

    A run that does not verify is left alone.
    """
    record = Chain(state).read()
    entries = by_run(record)
    added = []
    for path in list_runs(state) if paths is None else paths:
        known = entries.get(path.stem, [])
        if any(entry.type in (chain.FINISHED, chain.REMOVED) for entry in known) or is_being_written(path):
            continue
        try:
            finding = _bound(path, known, record, state)
        except JournalError:
            continue
        if finding.ok and finding.found is not None and finding.found.count > finding.bound:
            fields: dict[str, Any] = {"run": path.stem, "count": finding.found.count, "head": finding.found.head}
            added.append(Chain(state).append(chain.REACHED, late=True, **fields))
    return added
