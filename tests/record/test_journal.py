"""No record, no run: every event is in the file, whole and in order, before anything goes on."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import JournalError
from broker.record import event
from broker.record.evidence import examine
from broker.record.journal import Journal, Sync, is_being_written, read
from broker.record.verify import verify


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.create(tmp_path / "state") as made:
        yield made


def test_an_event_is_in_the_file_when_append_returns(journal: Journal) -> None:
    number = journal.append("exec.decided", task="root/2", verdict="allow")

    (line,) = journal.path.read_bytes().splitlines()
    found = event.decode(line)
    assert number == found["seq"] == 1
    assert (found["task"], found["type"], found["verdict"]) == ("root/2", "exec.decided", "allow")
    assert found["run"] == journal.run == journal.path.stem
    assert found["prev"] == "0" * 64
    assert found["time"].endswith("Z")
    assert len(found["time"]) == len("2026-11-30T04:30:55.123456Z")


def test_each_line_holds_the_hash_of_the_one_before(journal: Journal) -> None:
    for number in range(3):
        journal.append("x", n=number)

    lines = journal.path.read_bytes().splitlines()
    assert [event.decode(line)["prev"] for line in lines[1:]] == [event.digest(line) for line in lines[:-1]]
    assert journal.head == event.digest(lines[-1])


def test_another_process_goes_on_where_one_left_off_and_the_chain_holds(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "state", segment=2_000) as first:
        first.append("x", text="y" * 30_000)  # longer than what is read at first
    for number in range(40):
        with Journal.go_on(first.path) or first as journal:
            assert journal is not first
            assert journal.append("x", n=number) == number + 2
    journal = Journal.go_on(first.path)
    assert journal is not None
    with pytest.raises(JournalError, match="another broker"):
        Journal.go_on(first.path)
    with journal:
        journal.append(event.RUN_FINISHED)
    assert Journal.go_on(first.path) is None
    found = verify(first.path)
    assert (found.ok, found.finished, found.count) == (True, True, 42)
    (finding,) = examine(tmp_path / "state")
    assert (finding.ok, finding.bound, finding.notes) == (True, 42, ())


def test_who_goes_on_behind_a_torn_line_says_so_and_behind_no_event_does_not(journal: Journal) -> None:
    journal.append("x", n=1)
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b'{"torn')
    with Journal.go_on(journal.path) or journal as again:
        again.append("x", n=2)
    assert [one["type"] for one in read(journal.path)] == ["x", "journal.resumed", "x"]
    with journal.path.open("ab") as file:
        file.write(b"[]\n")
    with pytest.raises(JournalError, match="no event"):
        Journal.go_on(journal.path)


def test_the_file_is_private(journal: Journal) -> None:
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_bytes_that_are_not_utf8_survive_the_journal(journal: Journal) -> None:
    word = os.fsdecode(b"\xff caf\xe9 \n\x1b]0;x\x07")

    journal.append("exec.decided", operation={"argv": [word]})

    (found,) = read(journal.path)
    assert os.fsencode(found["operation"]["argv"][0]) == b"\xff caf\xe9 \n\x1b]0;x\x07"
    assert verify(journal.path).ok


def test_a_field_cannot_take_the_place_of_the_chains_own(journal: Journal) -> None:
    with pytest.raises(ValueError, match="prev, seq"):
        journal.append("x", seq=9, prev="f" * 64)

    assert journal.path.read_bytes() == b""


def test_threads_write_whole_lines_in_one_chain(journal: Journal) -> None:
    together = threading.Barrier(8)

    def work(thread: int) -> None:
        together.wait()
        for number in range(200):
            journal.append("x", task=f"root/{thread}", n=number)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert verify(journal.path).count == 1600
    assert verify(journal.path).ok
    for thread in range(8):
        own = [one["n"] for one in read(journal.path) if one["task"] == f"root/{thread}"]
        assert own == list(range(200))


def test_nothing_is_added_after_the_end_of_the_run(journal: Journal) -> None:
    journal.append(event.RUN_FINISHED, status="exited")

    with pytest.raises(JournalError, match="the run is finished"):
        journal.append("x")
    assert verify(journal.path).finished


def test_a_closed_journal_takes_nothing(journal: Journal) -> None:
    journal.close()
    journal.close()

    with pytest.raises(JournalError, match="closed"):
        journal.append("x")


def test_a_run_has_one_journal_once(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="one writer"):
        Journal.create(tmp_path / "state", journal.run)


def test_many_runs_in_one_moment_get_different_files(tmp_path: Path) -> None:
    journals = [Journal.create(tmp_path) for _ in range(40)]
    for one in journals:
        one.close()

    assert len({one.path for one in journals}) == 40


def test_every_line_can_be_forced_to_the_disk(tmp_path: Path) -> None:
    with Journal.create(tmp_path, sync=Sync.EVERY) as journal:
        for _ in range(5):
            journal.append("x")

        assert verify(journal.path).count == 5


# --- two writers, and writers that died


WRITER = """
import sys
from pathlib import Path
from broker.record.journal import Journal

