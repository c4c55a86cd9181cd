"""Step 5: whether a journal is as it was written.

In: the files of one run. Out: a Verification. It proves that no line was altered, dropped, reordered or added within
the chain, and tells a crash (a torn last line, a run without an end) from tampering. It cannot see lines cut from
the end of a run that never finished, nor a journal rewritten as a whole by somebody who could write to it: for
that, evidence.py holds it against the chain file.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from broker.record import event
from broker.record.journal import lines
from broker.record.links import follow
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Where the record stops being one, and why, in a sentence. `file` is named when it is not the run's first."""

    line: int
    text: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file and f'{self.file}, '}line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found. `ok`: the chain holds for `count` lines, and `head` is the hash of the last of them.

    `torn` counts the bytes of an unfinished last line: a crash, and no event, since `append` had not
    returned. `finished` says whether the run recorded its own end. `first` is the first event, `marks` the hashes of
    the lines that were asked for.
    """

    ok: bool
    count: int
    head: str
    finished: bool
    torn: int
    problem: Problem | None
    first: dict[str, Any]
    marks: dict[int, str]


def verify(path: Path, *, run: str = "", marks: Collection[int] = ()) -> Verification:
    """Check every line of a journal. `run`: whose it must be. Raises JournalError when a file cannot be read."""
    count, head, torn = 0, event.GENESIS, 0
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    found_marks: dict[int, str] = {}
    problem: Problem | None = None
    where = path
    for segment, number, line in lines(path):
        if torn:
            count_torn = f"a line of {torn} bytes has no end, and {segment.name} goes on behind it; it was cut or altered"
            problem = Problem(line=count + 1, text=count_torn, file=where.name if where != path else "")
            break
        where = segment
        whole = line.endswith(b"\n")
        if not whole and last.get("type") != event.RUN_FINISHED:
            torn = len(line)
            continue
        text = line[:-1] if whole else line
        found, sentence = _check(text, count + 1, head, last, run)
        if sentence:
            problem = Problem(line=number, text=sentence, file=segment.name if segment != path else "")
            break
        count, head, last = count + 1, event.digest(text), found
        first = first or found
        if count in marks:
            found_marks[count] = head
    finished = problem is None and last.get("type") == event.RUN_FINISHED
    return Verification(
        ok=problem is None, count=count, head=head, finished=finished, torn=0 if problem else torn, problem=problem,
        first=first, marks=found_marks,
    )  # fmt: skip


def _check(line: bytes, number: int, head: str, last: dict[str, Any], run: str) -> tuple[dict[str, Any], str]:
    """Return the event, and what is wrong with it ("": nothing)."""
    if last.get("type") == event.RUN_FINISHED:
        return {}, "the run had already finished; this line was added afterwards"
    found, sentence = follow(line, number, head, event.REQUIRED)
    return found, sentence or _whose(found, last, run) or _seal(found)


def _whose(found: dict[str, Any], last: dict[str, Any], run: str) -> str:
    run = str(last["run"]) if last else run
    return f"it belongs to run {found['run']}, not to {run}" if run and found["run"] != run else ""


def _seal(found: dict[str, Any]) -> str:
    """Say what shows that the end was not written by the journal."""
    unsealed = {name: value for name, value in found.items() if name != "seal"}
    sealed = found["type"] == event.RUN_FINISHED
    if sealed != ("seal" in found) or (sealed and found["seal"] != event.digest(event.encode(unsealed))):
        return "the seal on the last line does not fit what it says; it was altered"
    return ""
