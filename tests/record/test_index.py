"""The index makes reading fast, and never makes it wrong: whatever is done to it, the journal is what is told."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.classify.risk import Risk
from broker.errors import JournalError
from broker.record import event, index_file, query
from broker.record import index as indexes
from broker.record.index import Index
from broker.record.journal import Journal
from broker.record.query import Found, find
from broker.record.run_files import list_runs, segments
from broker.record.select import RiskFilter, Selection

CURL = Selection(rules=("program.curl",))
TYPES = (event.EXEC_DECIDED, event.FILE_DECIDED, event.TASK_DENIED, event.USAGE_MEASURED)
RULES = ("program.curl", "path.persistence:.git/hooks/", "profile.effects", "interpreter.code")
TASKS = ("root", "root/1", "root/1/2", "root/2")


@pytest.fixture(autouse=True)
def every_journal_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is used for large journals only, and these are small."""
    monkeypatch.setattr(query, "LARGE", 0)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def fill(journal: Journal, count: int, seed: int = 1) -> None:
    """Write events of every kind."""
    choose = random.Random(seed)
    journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
    journal.append(event.TASK_CREATED, task="root/1", profile="research")
    for number in range(count):
        risks = [risk.label for risk in sorted(choose.sample(list(Risk), choose.randint(0, 3)))]
        journal.append(
            choose.choice(TYPES), task=choose.choice(TASKS), effects=risks, rule=choose.choice(RULES),
            verdict=choose.choice(("allow", "deny")), operation={"kind": "exec", "argv": ["x", f"word-{number % 7}"]},
        )  # fmt: skip


@pytest.fixture
def run(state: Path) -> Path:
    with Journal.create(state, "20261130-043055-7f3a") as journal:
        fill(journal, 300)
        journal.append(event.RUN_FINISHED, exit_code=0)
    return journal.path


def asked(state: Path, selection: Selection, *, index: bool = True, newest: int | None = None) -> list[bytes]:
    return [each.line for each in find(state, list_runs(state), selection, index=index, newest=newest, warn=lambda _: None)]


def database(state: Path) -> sqlite3.Connection:
    return sqlite3.connect(state / index_file.NAME, isolation_level=None)


SELECTIONS = (
    CURL, Selection(verdicts=("deny",)), Selection(types=("exec",)), Selection(tasks=("root/1",)), Selection(profiles=("research",)),
    Selection(risk=RiskFilter.parse(">=system_write")), Selection(types=("task.denied", "run"), verdicts=("deny",)),
    Selection(rules=("path",), tasks=("root/2",), verdicts=("allow",)), Selection(since=1), Selection(until=1), Selection(rules=("nothing",)),
)  # fmt: skip


@pytest.mark.parametrize("newest", [None, 0, 1, 10])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_index_answers_as_the_lines_do(selection: Selection, newest: int | None, state: Path, run: Path) -> None:
    answer = asked(state, selection, newest=newest)
    assert answer == asked(state, selection, index=False, newest=newest)
    assert (state / index_file.NAME).exists()
    assert set(answer) <= set(run.read_bytes().splitlines())


def test_many_rows_are_read_in_pages_and_in_their_order(state: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "PAGE", 7)
    monkeypatch.setattr(indexes, "FEW", 3)
    for selection in SELECTIONS:
        assert asked(state, selection) == asked(state, selection, index=False)


def test_a_text_with_other_questions_is_answered_as_the_lines_do(state: Path, run: Path) -> None:
    for selection in SELECTIONS:
        both = Selection(
            types=selection.types, verdicts=selection.verdicts, tasks=selection.tasks, rules=selection.rules,
            profiles=selection.profiles, risk=selection.risk, grep="x word-3",
        )  # fmt: skip
        wanted = [line for line in asked(state, selection, index=False) if b'"word-3"' in line]
        if not (selection.since or selection.until):
            assert asked(state, both) == wanted


def test_several_runs_are_merged_by_time(state: Path) -> None:
    with Journal.create(state, "20261130-043055-0001") as first, Journal.create(state, "20261130-043056-0002") as second:
        for number in range(20):
            (first, second)[number % 2].append(event.EXEC_DECIDED, rule="program.curl", number=number)
    for index in (True, False):
        found = list(find(state, list_runs(state), CURL, index=index))
        assert [each.event["number"] for each in found] == list(range(20))
        assert [each.event["number"] for each in find(state, list_runs(state), CURL, newest=3, index=index)] == [17, 18, 19]


