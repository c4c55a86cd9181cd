"""An operator sees what happened, and whether the record of it can be trusted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.cli.event_text import operation_text
from broker.cli.events_list import count_denials
from broker.cli.main import main
from broker.decide.verdict import Allow, Deny, Layer
from broker.record import event
from broker.record.denials import DenialLog
from broker.record.journal import Journal, read
from broker.request.operation import (
    Connection,
    Delegation,
    Exec,
    FileAction,
    FileChange,
    FileRead,
    Operation,
    ShellText,
)

Captured = pytest.CaptureFixture[str]

CURL = Deny(
    what="curl https://example.com",
    effects=frozenset({Risk.NETWORK_EGRESS}),
    layer=Layer.PROFILE,
    rule="profile.max_risk",
    reason="the profile permits up to local_write",
    hint="work without the network",
)


def _assess(risk: Risk) -> Assessment:
    reason = Reason(rule="program.x", risk=risk, text="x")
    part = Part(kind=PartKind.COMMAND, effects=frozenset({risk}), reasons=(reason,))
    return Assessment(parts=(part,), classifier="1", tables="ab")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)
    return tmp_path / "state"


@pytest.fixture
def run(state: Path) -> Path:
    """A finished run with one allowed command, one denied three times, and a hostile name."""
    with Journal.create(state, "20261130-043055-7f3a") as journal:
        journal.append(
            event.RUN_STARTED, profile="builder", command=["agent", "fix \x1b[2J it"], engine="docker"
        )
        allow = Allow(layer=Layer.PROFILE, rule="profile.max_risk", effects=frozenset({Risk.SAFE}))
        journal.append(event.EXEC_DECIDED, **event.decided(Exec(argv=("ls",)), _assess(Risk.SAFE), allow))
        curl = Exec(argv=("curl", "https://example.com"))
        log = DenialLog(journal, "root/1")
        for _ in range(3):
            decided = event.decided(curl, _assess(Risk.NETWORK_EGRESS), CURL)
            journal.append(event.EXEC_DECIDED, task="root/1", **decided)
            log.add("exec", CURL)
        log.finish()
        journal.append(event.RUN_FINISHED, status="exited", exit_code=1, denials=log.total)
    return journal.path


def test_runs_are_listed_newest_first_with_result_and_denials(
    state: Path, run: Path, capsys: Captured
) -> None:
    with Journal.create(state, "20261201-000000-0001") as running:
        running.append(event.RUN_STARTED, profile="default", command=["true"])

        assert main(["events"]) == 0

    heading, newest, oldest = capsys.readouterr().out.splitlines()
    assert heading.split() == ["RUN", "WHEN", "(UTC)", "PROFILE", "RESULT", "DENIED", "COMMAND"]
    assert newest.split()[0] == "20261201-000000-0001"
    assert "default" in newest
    assert "running" in newest
    assert "exit 1" in oldest
    assert oldest.endswith(r"  3  agent 'fix \x1b[2J it'")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("task.deneid", "No such event in 20261130-043055-7f3a. There is no type task.deneid: did you mean task.denied?"),
        ("qqqq", "No such event in 20261130-043055-7f3a. There is no type qqqq: docs/events.md has them all."),
        ("landing", "No such event in 20261130-043055-7f3a."),
        ("plan.waived", "No such event in 20261130-043055-7f3a."),
    ],
)
def test_of_a_type_that_finds_nothing_it_is_said_whether_there_is_such_a_type(
    run: Path, wanted: str, said: str, capsys: Captured
) -> None:
    assert main(["events", "last", "--type", wanted]) == 0
    assert capsys.readouterr().err == f"{said}\n"


def test_no_runs_yet_is_said(state: Path, capsys: Captured) -> None:
    assert main(["events"]) == 0
    assert "No runs yet" in capsys.readouterr().out
    assert not state.exists()


def test_a_run_whose_broker_died_is_interrupted_and_its_denials_are_counted(
    state: Path, capsys: Captured
) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
        log = DenialLog(journal)
        for _ in range(25):
            log.add("exec", CURL)
        log.add("write_file", CURL)

    assert main(["events", "--json"]) == 0

    row = json.loads(capsys.readouterr().out)
    assert row["result"] == "interrupted"
    assert row["denials"] == 11  # ten are recorded of the 25, and the other one


def test_a_damaged_journal_is_listed_as_such(run: Path, capsys: Captured) -> None:
    run.write_bytes(b"garbage\n")

    assert main(["events"]) == 0
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "result"),
    [
        ({"exit_code": 0}, "ok"),
        ({"exit_code": 3}, "exit 3"),
        ({"signal": 9, "exit_code": 137}, "signal 9"),
        ({"timed_out": True, "exit_code": 124}, "timed out"),
        ({"oom": True, "signal": 9}, "out of memory"),
        ({"status": "not started"}, "not started"),
    ],
)
def test_results_are_told_apart(
    fields: dict[str, object], result: str, state: Path, capsys: Captured
) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED)
        journal.append(event.RUN_FINISHED, **fields)

    main(["events", "--json"])

    assert json.loads(capsys.readouterr().out)["result"] == result


def test_the_last_event_is_found_however_long_it_is(state: Path, capsys: Captured) -> None:
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED)
        journal.append(event.RUN_FINISHED, exit_code=0, note="n" * 300_000)

    main(["events", "--json"])

    assert json.loads(capsys.readouterr().out)["result"] == "ok"


def test_only_the_newest_are_listed_unless_all_are_wanted(state: Path, capsys: Captured) -> None:
    for number in range(25):
        Journal.create(state, f"20261130-0430{number:02}-0000").close()

    main(["events"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22
    assert "5 older" in lines[-1]

    main(["events", "--all"])
    assert len(capsys.readouterr().out.splitlines()) == 26


# --- one run


@pytest.mark.parametrize("word", ["last", "20261130-043055-7f3a", "2026", "7f3a"])
def test_a_run_is_printed_readably(word: str, run: Path, capsys: Captured) -> None:
    assert main(["events", word]) == 0

    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == [str(number) for number in range(1, 9)]
    lines = [line.split(maxsplit=2)[2] for line in printed]
    curl = "curl https://example.com [network_egress] (profile: profile.max_risk)"
    why = "— the profile permits up to local_write"
    assert lines == [
        r"root run.started  agent 'fix \x1b[2J it' under profile builder engine=docker",
        "root exec.decided  allow ls [safe] (profile: profile.max_risk)",
        f"root/1 exec.decided  deny  {curl} {why}",
        f"root/1 task.denied  exec: {curl} {why}",
        f"root/1 exec.decided  deny  {curl} {why}",
        f"root/1 exec.decided  deny  {curl} {why}",
        "root/1 task.denied.repeated  exec: curl https://example.com ×3",
        "root run.finished  denials=3 exit_code=1 status=exited",
    ]


def test_json_is_the_lines_as_they_are(run: Path, capsys: Captured) -> None:
    assert main(["events", "last", "--json"]) == 0
    assert capsys.readouterr().out.encode() == run.read_bytes()


@pytest.mark.parametrize(
    ("options", "types"),
    [
        (["--type", "task.denied"], ["task.denied", "task.denied.repeated"]),
        (["--type", "run"], ["run.started", "run.finished"]),
        (["--type", "exec", "--verdict", "allow"], ["exec.decided"]),
        (
            ["--verdict", "deny"],
            ["exec.decided", "task.denied", "exec.decided", "exec.decided", "task.denied.repeated"],
        ),
        (["--type", "run.started", "--type", "run.finished"], ["run.started", "run.finished"]),
        (["--type", "runs"], []),
    ],
)
def test_events_are_chosen_by_type_and_verdict(
    options: list[str], types: list[str], run: Path, capsys: Captured
) -> None:
    assert main(["events", "last", "--json", *options]) == 0
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == types


def test_an_unknown_type_with_a_hostile_field_is_shown_safely(state: Path, capsys: Captured) -> None:
    with Journal.create(state) as journal:
        journal.append("new\x1b.type", **{"na\x1bme": "va\x1blue", "list": ["\u202e"], "raw": "\udcff"})

    main(["events", "last"])

    out = capsys.readouterr().out
    assert all(char == "\n" or char.isprintable() for char in out)
    assert r"raw=\xff" in out


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (ShellText(text="ls\n\x1b"), r"ls\n\x1b"),
        (Exec(argv=("rm", "a b")), "rm 'a b'"),
        (Delegation(profile="p", trust="t", argv=("agent",)), "agent"),
        (FileChange(action=FileAction.RENAME, path="/a", other="/b"), "rename /a (/b)"),
        (FileRead(path="/etc/shadow"), "read /etc/shadow"),
        (Connection(address="1.1.1.1", port=53), "connect 1.1.1.1:53"),
    ],
)
def test_each_kind_of_operation_has_its_words(operation: Operation, text: str) -> None:
    assert operation_text(event.plain(operation)) == text


def test_wrong_words_are_usage_errors(run: Path, capsys: Captured) -> None:
    assert main(["events", "nope"]) == 64
    assert main(["events", "verify", "--all", "last"]) == 64
    assert "no run is called 'nope'" in capsys.readouterr().err


def test_a_file_that_is_no_journal_is_a_clear_error(tmp_path: Path, capsys: Captured) -> None:
    assert main(["events", str(tmp_path / "missing.jsonl")]) == 73
    assert "cannot read" in capsys.readouterr().err


def test_denials_are_counted_with_their_repetitions(run: Path) -> None:
    assert count_denials(read(run)) == 3


# --- what is asked for


@pytest.fixture
def two(state: Path) -> tuple[str, str]:
    """Two runs whose events alternate."""
    ids = ("20261130-043055-0001", "20261130-043056-0002")
    with Journal.create(state, ids[0]) as first, Journal.create(state, ids[1]) as second:
        for journal, profile in ((first, "builder"), (second, "research")):
            journal.append(event.RUN_STARTED, profile=profile)
        for number in range(3):
            for journal in (first, second):
                denied = event.decided(Exec(argv=("git", "push", f"v{number}")), _assess(Risk.NETWORK_EGRESS), CURL)
                journal.append(event.EXEC_DECIDED, task=f"root/{number}", **denied)
    return ids


def printed(capsys: Captured, *words: str) -> list[str]:
    assert main(["events", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--verdict", "deny"], "2 2 3 3 4 4"),
        (["--profile", "research"], "1 2 3 4"),
        (["--task", "root/1"], "3 3"),
        (["--task", "root/1/"], "3 3"),
        (["--task", "root/0", "--task", "root/2"], "2 2 4 4"),
        (["--risk", ">=install"], "2 2 3 3 4 4"),
        (["--risk", "<=install"], ""),
        (["--rule", "program.x", "--profile", "builder"], "2 3 4"),
        (["--rule", "program", "-n", "1"], "4"),
        (["--grep", "push v1"], "3 3"),
        (["--grep", "nothing"], ""),
        (["--limit", "3"], "3 4 4"),
        (["--limit", "0"], ""),
        (["--since", "1h"], "1 1 2 2 3 3 4 4"),
        (["--since", "2999-01-01"], ""),
        (["--until", "2000-01-01T00:00:00Z"], ""),
        (["--since", "1h", "--until", "now", "--no-index", "--type", "run"], "1 1"),
    ],
)
def test_without_a_run_the_options_ask_all_runs(options: list[str], numbers: str, two: tuple[str, str], capsys: Captured) -> None:
    ids = [line.split()[0] for line in printed(capsys, *options)]
    assert [name.partition(":")[2] for name in ids] == numbers.split()
    assert {name.partition(":")[0] for name in ids} <= set(two)


def test_several_runs_are_merged_by_time(two: tuple[str, str], capsys: Captured) -> None:
    rows = [json.loads(line) for line in printed(capsys, two[1], two[0], two[1], "--json")]
    assert [row["run"] for row in rows] == list(two) * 4
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)


def test_a_table_has_a_column_for_each_answer(run: Path, capsys: Captured) -> None:
    heading, *rows = printed(capsys, "last", "--format", "table", "--task", "root/1")
    assert heading.split() == ["ID", "TIME", "(UTC)", "TASK", "TYPE", "VERDICT", "CLASS", "RULE", "WHAT"]
    assert rows[0].split()[3:] == ["root/1", "exec.decided", "deny", "network_egress", "profile.max_risk", "curl", "https://example.com"]
    assert len({row.index("root/1") for row in rows} | {heading.index("TASK")}) == 1


def test_colours_are_for_terminals(run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {how: printed(capsys, "last", "--format", how) for how in ("compact", "table", "json")}
    assert "\x1b" not in "".join("".join(lines) for lines in plain.values())
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    for how, lines in plain.items():
        coloured = printed(capsys, "last", "--format", how)
        assert ("\x1b[31m" in "".join(coloured)) == (how != "json")
        assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == lines


@pytest.mark.parametrize("how", ["compact", "table"])
def test_hostile_fields_are_shown_safely_in_every_form(how: str, state: Path, capsys: Captured) -> None:
    evil = "\x1b[2J\u202e\n"
    with Journal.create(state) as journal:
        journal.append(evil, task=evil, verdict=evil, effects=[evil], rule=evil, reason=evil, layer=evil, **{"class": evil})
        journal.append(event.TASK_DENIED, what=evil, tool=evil, rule=evil, **{"class": evil})
    out = "\n".join(printed(capsys, "last", "--format", how))
    assert all(char == "\n" or char.isprintable() for char in out)
    assert r"\u202e" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--risk", "harmless"], "--risk takes a class"),
        (["--since", "soon"], "'soon' is no time"),
        (["--limit", "-1"], "no number of events"),
        (["--limit", "many"], "no number of events"),
        (["--follow", "--until", "now"], "--follow goes on for ever"),
        (["show"], "name an event"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(options: list[str], words: str, run: Path, capsys: Captured) -> None:
    assert main(["events", *options]) == 64
    assert words in capsys.readouterr().err