journal = Journal.create(Path(sys.argv[1]))
print(journal.path, flush=True)
while True:
    number = journal.append("exec.decided", argv=["x" * 300], note="\\udcff")
    sys.stdout.write(f"{number}\\n")  # acknowledged: the caller would now let the program start
    sys.stdout.flush()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "state")], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield line[:-1]


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(writer: subprocess.Popen[str]) -> None:
    lines = _lines(writer)
    path = Path(next(lines))
    acknowledged = 0
    for line in lines:
        acknowledged = int(line)
        if acknowledged == 500:
            writer.send_signal(signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    assert acknowledged >= 500

    found = verify(path)

    assert found.ok
    assert found.count in (acknowledged, acknowledged + 1)
    assert not found.finished
    assert not is_being_written(path)


def test_a_second_process_cannot_write_a_journal_that_is_in_use(writer: subprocess.Popen[str]) -> None:
    path = Path(next(_lines(writer)))

    assert is_being_written(path)
    with pytest.raises(JournalError, match="another broker"):
        Journal.resume(path)


def test_the_end_of_a_dead_run_can_be_recorded_by_the_next_broker(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as dead:
        dead.append("run.started")
        dead.append("x")
    with dead.path.open("ab") as file:
        file.write(b'{"torn":')

    with Journal.resume(dead.path) as heir:
        heir.append(event.RUN_FINISHED, status="interrupted")

    assert [one["type"] for one in read(dead.path)] == [
        "run.started",
        "x",
        event.JOURNAL_RESUMED,
        event.RUN_FINISHED,
    ]
    assert list(read(dead.path))[2]["torn"] == 8
    assert verify(dead.path).ok
    assert verify(dead.path).finished


def test_a_finished_or_altered_journal_is_not_resumed(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as done:
        done.append(event.RUN_FINISHED)
    with pytest.raises(JournalError, match="is finished"):
        Journal.resume(done.path)

    with Journal.create(tmp_path) as altered:
        altered.append("x", note="one")
        altered.append("x")
    altered.path.write_bytes(altered.path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(JournalError, match="does not verify"):
        Journal.resume(altered.path)


# --- a disk that fails


def test_a_full_disk_is_an_error_with_the_remedy_and_leaves_whole_lines_only(tiny_disk: Path) -> None:
    with Journal.create(tiny_disk) as journal:
        with pytest.raises(JournalError, match="BROKER_STATE_DIR") as full:
            for _ in range(1000):
                journal.append("x", note="n" * 300)

        assert full.value.exit_code == 73
        found = verify(journal.path)
        assert found.ok
        assert found.torn == 0
        assert 0 < found.count == journal.count < 1000


def test_the_journal_goes_on_in_one_chain_once_there_is_room(tiny_disk: Path) -> None:
    (tiny_disk / "ballast").write_bytes(b"x" * 40_000)
    with Journal.create(tiny_disk) as journal:
        with pytest.raises(JournalError):
            for _ in range(1000):
                journal.append("x", note="n" * 300)
        (tiny_disk / "ballast").unlink()

        journal.append(event.RUN_FINISHED)

        assert verify(journal.path).ok
        assert verify(journal.path).finished


def test_a_file_size_limit_tears_no_line(tmp_path: Path) -> None:
    """With RLIMIT_FSIZE the kernel writes what fits: a short write, not an error."""
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from broker.errors import JournalError\n"
        "from broker.record.journal import Journal\n"
        "journal = Journal.create(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    for number in range(100): journal.append('x', number=number)\n"
        "except JournalError as error:\n"
        "    print(journal.path, journal.count)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    path, count = done.stdout.split()

    found = verify(Path(path))

    assert found.ok
    assert found.torn == 0
    assert found.count == int(count) >= 1


def test_a_read_only_place_is_refused_before_anything_runs(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("remounting needs root")
    place = tmp_path / "place"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], check=False).returncode != 0:
        pytest.skip("cannot mount here")
    try:
        with pytest.raises(JournalError, match=os.strerror(errno.EROFS)):
            Journal.create(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_running_out_of_descriptors_is_a_journal_error(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(JournalError, match=os.strerror(errno.EMFILE)):
            Journal.create(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_reading_a_file_that_is_no_journal_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"seq":1}\nhello\n')

    with pytest.raises(JournalError, match="line 2"):
        list(read(tmp_path / "x.jsonl"))
    with pytest.raises(JournalError, match="cannot read"):
        list(read(tmp_path / "missing.jsonl"))
