"""A task's judge: what it answers to the guard, and that the record comes first."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import AllowEntry, Profile, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Deny
from broker.enforce import wire
from broker.errors import JournalError
from broker.record.journal import Journal, read
from broker.request.operation import Exec
from broker.task.task import OPERATOR_SCOPE, Task

PROFILE = Profile(
    name="builder", max_risk=Risk.LOCAL_WRITE, effects=up_to(Risk.LOCAL_WRITE),
    allowlist=(AllowEntry(argv=("make", "test")),),
)  # fmt: skip


class Bench:
    """A task with a real journal, and the questions of an imagined guard."""

    def __init__(self, place: Path) -> None:
        self.told: list[Deny] = []
        self.run_dir = place / "run"
        self.run_dir.mkdir()
        self.journal = Journal.create(place / "state")
        self.task = Task(
            path="root", envelope=Envelope(profile=PROFILE, trust=Trust.TRUSTED),
            context=Context(cwd="/w", home="/home/agent", workspace="/w"), journal=self.journal,
            run_dir=str(self.run_dir), tell=lambda _tool, denial: self.told.append(denial),
        )  # fmt: skip
        self.number = 0

    def ask(
        self, *argv: str, scope: int = 0, path: str = "", program: str = "", shebang: str = "", pid: int = 7
    ) -> wire.Answer:
        """Ask about a program start."""
        self.number += 1
        where = path or (argv[0] if argv[0].startswith("/") else f"/usr/bin/{argv[0]}")
        return self.task.exec_asked(
            wire.ExecAsked(
                request=self.number, pid=pid, spawn=1, scope=scope, dev=1, ino=2, path=where, program=program or where,
                cwd="/w",
                shebang=shebang, argv=argv, env=(("PATH", "/usr/bin:/bin"),),
            )
        )  # fmt: skip

    def events(self, kind: str) -> list[dict[str, object]]:
        """What the journal holds of this type."""
        return [event for event in read(self.journal.path) if event["type"] == kind]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A fresh one."""
    return Bench(tmp_path)


def test_each_answer_is_recorded_before_it_is_given(bench: Bench) -> None:
    assert bench.ask("ls").allow
    assert not bench.ask("curl", "https://example.com").allow
    assert [event["verdict"] for event in bench.events("exec.decided")] == ["allow", "deny"]


def test_without_a_record_there_is_no_answer(bench: Bench) -> None:
    bench.journal.close()
    with pytest.raises(JournalError):
        bench.ask("ls")


def test_a_denial_is_told_recorded_and_readable_inside(bench: Bench) -> None:
    answer = bench.ask("curl", "https://example.com")
    assert "curl reaches out to the network" in answer.note
    assert [denial.risk for denial in bench.told] == [Risk.NETWORK_EGRESS]
    [row] = (bench.run_dir / "denials.jsonl").read_text().splitlines()
    assert json.loads(row)["class"] == "network_egress"
    assert len(bench.events("task.denied")) == 1


def test_the_second_name_of_a_file_along_path_is_refused_and_not_told_again(bench: Bench) -> None:
    bench.ask("curl", "x", path="/usr/bin/curl")
    again = bench.ask("curl", "x", path="/bin/curl", program="/usr/bin/curl")
    assert not again.allow
    assert again.note == ""
    assert bench.task.denials.total == 1
    bench.ask("curl", "x", path="/usr/bin/curl")
    assert bench.task.denials.total == 2
    bench.ask("curl", "x", path="/usr/bin/curl", pid=8)
    assert bench.task.denials.total == 3


def test_an_entry_opens_a_scope_and_its_children_stay_in_it(bench: Bench) -> None:
    scope = bench.ask("make", "test").scope
    assert scope not in (wire.SCOPE_UNCHANGED, 0)
    assert bench.ask("python3", "run.py", scope=scope).allow
    assert not bench.ask("curl", "x", scope=scope).allow
    assert not bench.ask("python3", "run.py").allow
    assert bench.ask("make", "test").scope == scope


def test_a_scope_that_was_never_given_out_has_no_grant(bench: Bench) -> None:
    assert not bench.ask("python3", "run.py", scope=99).allow