def test_a_thousand_runs_are_not_a_thousand_open_files(state: Path) -> None:
    for number in range(60):
        with Journal.create(state, f"202611{1 + number % 28:02}-{number // 28:02}0000-{number:04x}") as journal:
            journal.append(event.EXEC_DECIDED, rule="program.curl")
            # The clock of these events is now; merged by their runs' beginnings, each is over before the next is opened.
    opened = max(len(os.listdir("/proc/self/fd")) for _ in find(state, list_runs(state), CURL, index=False))
    before = len(os.listdir("/proc/self/fd"))
    assert opened - before < 70


# --- it goes on where the journal grew


def test_a_run_that_goes_on_is_indexed_from_where_it_was(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.create(state) as journal:
        fill(journal, 50)
        assert asked(state, CURL) == asked(state, CURL, index=False)
        starts = []
        real = indexes.lines
        monkeypatch.setattr(indexes, "lines", lambda path, start: starts.append(start.offset) or real(path, start))
        size = journal.path.stat().st_size
        for number in range(3):
            journal.append(event.EXEC_DECIDED, rule="program.curl", number=number)
            assert asked(state, CURL) == asked(state, CURL, index=False)
        assert starts[0] == size
        assert starts == sorted(set(starts))


def test_a_torn_line_is_no_event_until_it_is_whole(state: Path, run: Path) -> None:
    whole = run.read_bytes()
    lines = whole.splitlines(keepends=True)
    run.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    finished = Selection(types=("run.finished",))
    assert asked(state, finished) == []
    with run.open("ab") as file:
        file.write(lines[-1][20:])
    assert asked(state, finished) == [lines[-1][:-1]]


def test_a_run_that_goes_on_in_another_file_is_one_run(state: Path) -> None:
    with Journal.create(state, segment=4096) as journal:
        fill(journal, 30)
        assert asked(state, CURL) == asked(state, CURL, index=False)
        fill(journal, 60, seed=2)
        assert len(segments(journal.path)) > 3
        answer = asked(state, CURL)
        assert answer == asked(state, CURL, index=False)
        assert len(answer) > 10


def test_batches_are_kept_one_by_one(state: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "BATCH", 20)
    real = Index._add
    calls = itertools.count()

    def fails_later(self: Index, *args: object) -> bool:
        if next(calls) == 4:
            raise index_file.Unusable
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "_add", fails_later)
    assert asked(state, CURL) == asked(state, CURL, index=False)  # the lines answer
    assert database(state).execute("SELECT count FROM runs").fetchone() == (80,)
    monkeypatch.setattr(Index, "_add", real)
    assert asked(state, CURL) == asked(state, CURL, index=False)
    assert database(state).execute("SELECT count, (SELECT count(*) FROM events) FROM runs").fetchone() == (303, 303)


def test_runs_that_are_gone_are_forgotten(state: Path, run: Path) -> None:
    with Journal.create(state) as other:
        fill(other, 5)
    asked(state, CURL)
    run.unlink()
    asked(state, CURL)
    assert database(state).execute("SELECT run FROM runs").fetchall() == [(other.run,)]
    assert database(state).execute("SELECT count(*) FROM events").fetchone() == (7,)


# --- it is made anew


@pytest.mark.parametrize("what", ["garbage", "empty", "truncated", "another version", "no tables", "tables of others", "missing"])
def test_an_index_that_is_damaged_or_another_is_made_anew(what: str, state: Path, run: Path) -> None:
    asked(state, CURL)
    file = state / index_file.NAME
    for suffix in ("-wal", "-shm"):
        (state / f"{index_file.NAME}{suffix}").unlink(missing_ok=True)
    match what:
        case "garbage":
            file.write_bytes(b"no database at all" * 1000)
        case "empty":
            file.write_bytes(b"")
        case "truncated":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case "another version":
            database(state).execute("PRAGMA user_version = 99")
        case "no tables":
            database(state).execute("DROP TABLE events")
        case "tables of others":
            connection = database(state)
            connection.execute("DROP TABLE events")
            connection.execute("CREATE TABLE events (number)")
        case "missing":
            file.unlink()
    wanted = asked(state, CURL, index=False)
    assert asked(state, CURL) == wanted
    assert asked(state, CURL) == wanted
    assert database(state).execute("SELECT count(*) FROM events").fetchone() == (303,)


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_to_the_file_is_never_an_answer_of_its_own(seed: int, state: Path, run: Path) -> None:
    asked(state, CURL)
    choose = random.Random(seed)
    file = state / index_file.NAME
    data = bytearray(file.read_bytes())
    for _ in range(choose.choice((1, 20, 400))):
        data[choose.randrange(100, len(data))] = choose.randrange(256)
    file.write_bytes(data)
    for selection in SELECTIONS[:6]:
        answer = asked(state, selection)
        true = asked(state, selection, index=False)
        assert set(answer) <= set(true)  # nothing appears
        assert answer == sorted(answer, key=true.index)


