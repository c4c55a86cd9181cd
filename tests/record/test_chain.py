"""The chain file takes whole entries from several brokers, survives their deaths, and shows what was done to it."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import JournalError
from broker.record import chain, event, line_file
from broker.record.chain import Chain
from broker.record.journal import BOUND_EVENTS, Journal


def _entries(state: Path) -> list[tuple[str, str, int]]:
    return [(entry.type, entry.run, entry.count) for entry in Chain(state).read().entries]


def test_a_run_leaves_its_head_at_its_start_and_at_its_end(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED)
        first = journal.head
        journal.append("x")
        journal.append(event.RUN_FINISHED)

    started, finished = Chain(tmp_path).read().entries
    assert (started.type, started.run, started.count, started.head) == (chain.STARTED, journal.run, 1, first)
    assert (finished.type, finished.run, finished.count) == (chain.FINISHED, journal.run, 3)
    assert finished.head == journal.head


def test_a_long_run_leaves_its_head_on_the_way(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        for _ in range(2 * BOUND_EVENTS + 5):
            journal.append("x")

    counts = [count for _, _, count in _entries(tmp_path)]
    assert counts == [1, BOUND_EVENTS + 1, 2 * BOUND_EVENTS + 1, 2 * BOUND_EVENTS + 5]


def test_a_runs_first_event_knows_what_the_chain_file_was_when_it_began(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as one:
        one.append(event.RUN_STARTED)
    with Journal.create(tmp_path) as two:
        two.append(event.RUN_STARTED)

    last = Chain(tmp_path).read().entries[0]
    assert event.decode(two.path.read_bytes())["chain"] == {"seq": 1, "head": last.digest}
    assert event.decode(one.path.read_bytes())["chain"] == {"seq": 0, "head": event.GENESIS}


def test_the_file_is_private_and_one_that_others_can_write_is_refused(tmp_path: Path) -> None:
    Chain(tmp_path).append("x")
    path = tmp_path / chain.NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o666)

    with pytest.raises(JournalError, match="chmod go-w"):
        Chain(tmp_path).append("x")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(mode=0o600)
    (tmp_path / chain.NAME).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(JournalError, match="cannot record"):
        Chain(tmp_path).append("x")
    assert (tmp_path / "elsewhere").read_bytes() == b""


WRITERS = """
import sys
from pathlib import Path
from broker.record.chain import Chain
sys.stdin.read(1)
for number in range(100):
    Chain(Path(sys.argv[1])).append("x", writer=sys.argv[2], number=number)
"""


def test_several_brokers_write_one_chain(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITERS, str(tmp_path), str(number)], stdin=subprocess.PIPE)
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go")
        process.stdin.flush()
    for process in processes:
        assert process.wait() == 0
        assert process.stdin is not None
        process.stdin.close()

    record = Chain(tmp_path).read()
    assert record.problem == ""
    for number in range(4):
        own = [entry.fields["number"] for entry in record.entries if entry.fields["writer"] == str(number)]
        assert own == list(range(100))


def test_a_torn_entry_is_cut_off_by_the_next_writer_who_says_so(tmp_path: Path) -> None:
    Chain(tmp_path).append("x")
    with (tmp_path / chain.NAME).open("ab") as file:
        file.write(b'{"head":')
    assert (Chain(tmp_path).read().problem, Chain(tmp_path).read().torn) == ("", 8)

    Chain(tmp_path).append("y")

    record = Chain(tmp_path).read()
    assert (record.problem, record.torn, len(record.entries)) == ("", 0, 2)
    assert record.entries[1].fields["torn"] == 8


def test_a_first_entry_that_was_torn_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / chain.NAME).write_bytes(b'{"he')
    (tmp_path / chain.NAME).chmod(0o600)

    assert Chain(tmp_path).append("x").seq == 1


def test_nothing_is_added_to_a_damaged_entry(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED)
        with (tmp_path / chain.NAME).open("ab") as file:
            file.write(b"hello\n")

        with pytest.raises(JournalError, match="broker events verify"):
            journal.append(event.RUN_FINISHED)

    assert b"run.finished" not in journal.path.read_bytes()


def test_a_holder_that_never_lets_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "LOCK_SECONDS", 0.0)
    Chain(tmp_path).append("x")
    with (tmp_path / chain.NAME).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(JournalError, match="fuser"):
            Chain(tmp_path).append("y")


# --- what was done to it shows


def _numbered(state: Path) -> list[bytes]:
    for number in range(6):
        Chain(state).append("run.reached", run=f"20261130-00000{number}-0000", count=number, head="0" * 64)
    return (state / chain.NAME).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (lambda it: [it[0], it[1].replace(b'"count":1', b'"count":7'), *it[2:]], "line 3: it does not follow from line 2"),
        (lambda it: [*it[:2], *it[3:]], "line 3: entry 3 is missing"),
        (lambda it: [*it[:2], *it[4:]], "line 3: entries 3 to 4 are missing"),
        (lambda it: [*it[:2], it[3], it[2], *it[4:]], "line 3: entry 3 is missing"),
        (lambda it: [*it[:2], it[1], *it[2:]], "line 3: entry 2 stands in the place of entry 3"),
        (lambda it: it[1:], "line 1: entry 1 is missing"),
        (lambda it: [*it[:5], b"{}\n"], "line 6: the entry has no prev, seq, time, type"),
        (lambda it: [*it[:5], it[5].replace(b'"count":5', b'"count":true')], "line 6: the entry's count makes no sense"),
    ],
)  # fmt: skip
def test_an_edited_chain_file_is_found_and_placed(tamper: object, sentence: str, tmp_path: Path) -> None:
    assert callable(tamper)
    lines = _numbered(tmp_path)
    assert Chain(tmp_path).read().problem == ""

    (tmp_path / chain.NAME).write_bytes(b"".join(tamper(lines)))

    assert sentence in Chain(tmp_path).read().problem


# --- a disk that is full


def test_a_run_whose_start_the_chain_file_cannot_take_does_not_start(tiny_disk: Path) -> None:
    with Journal.create(tiny_disk) as journal:
        with (tiny_disk / chain.NAME).open("wb") as file:  # a page of its own, so that only the chain file is full
            os.fchmod(file.fileno(), 0o600)
        _fill(tiny_disk, leave=4096)

        with pytest.raises(JournalError, match="the disk is full|No space"):
            journal.append(event.RUN_STARTED)

        assert journal.path.read_bytes() == b""
        (tiny_disk / "ballast").unlink()
        assert journal.append(event.RUN_STARTED) == 1
    assert Chain(tiny_disk).read().problem == ""


def test_the_chain_file_holds_whole_entries_only_when_the_disk_is_full(tiny_disk: Path) -> None:
    written = []
    with pytest.raises(JournalError, match="the disk is full|No space"):
        while len(written) < 10_000:
            written.append(Chain(tiny_disk).append("x", note="n" * 100))

    record = Chain(tiny_disk).read()
    assert (record.problem, record.torn, list(record.entries)) == ("", 0, written)


def _fill(place: Path, *, leave: int) -> None:
    with (place / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            ballast.truncate(ballast.tell() - leave)
