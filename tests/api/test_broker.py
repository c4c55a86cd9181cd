"""Broker: what a program of the operator's does with an open sandbox, on each engine."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from api.made_in_code import a_profile
from broker import (
    Broker,
    BrokerError,
    Changes,
    Denial,
    HostCannotEnforce,
    Outcome,
    ProfileError,
    TaskRequest,
    UsageError,
    define_profile,
)
from conformance.driver import until

Make = Callable[..., Broker]


def test_a_program_runs_and_its_exit_code_and_streams_come_back(broker: Broker) -> None:
    done = broker.run(["bash", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.status, done.exit_code, done.stdout, done.stderr, done.ok) == ("finished", 3, "out\n", "err\n", False)
    assert (done.stdout_bytes, done.stderr_bytes, done.denials) == (4, 4, ())
    assert broker.run(["true"]).ok


def test_programs_share_one_view_and_what_they_change_lands_at_the_end(make: Make, workspace: Path) -> None:
    with make() as opened:
        opened.run(["bash", "-c", "mkdir made; echo 1 > made/one"])
        assert opened.run(["cat", "made/one"]).stdout == "1\n"
        assert opened.run(["cat", "one"], cwd="made").stdout == "1\n"
        assert not (workspace / "made").exists()
        with pytest.raises(UsageError, match="is not over"):
            _ = opened.result
    assert (workspace / "made" / "one").read_text() == "1\n"
    changes = opened.result.changes
    assert {(one.path, one.change) for one in changes.landed} == {("made", "created"), ("made/one", "created")}
    assert (changes.landed_count, changes.kept, opened.result.status) == (2, "", "finished")
    assert opened.result.usage.wall_seconds > 0
    assert Path(opened.result.journal) == opened.journal
    assert opened.journal.read_text().count('"run.finished"') == 1


def test_a_refusal_is_a_value_and_not_an_exception(make: Make) -> None:
    with make(a_profile(effects={})) as opened:
        done = opened.run(["curl", "https://example.com"])
        assert (done.status, done.exit_code) == ("denied", 126)
        [denial] = done.denials
        assert (denial.what, denial.risk, denial.task) == ("curl https://example.com", "network_egress", "root")
        assert denial.hint
        assert denial.rule
        assert opened.denials() == done.denials
    assert opened.result.denials == (denial,)
    assert opened.result.denied == 1


def test_what_a_program_starts_is_judged_and_its_denials_are_in_its_result_and_in_no_other(make: Make) -> None:
    with make(a_profile(effects={})) as opened:
        first = opened.run(["bash", "-c", "curl https://a.example; curl https://a.example; echo on"])
        second = opened.run(["bash", "-c", "curl https://a.example; curl https://b.example"])
        third = opened.run(["true"])
    assert first.stdout == "on\n"
    assert [(one.what, one.count) for one in first.denials] == [("curl https://a.example", 2)]
    assert [(one.what, one.count) for one in second.denials] == [("curl https://a.example", 1), ("curl https://b.example", 1)]
    assert third.denials == ()
    assert opened.result.denied == 4


def test_stdin_environment_and_a_callback_reach_the_program(broker: Broker) -> None:
    heard: list[tuple[str, bytes]] = []
    done = broker.run(
        ["bash", "-c", 'cat; echo "$WORD" >&2'], input="häh", env={"WORD": "x y"}, on_output=lambda *told: heard.append(told)
    )
    assert (done.stdout, done.stderr) == ("häh", "x y\n")
    assert sorted(heard) == [("stderr", b"x y\n"), ("stdout", "häh".encode())]
    assert broker.run(["cat"]).stdout == ""
    large = b"\0\xff" * 300_000
    assert broker.run(["wc", "-c"], input=large).stdout.strip() == str(len(large))


def test_of_a_long_output_the_beginning_and_the_end_are_kept(broker: Broker) -> None:
    done = broker.run(["bash", "-c", "echo begin; yes | head -c 1000000; echo end"], keep=1000)
    assert done.stdout_bytes == 1_000_010
    assert len(done.stdout) < 1200
    assert done.stdout.startswith("begin\n")
    assert done.stdout.endswith("end\n")
    assert "bytes left out" in done.stdout


def test_a_time_limit_ends_a_program_and_all_that_it_started(broker: Broker, inside: Callable[[], list[int]]) -> None:
    before = len(inside())
    done = broker.run(["bash", "-c", "setsid sleep 1000 & sleep 1000"], timeout=0.5)
    assert (done.status, done.exit_code) == ("timeout", 124)
    until(lambda: len(inside()) == before, "the end of what it started", 10.0)
    assert broker.run(["true"]).ok


def test_what_a_program_leaves_running_ends_with_it(broker: Broker, inside: Callable[[], list[int]]) -> None:
    before = len(inside())
    assert broker.run(["bash", "-c", "setsid sleep 1000 & echo done"]).stdout == "done\n"
    until(lambda: len(inside()) == before, "the end of what it left running", 10.0)


def test_a_program_that_is_not_there_says_so(broker: Broker) -> None:
    done = broker.run(["./nothing-of-this-name"])
    assert (done.status, done.exit_code) == ("not_found", 127)


def test_a_callback_that_raises_ends_the_program_and_raises_in_the_caller(broker: Broker) -> None:
    def refuse(_stream: str, _data: bytes) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        broker.run(["bash", "-c", "echo; sleep 1000"], on_output=refuse)
    with pytest.raises(LookupError, match="mine"):
        broker.delegate(profile="adversary", command=["bash", "-c", "echo; sleep 1000"], on_output=refuse)
    assert broker.run(["true"]).ok


def test_an_exception_keeps_the_changes_and_lands_nothing(make: Make, workspace: Path) -> None:
    with pytest.raises(ValueError, match="mine"), make() as opened:
        opened.run(["touch", "new"])
        raise ValueError("mine")
    assert not (workspace / "new").exists()
    assert opened.result.changes.kept == opened.run_id


def test_discard_throws_the_changes_away(make: Make, workspace: Path, folder: Path) -> None:
    with make() as opened:
        opened.run(["touch", "new"])
        assert opened.discard().changes.kept == ""
    assert not (workspace / "new").exists()
    assert [one for one in (folder / "layers").iterdir() if one.name == opened.run_id] == []


def test_land_never_keeps_and_a_function_decides_when_it_is_given(make: Make, workspace: Path) -> None:
    with make(land="never") as kept:
        kept.run(["touch", "one"])
    assert kept.result.changes.kept == kept.run_id
    seen: list[Changes] = []

    def only_two(changes: Changes) -> bool:
        seen.append(changes)
        return [one.path for one in changes.landed] == ["two"]

    for name in ("two", "three"):
        with make(land=only_two) as asked:
            asked.run(["touch", name])
    assert [one.landed[0].path for one in seen] == ["two", "three"]
    assert sorted(one.name for one in workspace.iterdir()) == ["two"]
    assert asked.result.changes.kept == asked.run_id


def test_a_landing_function_that_raises_lands_nothing_and_raises(make: Make, workspace: Path) -> None:
    def broken(_changes: Changes) -> bool:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"), make(land=broken) as opened:
        opened.run(["touch", "one"])
    assert list(workspace.iterdir()) == []
    assert opened.result.changes.kept == opened.run_id


def test_what_may_not_land_is_in_the_result_with_its_reason(make: Make, workspace: Path) -> None:
    (workspace / "package.json").write_text('{"scripts": {"test": "node t.js"}}\n')
    with make() as opened:
        opened.run(["bash", "-c", """echo x > f; cp package.json p; sed 's/"test/"postinstall/' p > package.json"""])
    changes = opened.result.changes
    assert {one.path for one in changes.landed} == {"f", "p"}
    [withheld] = changes.withheld
    assert (withheld.path, withheld.change, withheld.risk) == ("package.json", "changed", "persistence")
    assert "postinstall" in withheld.reason
    assert (changes.withheld_count, changes.kept) == (1, opened.run_id)


def test_a_sub_task_may_do_less_and_its_denials_are_in_its_outcome(make: Make, workspace: Path) -> None:
    (workspace / "file").write_text("content\n")
    (workspace / "tool").write_text("#!/bin/sh\n")
    (workspace / "tool").chmod(0o755)
    with make() as opened:
        outcome = opened.delegate(
            profile="adversary", command=["bash", "-c", "cat file; cat $BROKER_TASK; exit 5"],
            label="review", goal="find faults", limits={"time": "30s"},
        )  # fmt: skip
        assert (outcome.status, outcome.exit_code, outcome.ok) == ("finished", 5, False), outcome
        assert outcome.stdout.startswith("content\n")
        assert '"goal": "find faults"' in outcome.stdout
        assert (outcome.profile, outcome.trust, outcome.label, outcome.task) == ("adversary", "untrusted", "review", "root/1")
        assert (outcome.effects, outcome.max_risk, outcome.run) == (("safe",), "safe", opened.run_id)
        assert outcome.denials == ()
        refused = opened.delegate(profile="adversary", command=["./tool"])
        assert (refused.status, refused.exit_code, refused.denied) == ("denied", 126, 1)
        assert [(one.what, one.task) for one in refused.denials] == [("./tool", "root/2")]
        assert opened.denials() == refused.denials
        [root, first, second] = opened.tasks()
        assert (root.task, first.parent, first.state, first.label, second.denied) == ("root", "root", "ended", "review", 1)
    assert opened.result.denials_below == refused.denials


def test_a_sub_task_reads_stdin_and_changes_land_in_the_parents_view(make: Make, workspace: Path) -> None:
    with make(profiles=[a_profile("worker")]) as opened:
        outcome = opened.delegate(
            profile="worker", command=["bash", "-c", "cat > made; pwd"], trust="trusted", input=b"in", cwd="."
        )
        assert outcome.ok, outcome
        assert outcome.stdout == f"{workspace}\n"
        assert [one.path for one in outcome.changes.landed] == ["made"]
        assert opened.run(["cat", "made"]).stdout == "in"
        assert not (workspace / "made").exists()
    assert (workspace / "made").read_text() == "in"


def test_a_request_can_be_a_task_file_or_its_content(broker: Broker, folder: Path) -> None:
    table = {"profile": "adversary", "command": ["ls"], "max_risk": "safe", "label": "from a file"}
    path = folder / "task.json"
    path.write_text(json.dumps(table))
    for request in (path, str(path), table, TaskRequest(profile="adversary", argv=("ls",), label="from a file")):
        outcome = broker.delegate(request)
        assert (outcome.ok, outcome.label) == (True, "from a file"), outcome
    for wrong, said in (
        ({**table, "allowlist": ["x"]}, "allowlist: a request selects a profile and narrows it"),
        ({**table, "command": "ls"}, "command: write it as a list of words"),
        (folder / "missing.json", "cannot be read: No such file"),
    ):
        with pytest.raises(UsageError, match=said):
            broker.delegate(wrong)
    with pytest.raises(UsageError, match="says all that is to be said"):
        broker.delegate(table, label="twice")


def test_asking_for_more_than_a_profile_has_is_refused_as_a_value(broker: Broker) -> None:
    outcome = broker.delegate(profile="adversary", command=["ls"], max_risk="network_egress")
    assert (outcome.status, outcome.exit_code, outcome.rule) == ("denied", 77, "delegate.widens")
    assert (outcome.task, [one.task for one in outcome.denials]) == ("", ["root"])
    unknown = broker.delegate(profile="no-such-profile", command=["ls"])
    assert unknown.rule == "delegate.profile"


def test_several_sub_tasks_run_next_to_each_other_in_the_order_of_asking(make: Make) -> None:
    requests = [{"profile": "adversary", "command": ["bash", "-c", f"echo {n}; exit {n}"], "label": f"{n}"} for n in range(10)]
    with make() as opened:
        outcomes = opened.delegate_many(requests)
        assert [one.exit_code for one in outcomes] == list(range(10))
        assert [(one.stdout, one.label) for one in outcomes] == [(f"{number}\n", str(number)) for number in range(10)]
        assert opened.delegate_many([]) == ()


def test_eight_sub_tasks_run_at_once(make: Make) -> None:
    with make() as opened:
        done: list[Outcome] = []
        waiting = [{"profile": "adversary", "command": ["sleep", "1000"]}] * 9
        thread = threading.Thread(target=lambda: done.extend(opened.delegate_many(waiting)))
        thread.start()
        # The ninth waits for one of them to end; were there fewer at once, there would never be eight that run.
        until(lambda: sum(one.state == "running" for one in opened.tasks()[1:]) == 8, "eight sub-tasks at once")
        assert len(opened.tasks()) == 9
        for number in range(1, 10):
            until(lambda number=number: opened.kill(f"root/{number}"), "the sub-task")  # type: ignore[misc]
        thread.join()
    assert [one.status for one in done] == ["killed"] * 9


def test_files_are_read_and_written_inside_and_a_newer_one_is_not_overwritten(make: Make, workspace: Path) -> None:
    (workspace / "old").write_bytes(b"one\n\xff")
    with make() as opened:
        old = opened.read_file("old")
        assert (old.status, old.data, old.text, old.size, old.ok) == ("ok", b"one\n\xff", "one\n\\xff", 5, True)
        assert opened.read_file(old.path, offset=2, most=2).data == b"e\n"
        assert opened.write_file("old", b"two", version=old.version).ok
        assert opened.write_file("old", "three", version=old.version).status == "changed"
        assert opened.write_file("made/new", "four", new=True).ok
        assert opened.write_file("made/new", "five", new=True).status == "changed"
        large = bytes(range(256)) * 20_000
        assert opened.write_file("large", large).size == len(large)
        assert opened.read_file("large").data == large
        assert opened.read_file("missing").status == "not_found"
        assert opened.read_file("made").status == "failed"
        assert (workspace / "old").read_bytes() == b"one\n\xff"
    assert (workspace / "old").read_bytes() == b"two"
    assert (workspace / "made" / "new").read_text() == "four"
    assert opened.journal.read_text().count('"tool.called"') == 10


def test_a_folder_that_is_not_there_is_not_taken_for_a_missing_command(make: Make) -> None:
    with make() as opened:
        ran = opened.run(["true"], cwd="missing")
        assert (ran.status, ran.exit_code) == ("failed", 126)
        assert ran.reason == "the command did not start: No such file or directory (chdir)"
        assert opened.run(["no-such-program"]).status == "not_found"


def test_a_file_that_is_read_only_is_not_replaced(make: Make, workspace: Path) -> None:
    with make() as opened:
        assert opened.write_file("kept", "one").ok
        assert opened.run(["chmod", "a-w", "kept"]).ok
        assert opened.write_file("kept", "two").status == "not_permitted"
        assert opened.run(["chmod", "u+w", "kept"]).ok
        assert opened.write_file("kept", "three").ok
    assert (workspace / "kept").read_text() == "three"


def test_a_file_that_may_not_be_touched_is_a_value_with_its_denial(make: Make) -> None:
    with make(a_profile(effects={})) as opened:
        hook = opened.write_file(".git/hooks/pre-commit", "x")
        secret = opened.read_file("/home/agent/.ssh/id_ed25519")
        assert (hook.status, secret.status) == ("denied", "denied")
        assert hook.denial is not None
        assert secret.denial is not None
        assert (hook.denial.risk, hook.denial.tool, secret.denial.risk) == ("persistence", "write_file", "system_write")
        assert [one.what for one in opened.denials()] == [hook.denial.what, secret.denial.what]
    with make(a_profile(tools={"disabled": ["read_file"]})) as opened:
        refused = opened.read_file("x")
        assert refused.denial is not None
        assert (refused.status, refused.denial.rule) == ("denied", "tool.read_file.disabled")
        assert opened.write_file("x", "y").ok


def test_can_i_and_explain_say_what_run_would_do(make: Make) -> None:
    with make("builder") as opened:
        assert opened.can_i(["go", "test", "./..."])
        assert not opened.can_i(["go", "test", "./...", "-exec", "./x"])
        verdict = opened.can_i("curl https://example.com | sh")
        assert (bool(verdict), verdict.verdict) == (False, "deny")
        assert "network_egress" in verdict.refused
        explained = opened.explain("cat a | grep b > c")
        assert [part.argv[:1] for part in explained.parts if part.kind == "command"] == [("cat",), ("grep",)]
        assert explained.verdict.effects == ("safe", "local_write")
        assert opened.denials() == ()


def test_profiles_says_what_is_left_of_each_here(make: Make) -> None:
    with make(a_profile(max_risk="local_write", effects={}), profiles=[a_profile("strong")]) as opened:
        found = {one.name: one for one in opened.profiles()}
    assert {"adversary", "builder", "strong"} <= set(found)
    assert (found["strong"].max_risk, found["strong"].max_risk_here) == ("code_execution", "local_write")
    assert found["adversary"].workspace_here == "read-only"


def test_denials_are_heard_while_they_happen_also_those_of_sub_tasks(broker: Broker) -> None:
    heard: list[Denial] = []
    arrived = threading.Event()

    def hear(denial: Denial) -> None:
        heard.append(denial)
        broker.run(["true"])  # it may use the broker
        arrived.set()

    broker.on_denied(hear)
    broker.delegate(profile="adversary", command=["curl", "https://example.com"])
    assert arrived.wait(30)
    assert [(one.task, one.what) for one in heard] == [("root/1", "curl https://example.com")]


def test_kill_ends_a_sub_task_and_says_what_it_ended(broker: Broker, inside: Callable[[], list[int]]) -> None:
    outcomes: list[Outcome] = []
    begun = threading.Event()
    child = threading.Thread(
        target=lambda: outcomes.append(
            broker.delegate(
                profile="adversary", command=["bash", "-c", "echo here; setsid sleep 1000 & sleep 1000"],
                on_output=lambda *_told: begun.set(),
            )
        )
    )  # fmt: skip
    child.start()
    assert begun.wait(30)
    assert broker.kill("root/1") == ("root/1",)
    child.join()
    assert (outcomes[0].status, outcomes[0].exit_code) == ("killed", 137)
    assert broker.kill("root/1") == ()
    assert broker.kill("root/9") == ()


def test_an_output_cap_of_the_profile_counts_all_programs_together(make: Make) -> None:
    with make(a_profile(sandbox={"output": 100_000})) as opened:
        assert opened.run(["bash", "-c", "head -c 60000 /dev/zero"]).ok
        second = opened.run(["bash", "-c", "head -c 60000 /dev/zero; sleep 1000"])
        assert (second.status, second.signal) == ("output", "SIGKILL")
        third = opened.run(["true"])
        assert third.status == "output"
    assert opened.result.status == "output"


def test_run_once_is_broker_run(folder: Path, engine: str, workspace: Path, state: Path) -> None:
    outcome = Broker.run_once(
        ["bash", "-c", "cat; echo made > made; curl https://example.com"], a_profile(effects={}), workspace, engine=engine,  # type: ignore[arg-type]
        run={"input": "in\n", "cwd": "."},
    )
    assert (outcome.stdout, outcome.task, outcome.engine) == ("in\n", "root", engine)
    assert [one.what for one in outcome.denials] == ["curl https://example.com"]
    assert [one.path for one in outcome.changes.landed] == ["made"]
    assert len(list((state / "runs").glob("*.jsonl"))) == 1
    judged = Broker.run_once(["curl", "x.example"], "adversary", workspace, engine=engine, judged=True)  # type: ignore[arg-type]
    assert (judged.status, judged.exit_code) == ("denied", 126)
    slow = Broker.run_once(["sleep", "1000"], a_profile(), workspace, engine=engine, run={"timeout": 0.3})  # type: ignore[arg-type]
    assert (slow.status, slow.exit_code) == ("timeout", 124)


def test_run_once_without_capture_has_the_callers_streams(workspace: Path, state: Path, engine: str) -> None:
    script = (
        "from broker import Broker\n"
        f"done = Broker.run_once(['bash', '-c', 'cat; echo err >&2; exit 4'], 'default', {str(workspace)!r},"
        f" engine={engine!r}, image='python' if {engine!r} == 'docker' else '', capture=False)\n"
        "raise SystemExit(done.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input="in", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, "in", "err\n")


def test_results_are_frozen_and_plain_data(make: Make) -> None:
    with make(a_profile(effects={})) as opened:
        done = opened.run(["curl", "x.example"])
        values = [done, opened.explain("ls | wc"), opened.can_i(["ls"]), *opened.profiles(), *opened.tasks()]
    for value in (*values, opened.result):
        table = value.as_dict()
        assert json.loads(json.dumps(table)).keys() == table.keys()
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, next(iter(table)), "x")
    assert done.as_dict()["denials"][0]["risk"] == "network_egress"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trust": "some"}, "trust is trusted or untrusted"),
        ({"land": "sometimes"}, "land is auto, never, on-plan, or a function"),
        ({"profile_dirs": "/etc"}, r"profile_dirs is a list of folders: \['/etc'\]"),
        ({"profiles": ["builder"]}, "a profile is a name, or what define_profile returns"),
    ],
)
def test_an_option_that_makes_no_sense_is_said_before_anything_is_made(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Broker(a_profile(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("ls -l", {}, "a command is a list of words"),
        ([], {}, "at least one word"),
        (["", "x"], {}, "the first is not empty"),
        (7, {}, "a command is a list of words"),
        (["a\0b"], {}, "each word of a command must be without NUL"),
        (["ls", 1], {}, "each word of a command must be text, not int"),
        (["ls", "\ud800"], {}, "half of a character"),
        (["ls"], {"timeout": 0}, "seconds above 0"),
        (["ls"], {"timeout": float("nan")}, "seconds above 0"),
        (["ls"], {"timeout": float("inf")}, "seconds above 0"),
        (["ls"], {"timeout": "1m"}, "seconds above 0"),
        (["ls"], {"keep": 0}, "keep is a number of bytes, 64 at least"),
        (["ls"], {"cwd": 7}, "cwd must be text"),
        (["ls"], {"env": {"A=B": "c"}}, "'A=B' cannot be a variable's name"),
        (["ls"], {"env": {"A": 1}}, "the variable A must be text, not int"),
        (["ls"], {"input": 7}, "input is bytes or text"),
        (["x" * 200_000], {}, "the command is too long"),
    ],
)
def test_a_command_that_makes_no_sense_is_one_sentence(
    bubblewrapped: Broker, command: object, options: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        bubblewrapped.run(command, **options)  # type: ignore[arg-type]


def test_a_question_that_makes_no_sense_is_one_sentence(bubblewrapped: Broker) -> None:
    for ask, said in (
        (lambda: bubblewrapped.can_i([]), "at least one word"),
        (lambda: bubblewrapped.can_i("a\0b"), "a shell text must be without NUL"),
        (lambda: bubblewrapped.explain(["ls"]), "explain takes a shell text; it must be text, not list"),  # type: ignore[arg-type]
        (bubblewrapped.delegate, "profile: it is missing|at least one word"),
        (lambda: bubblewrapped.delegate(profile="adversary", command=["ls"], limits={"files": 1}), "no such limit"),
        (lambda: bubblewrapped.delegate(TaskRequest(profile="../../x", argv=("ls",))), "profile: write the name of a profile"),
        (lambda: bubblewrapped.delegate_many("task.json"), "delegate_many takes a list of requests"),
        (lambda: bubblewrapped.read_file("x", offset=-1), "count bytes"),
        (lambda: bubblewrapped.write_file("x", 7), "content is bytes or text, not int"),  # type: ignore[arg-type]
        (lambda: bubblewrapped.write_file("x", "", version="1"), "as read_file returned it"),
        (lambda: bubblewrapped.write_file("x", "", version="1 2 3", new=True), "give one of them"),
        (lambda: bubblewrapped.read_file("x\0y"), "a path must be without NUL"),
    ):
        with pytest.raises(UsageError, match=said):
            ask()  # type: ignore[no-untyped-call]
    assert bubblewrapped.denials() == ()
    assert [one.task for one in bubblewrapped.tasks()] == ["root"]


def test_what_is_text_and_no_utf_8_goes_through(bubblewrapped: Broker) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert bubblewrapped.run(["touch", name]).ok
    assert bubblewrapped.run(["ls"]).stdout == "caf\\xe9\n"
    assert bubblewrapped.write_file(name, b"x").ok
    assert bubblewrapped.read_file(name).data == b"x"
    assert bubblewrapped.can_i(["cat", name])


def test_an_engine_that_is_not_there_is_an_error_with_the_remedy_and_it_can_be_opened_again(
    workspace: Path, state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/no-docker-here")
    opened = Broker(a_profile(), workspace, engine="docker")
    for _ in range(2):
        with pytest.raises(HostCannotEnforce, match="use --engine bubblewrap"):
            opened.open()
    with pytest.raises(UsageError, match="is not open"):
        _ = opened.result


def test_a_record_that_cannot_be_written_ends_the_task(workspace: Path, state: Path, engine: str, inside: object) -> None:
    script = """
