"""Whatever is done to a journal afterwards shows, with the line, and a crash is not called tampering."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import JournalError
from broker.record import event
from broker.record.journal import Journal
from broker.record.verify import verify

Lines = list[bytes]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run of ten events that ended."""
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
        for number in range(8):
            journal.append(event.EXEC_DECIDED, argv=["rm", str(number)], verdict="deny")
        journal.append(event.RUN_FINISHED, status="exited", exit_code=0)
    return journal.path


def _altered(lines: Lines, index: int, old: bytes, new: bytes) -> Lines:
    assert old in lines[index]
    return [*lines[:index], lines[index].replace(old, new, 1), *lines[index + 1 :]]


def _forged(lines: Lines) -> bytes:
    """A line by somebody who has read this code: right number, right hash, canonical."""
    record = event.decode(lines[-1]) | {"seq": len(lines) + 1, "prev": event.digest(lines[-1]), "type": "x"}
    record.pop("seal", None)
    return event.encode(record)


def _rechained(lines: Lines, index: int) -> Lines:
    """A line altered, and the line after it made to fit."""
    changed = _altered(lines, index, b'"deny"', b'"allow"')
    after = event.decode(changed[index + 1]) | {"prev": event.digest(changed[index])}
    changed[index + 1] = event.encode(after)
    return changed


TAMPERING: dict[str, tuple[Callable[[Lines], Lines], int, str]] = {
    "a verdict altered": (lambda it: _altered(it, 4, b'"deny"', b'"allow"'), 6, "does not follow from line 5"),
    "a verdict altered and the next line made to fit": (lambda it: _rechained(it, 4), 7, "does not follow"),
    "the first line altered": (lambda it: _altered(it, 0, b"builder", b"default"), 2, "does not follow"),
    "the last line altered": (lambda it: _altered(it, 9, b'"exit_code":0', b'"exit_code":1'), 10, "seal"),
    "the last line's seal taken off": (
        lambda it: [*it[:9], event.encode({k: v for k, v in event.decode(it[9]).items() if k != "seal"})],
        10,
        "seal",
    ),
    "the last line's type altered": (lambda it: _altered(it, 9, b"run.finished", b"run.finishes"), 10, "seal"),
    "a line dropped": (lambda it: it[:4] + it[5:], 5, "event 5 is missing"),
    "three lines dropped": (lambda it: it[:4] + it[7:], 5, "events 5 to 7 are missing"),
    "the first line dropped": (lambda it: it[1:], 1, "event 1 is missing"),
    "a line dropped and the rest renumbered": (
        lambda it: (
            it[:4]
            + [event.encode(event.decode(line) | {"seq": n}) for n, line in enumerate(it[5:], 5)]
        ),
        5,
        "does not follow",
    ),
    "two lines swapped": (lambda it: [*it[:3], it[4], it[3], *it[5:]], 4, "event 4 is missing"),
    "a line repeated": (lambda it: [*it[:4], it[3], *it[4:]], 5, "event 4 stands in the place of event 5"),
    "a forged line appended": (lambda it: [*it, _forged(it)], 11, "already finished"),
    "a forged line inserted": (lambda it: [*it[:5], _forged(it[:5]), *it[5:]], 7, "event 6 stands in the place"),
    "an empty line": (lambda it: [*it[:5], b"", *it[5:]], 6, "no event"),
    "spaces added": (lambda it: _altered(it, 4, b'":"', b'": "'), 5, "canonical"),
    "a key doubled": (lambda it: _altered(it, 4, b"{", b'{"argv":[],'), 5, "a key occurs twice"),
    "a line that is no JSON": (lambda it: [*it[:4], b"hello", *it[5:]], 5, "no event"),
    "a line that is no object": (lambda it: [*it[:4], b"[1]", *it[5:]], 5, "no event"),
    "a line without its number": (lambda it: [*it[:4], b'{"type":"x"}', *it[5:]], 5, "has no prev"),
    "a number that is text": (lambda it: _altered(it, 4, b'"seq":5', b'"seq":"5"'), 5, "number is '5'"),
    "a line nested deeper than Python goes": (lambda it: [*it[:4], b"[" * 100_000, *it[5:]], 5, "no event"),
    "a carriage return": (lambda it: [*it[:4], it[4] + b"\r", *it[5:]], 5, "canonical"),
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found_and_placed(how: str, finished: Path) -> None:
    tamper, line, sentence = TAMPERING[how]
    lines = finished.read_bytes().splitlines()
    assert verify(finished).ok
    finished.write_bytes(b"".join(part + b"\n" for part in tamper(lines)))

    found = verify(finished)

    assert not found.ok
    assert found.problem is not None
    assert (found.problem.line, found.count) == (line, line - 1)
    assert sentence in found.problem.text


def test_no_single_byte_of_a_finished_run_can_be_changed_unseen(finished: Path) -> None:
    original = finished.read_bytes()
    for place in range(0, len(original), 7):
        data = bytearray(original)
        data[place] ^= 0x01
        finished.write_bytes(bytes(data))

        found = verify(finished)

        assert not (found.ok and found.finished), f"byte {place}"


def test_a_line_of_another_run_does_not_fit(tmp_path: Path, finished: Path) -> None:
    lines = finished.read_bytes().splitlines()
    foreign = event.encode(event.decode(lines[9]) | {"run": "20200101-000000-0000"})
    finished.write_bytes(b"\n".join([*lines[:9], foreign]) + b"\n")

    problem = verify(finished).problem

    assert problem is not None
    assert "belongs to run 20200101-000000-0000" in problem.text


def test_a_tail_cut_at_a_line_leaves_a_run_without_an_end(finished: Path) -> None:
    lines = finished.read_bytes().splitlines(keepends=True)
    finished.write_bytes(b"".join(lines[:6]))

    found = verify(finished)

    assert (found.ok, found.count, found.finished, found.torn) == (True, 6, False, 0)


def test_a_torn_last_line_is_a_crash_and_not_tampering(finished: Path) -> None:
    data = finished.read_bytes()
    lines = data.splitlines(keepends=True)
    finished.write_bytes(b"".join(lines[:6]) + lines[6][:40])

    found = verify(finished)

    assert (found.ok, found.count, found.finished, found.torn) == (True, 6, False, 40)


def test_bytes_after_the_end_of_a_run_are_no_crash(finished: Path) -> None:
    with finished.open("ab") as file:
        file.write(b'{"seq":')

    problem = verify(finished).problem

    assert problem is not None
    assert (problem.line, "already finished" in problem.text) == (11, True)


def test_an_empty_journal_is_intact_and_unfinished(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        found = verify(journal.path)

    assert (found.ok, found.count, found.head, found.finished) == (True, 0, event.GENESIS, False)


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_finding(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot read"):
        verify(tmp_path / "missing.jsonl")