def test_the_operators_command_and_its_wrappers_start_once(bench: Bench) -> None:
    bench.task.operators_choice(Exec(argv=("env", "A=1", "timeout", "5", "python3", "agent.py"), cwd="/w"))
    assert bench.ask("env", "A=1", "timeout", "5", "python3", "agent.py", scope=OPERATOR_SCOPE).scope == OPERATOR_SCOPE
    assert bench.ask("timeout", "5", "python3", "agent.py", scope=OPERATOR_SCOPE).scope == OPERATOR_SCOPE
    assert bench.ask("python3", "agent.py", scope=OPERATOR_SCOPE).scope == 0
    assert not bench.ask("python3", "agent.py", scope=0).allow
    assert not bench.ask("python3", "agent.py", scope=OPERATOR_SCOPE).allow


def test_what_a_shell_of_the_operator_starts_is_judged(bench: Bench) -> None:
    bench.task.operators_choice(Exec(argv=("sh", "-c", "curl x"), cwd="/w"))
    assert bench.ask("sh", "-c", "curl x", scope=OPERATOR_SCOPE).allow
    assert not bench.ask("curl", "x", scope=OPERATOR_SCOPE).allow


def test_a_script_that_names_its_interpreter_through_env_starts(bench: Bench) -> None:
    bench.task.operators_choice(Exec(argv=("./agent", "--fast"), cwd="/w"))
    first = bench.ask("./agent", "--fast", scope=OPERATOR_SCOPE, path="/w/agent", shebang="/usr/bin/env python3")
    assert first.scope == OPERATOR_SCOPE
    assert bench.ask("python3", "./agent", "--fast", scope=OPERATOR_SCOPE, path="/usr/bin/python3").allow


def refused_connection(bench: Bench, text: str) -> None:
    """Tell the task of an attempt to connect, as the guard does."""
    bench.task.noted(wire.Note(kind=wire.NoteKind.NET_REFUSED, pid=3, spawn=1, text=text))


def test_an_attempt_to_get_out_is_a_denial_that_names_the_address_and_the_program(bench: Bench) -> None:
    refused_connection(bench, "/usr/bin/curl 192.0.2.1:443 tcp")
    [denial] = bench.told
    assert denial.what == "connect to 192.0.2.1:443 (/usr/bin/curl)"
    assert (denial.effects, denial.rule, denial.layer.value) == ({Risk.NETWORK_EGRESS}, "net.refused", "kernel")
    assert [row["tool"] for row in bench.events("task.denied")] == ["connect"]


def test_attempts_to_get_out_are_counted_for_ever_and_hide_no_other_note(bench: Bench) -> None:
    for _ in range(5_000):
        refused_connection(bench, "/usr/bin/curl 192.0.2.1:443 tcp")
    bench.task.noted(wire.Note(kind=wire.NoteKind.EXEC_RACE, pid=3, spawn=1, text="/usr/bin/curl"))
    assert [row["count"] for row in bench.task.denials.as_result()] == [5_000, 1]
    assert len(bench.told) == 2
    assert bench.task.races == 1


@pytest.mark.parametrize(
    ("program", "shown"),
    [("/w/a b 1.2.3.4:5 tcp", "/w/a b 1.2.3.4:5 tcp"), ("/w/\x1b[2J\n", "/w/\\x1b[2J\\n"), ("?", "?"), ("/w/\udcff", "/w/\\xff")],
)
def test_a_programs_name_cannot_pass_for_an_address_nor_repaint_a_terminal(bench: Bench, program: str, shown: str) -> None:
    refused_connection(bench, f"{program} [2001:db8::1]:443 udp")
    assert [denial.what for denial in bench.told] == [f"connect to [2001:db8::1]:443 ({shown})"]


def test_a_connection_to_a_port_goes_to_whoever_serves_it_or_ends(bench: Bench) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        bench.task.connection_came(47100, theirs)
        assert ours.recv(1) == b""
    ours, theirs = socket.socketpair()
    served: list[tuple[int, socket.socket]] = []
    bench.task.connected = lambda port, connection: served.append((port, connection))
    with ours, theirs:
        bench.task.connection_came(47100, theirs)
        assert served == [(47100, theirs)]


def test_a_race_that_the_guard_killed_is_a_denial_and_an_event(bench: Bench) -> None:
    bench.task.noted(wire.Note(kind=wire.NoteKind.EXEC_RACE, pid=3, spawn=1, text="/usr/bin/curl"))
    assert bench.task.races == 1
    assert [denial.rule for denial in bench.told] == ["exec.race"]
    assert len(bench.events("exec.race")) == 1