@pytest.mark.parametrize(
    "replaced", ["rewritten in place", "another file", "shorter", "an altered line", "lines before the end changed and more added"]
)
def test_a_run_whose_file_is_another_is_indexed_anew(replaced: str, state: Path, run: Path) -> None:
    asked(state, CURL)
    lines = run.read_bytes().splitlines(keepends=True)
    altered = [line.replace(b"interpreter.code", b"program.curl") for line in lines]
    match replaced:
        case "rewritten in place":
            status = run.stat()
            run.write_bytes(b"".join(altered))
            os.utime(run, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of its last change can be set, ctime cannot
        case "another file":
            run.unlink()
            run.write_bytes(b"".join(altered))
        case "shorter":
            run.write_bytes(b"".join(lines[:100]))
        case "an altered line":
            run.write_bytes(b"".join([*lines[:50], lines[50].replace(b'"seq":51', b'"seq":52'), *lines[51:]]))
        case _:
            run.write_bytes(b"".join([*altered[:200], *altered[200:], altered[-1]]))
    assert asked(state, CURL) == asked(state, CURL, index=False)


# --- it is never believed


def test_an_index_cannot_make_an_event_appear(state: Path, run: Path) -> None:
    asked(state, CURL)
    connection = database(state)
    facts = connection.execute("SELECT facts FROM events WHERE facts IN (SELECT id FROM facts WHERE facts LIKE '%program.curl%')").fetchone()
    other = connection.execute("SELECT number, facts FROM events WHERE facts != ?", facts).fetchone()
    # A line that is no answer takes the place of one that is, and all the counts agree.
    connection.execute("UPDATE events SET facts = ? WHERE number = ?", (facts[0], other[0]))
    connection.execute("UPDATE counts SET count = count + 1 WHERE facts = ?", facts)
    connection.execute("UPDATE counts SET count = count - 1 WHERE facts = ?", (other[1],))
    connection.close()
    wanted = asked(state, CURL, index=False)
    assert asked(state, CURL) == wanted
    assert not (state / index_file.NAME).exists()  # thrown away
    assert asked(state, CURL) == wanted


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events WHERE number = 100",
        "DELETE FROM events",
        "UPDATE events SET facts = (SELECT min(id) FROM facts) WHERE number > 50",
        "UPDATE events SET number = number + 1000 WHERE number > 50",
        "DELETE FROM counts",
        "DELETE FROM facts",
        "UPDATE facts SET facts = replace(facts, 'curl', 'wget')",
        "UPDATE facts SET facts = 'x'",
        "UPDATE facts SET facts = '[]'",
        "UPDATE facts SET id = id + 1",
        "UPDATE events SET offset = offset + 1",
        "UPDATE events SET offset = -5",
        "UPDATE events SET segment = 7",
        "UPDATE events SET hash = 0",
        "UPDATE events SET offset = 'x'",
        "UPDATE runs SET count = count - 1, files = files",
        "UPDATE runs SET offset = 0",
        "UPDATE runs SET profiles = 'x'",
        "UPDATE runs SET files = 'x'",
        "UPDATE counts SET count = 'many'",
        "UPDATE runs SET count = 10; DELETE FROM events WHERE number > 10; UPDATE counts SET count = 0; UPDATE counts SET count = 10 WHERE facts = 1",
        "DROP INDEX by_facts",
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
    ],
)
def test_an_index_that_was_tampered_with_hides_nothing(statement: str, state: Path, run: Path) -> None:
    asked(state, CURL)
    connection = database(state)
    connection.executescript(statement)
    connection.close()
    for selection in SELECTIONS:
        assert asked(state, selection) == asked(state, selection, index=False), selection


def test_what_only_a_forgery_of_rows_and_counts_together_can_do(state: Path, run: Path) -> None:
    """The limit, as docs/auditing.md states it: then --no-index tells, and so does the index when it is made anew."""
    asked(state, CURL)
    connection = database(state)
    curl = connection.execute("SELECT number, facts FROM events WHERE facts IN (SELECT id FROM facts WHERE facts LIKE '%program.curl%')").fetchone()
    other = connection.execute("SELECT id FROM facts WHERE facts NOT LIKE '%program.curl%'").fetchone()
    connection.execute("UPDATE events SET facts = ? WHERE number = ?", (other[0], curl[0]))
    connection.execute("UPDATE counts SET count = count - 1 WHERE facts = ?", (curl[1],))
    connection.execute("UPDATE counts SET count = count + 1 WHERE facts = ?", other)
    connection.close()
    true = asked(state, CURL, index=False)
    assert len(asked(state, CURL)) == len(true) - 1  # this much it takes: two tables, and two counts
    (state / index_file.NAME).unlink()
    assert asked(state, CURL) == true