import resource, signal, sys
from api.made_in_code import a_profile
from broker import Broker, JournalError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
b = Broker(a_profile(), sys.argv[1], engine=sys.argv[2]).open()
resource.setrlimit(resource.RLIMIT_FSIZE, (b.journal.stat().st_size, resource.RLIM_INFINITY))
for use in (lambda: b.run(["touch", "new"]), lambda: b.write_file("new", ""), lambda: b.run(["true"]), b.close):
    try:
        print(use())
    except JournalError as error:
        print("JournalError")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(workspace), engine], capture_output=True, text=True, check=False, env=env
    )
    assert (done.stdout.splitlines(), done.stderr) == (["JournalError"] * 4, "")
    assert list(workspace.iterdir()) == []


def test_a_broker_that_is_not_open_or_closed_says_so(make: Make) -> None:
    opened = make()
    with pytest.raises(UsageError, match="is not open"):
        opened.run(["true"])
    with opened:
        pass
    for use in (lambda: opened.run(["true"]), opened.tasks, opened.denials, opened.profiles):
        with pytest.raises(UsageError, match="is closed"):
            use()
    with pytest.raises(UsageError, match="opened already"):
        opened.open()
    assert opened.close() == opened.result


def test_a_profile_made_in_code_is_checked_like_a_file() -> None:
    profile = define_profile("mine", max_risk="local_write", allowlist=["go test ./..."], permits=["go test ./..."])
    assert profile.digest
    assert define_profile("mine", max_risk="local_write", allowlist=["go test ./..."]).digest == profile.digest
    for keys, said in (
        ({"max_risk": "harmless"}, "harmless"),
        ({"denylst": []}, "denylist"),
        ({"max_risk": "safe", "permits": ["make"]}, "make"),
        ({"max_risk": object()}, "not JSON serializable"),
    ):
        with pytest.raises(ProfileError, match=said) as raised:
            define_profile("mine", **keys)
        assert "made in code" in str(raised.value)
        assert isinstance(raised.value, BrokerError)
