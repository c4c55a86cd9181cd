"""The streams between the operator and a process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from broker.enforce.attach import OutputBudget, Streams, copy_stream


def test_streams_are_copied_to_the_last_byte(tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    reader, writer = os.pipe()
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT, 0o600)
    budget = OutputBudget(None, lambda: None)
    copier = threading.Thread(target=copy_stream, args=(reader, target, budget))
    copier.start()
    with os.fdopen(writer, "wb") as source:
        source.write(data)
    copier.join(30)
    assert (tmp_path / "out").read_bytes() == data
    assert budget.written == len(data)


def test_an_appending_target_works_although_it_cannot_be_spliced_to(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(writer, b"hello")
    os.close(writer)
    copy_stream(reader, target, OutputBudget(None, lambda: None))
    assert (tmp_path / "out").read_bytes() == b"hello"


def test_a_budget_cuts_at_its_byte_and_says_so_once(tmp_path: Path) -> None:
    told: list[int] = []
    budget = OutputBudget(10, lambda: told.append(1))
    assert budget.take(7) == 7
    assert budget.take(7) == 3
    assert budget.take(7) == 0
    assert budget.exceeded
    assert told == [1]


def test_a_reader_that_is_gone_ends_the_copy_and_the_writer_hears_of_it() -> None:
    reader, writer = os.pipe()
    gone, target = os.pipe()
    os.close(gone)
    os.write(writer, b"x")
    copy_stream(reader, target, None)
    try:
        os.write(writer, b"y")
    except BrokenPipeError:
        return
    raise AssertionError("the writer was not told")


def test_without_a_stdin_the_process_reads_an_empty_one() -> None:
    streams = Streams(-1, 1, 2, OutputBudget(None, lambda: None))
    assert os.read(streams.inside[0], 10) == b""
    streams.start()
    streams.drain(10)


def test_a_report_into_the_same_file_is_not_written_over(tmp_path: Path) -> None:
    """splice(2) would: it takes the file's position before it waits for data."""
    reader, writer = os.pipe()
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT, 0o600)
    copier = threading.Thread(target=copy_stream, args=(reader, target, OutputBudget(None, lambda: None)))
    copier.start()
    for number in range(200):
        os.write(target, b"report %d\n" % number)
        os.write(writer, b"output %d\n" % number)
    os.close(writer)
    copier.join(30)
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert len(lines) == 400
    assert [line for line in lines if line.startswith(b"report")] == [b"report %d" % number for number in range(200)]