def test_a_record_that_was_altered_is_said_to_be(state: Path, run: Path) -> None:
    lines = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join([*lines[:20], *lines[21:]]))
    said: list[str] = []
    list(find(state, [run], CURL, warn=said.append))
    assert said == [f"{run.stem}: line 21 does not follow from the line before it: the record was altered. Run: broker events verify {run.stem}"]


@pytest.mark.parametrize("damage", ["garbage", "a key twice", "not an object", "not ASCII", "[" * 100_000])
def test_a_line_that_is_no_event_ends_the_reading_with_its_number(damage: str, state: Path, run: Path) -> None:
    lines = run.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b"program.curl" in line and number > 20)
    other = {"a key twice": lines[at].replace(b"{", b'{"rule":"x",', 1), "not an object": b"[1]\n", "not ASCII": b'{"a":"\xff"}\n'}
    run.write_bytes(b"".join([*lines[:at], other.get(damage, damage.encode() + b"\n"), *lines[at + 1 :]]))
    for index in (True, False, True):
        with pytest.raises(JournalError, match=f"line {at + 1} is no event"):
            list(find(state, [run], CURL, index=index, warn=lambda _: None))


# --- without it


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.needs_root
def test_a_full_disk_costs_time_and_nothing_else(full_disk: Path) -> None:
    with Journal.create(full_disk) as journal, pytest.raises(JournalError, match="disk is full|No space"):
        while True:
            fill(journal, 50)
    wanted = asked(full_disk, CURL, index=False)
    assert len(wanted) > 50
    assert asked(full_disk, CURL) == wanted


@pytest.mark.needs_root
def test_a_state_directory_that_is_read_only_is_read(state: Path, run: Path) -> None:
    subprocess.run(["mount", "--bind", state, state], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
        assert asked(state, CURL) == asked(state, CURL, index=False)
        assert not (state / index_file.NAME).exists()
    finally:
        subprocess.run(["umount", state], check=True)


def test_a_lock_that_nobody_lets_go_of_costs_time_and_nothing_else(state: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(state, CURL)
    with Journal.create(state) as other:
        fill(other, 10)
    monkeypatch.setattr(index_file, "WAIT", 0.05)
    holder = database(state)
    holder.execute("BEGIN IMMEDIATE")
    wanted = asked(state, CURL, index=False)
    assert asked(state, CURL) == wanted
    holder.execute("ROLLBACK")
    assert asked(state, CURL) == wanted


def test_a_link_in_the_place_of_the_index_is_not_followed(state: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (state / index_file.NAME).symlink_to(tmp_path / "elsewhere")
    assert asked(state, CURL) == asked(state, CURL, index=False)
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_the_index_is_as_private_as_the_journal(state: Path, run: Path) -> None:
    old = os.umask(0)
    try:
        asked(state, CURL)
    finally:
        os.umask(old)
    for file in state.glob(f"{index_file.NAME}*"):
        assert file.stat().st_mode & 0o077 == 0, file


def test_a_journal_elsewhere_is_read_without_it(state: Path, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    shutil.copy(run, copy)
    assert [each.line for each in find(state, [copy], CURL)] == asked(state, CURL)


# --- several at once


def test_readers_of_a_run_that_is_being_written_see_every_event_once(state: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom broker.record import query\nfrom broker.record.select import Selection\n"
        "query.LARGE = 0\nstate = Path(sys.argv[1])\n"
        "for _ in range(12):\n"
        "    found = [each.event['seq'] for each in query.find(state, list(state.glob('runs/*.jsonl')), Selection(verdicts=('deny', 'allow')))]\n"
        "    assert found == list(range(3, len(found) + 3)), found[:50]\n"
        "print(len(found))\n"
    )
    with Journal.create(state) as journal:
        fill(journal, 10)
        done = threading.Event()

        def write() -> None:
            while not done.is_set() and journal.count < 5_000:
                journal.append(event.EXEC_DECIDED, verdict="deny", rule="program.curl")

        writer = threading.Thread(target=write)
        writer.start()
        readers = [subprocess.Popen([sys.executable, "-c", program, str(state)], stdout=subprocess.PIPE) for _ in range(2)]
        counts = [int(reader.communicate(timeout=100)[0] or 0) for reader in readers]
        done.set()
        writer.join()
    assert [reader.returncode for reader in readers] == [0, 0]
    assert min(counts) >= 10


def test_what_is_found_names_its_event(state: Path, run: Path) -> None:
    first: Found = next(iter(find(state, [run], Selection(types=("run.finished",)))))
    assert first.id == f"{run.stem}:303"
