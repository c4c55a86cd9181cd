"""Step 5: whether a journal is as it was written.

In: a file. Out: a Verification. It proves that no line was altered, dropped, reordered or added within the
chain, and tells a crash (a torn last line, a run without an end) from tampering. It cannot see lines cut from
the end of a run that never finished, nor a file rewritten as a whole by somebody who could write to it: for
that, keep the head hash elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.errors import JournalError
from broker.record import event


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Where the record stops being one, and why, in a sentence."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found. `ok`: the chain holds for `count` lines, and `head` is the hash of the last of them.

    `torn` counts the bytes of an unfinished last line: a crash, and no event, since `append` had not
    returned. `finished` says whether the run recorded its own end.
    """

    ok: bool
    count: int
    head: str
    finished: bool
    torn: int
    problem: Problem | None


def verify(path: Path) -> Verification:
    """Check every line of a journal. Raises JournalError when the file cannot be read."""
    count, head, torn = 0, event.GENESIS, 0
    last: dict[str, Any] = {}
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                whole = line.endswith(b"\n")
                if not whole and last.get("type") != event.RUN_FINISHED:
                    torn = len(line)
                    break
                found, sentence = _check(line[:-1] if whole else line, number, head, last)
                if sentence:
                    problem = Problem(line=number, text=sentence)
                    return Verification(
                        ok=False, count=count, head=head, finished=False, torn=0, problem=problem
                    )
                count, head, last = number, event.digest(line[:-1]), found
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    finished = last.get("type") == event.RUN_FINISHED
    return Verification(ok=True, count=count, head=head, finished=finished, torn=torn, problem=None)


def _check(line: bytes, number: int, head: str, last: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the event, and what is wrong with it ("": nothing)."""
    if last.get("type") == event.RUN_FINISHED:
        return {}, "the run had already finished; this line was added afterwards"
    try:
        found = event.decode(line)
    except ValueError as error:
        return {}, f"this is no event ({error}); it was altered"
    if not event.ENVELOPE - {"seal"} <= found.keys():
        missing = ", ".join(sorted(event.ENVELOPE - {"seal"} - found.keys()))
        return found, f"the event has no {missing}; it was altered"
    return found, _chain(found, number, head, last) or _shape(found, line)


def _chain(found: dict[str, Any], number: int, head: str, last: dict[str, Any]) -> str:
    """Say how the line fails to follow the one before it."""
    seq = found["seq"]
    if not isinstance(seq, int) or seq < 1:
        return f"the event's number is {seq!r}; it was altered"
    if seq > number:
        missing = f"event {number} is" if seq == number + 1 else f"events {number} to {seq - 1} are"
        return f"{missing} missing before this one (dropped, or put elsewhere)"
    if seq < number:
        return f"event {seq} stands in the place of event {number} (reordered, repeated or inserted)"
    if found["prev"] != head:
        if number == 1:
            return "the first event does not start a chain; it was altered, or lines before it were cut off"
        return f"it does not follow from line {number - 1} as that stands: one of the two was altered or replaced"
    if last and found["run"] != last["run"]:
        return f"it belongs to run {found['run']}, not to {last['run']}"
    return ""


def _shape(found: dict[str, Any], line: bytes) -> str:
    """Say what shows that the line itself was not written by the journal."""
    try:
        canonical = event.encode(found)
    except ValueError:
        canonical = b""
    if canonical != line:
        return "the line is not in the canonical form; it was altered"
    seal = found.pop("seal", None)
    sealed = found["type"] == event.RUN_FINISHED
    if sealed != (seal is not None) or (sealed and seal != event.digest(event.encode(found))):
        return "the seal on the last line does not fit what it says; it was altered"
    return ""
