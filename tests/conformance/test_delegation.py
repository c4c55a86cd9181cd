"""Delegation, end to end on each engine: a task inside a sandbox has sub-tasks, and nothing of it widens or is silent."""

from __future__ import annotations

import json
import os
import textwrap
from typing import Any

import pytest

from conformance.driver import Broker, Done

# What an orchestrator inside has: the broker's small client, and a way to talk with a sub-task while it runs.
PRELUDE = """
import json, os, subprocess, sys

def start(*words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE):
    return subprocess.Popen(["broker", "delegate", *words], stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)

def finish(process):
    out, err = process.communicate()
    try:
        outcome = json.loads(out)
    except ValueError:
        raise SystemExit(f"no outcome: {out!r} {err!r}")
    assert outcome["exit_code"] == process.returncode, (outcome, process.returncode)
    return outcome

def delegate(*words, **how):
    return finish(start(*words, **how))

def say(value):
    print(json.dumps(value), flush=True)
"""
WORKER = {"max_risk": "local_write", "effects": {}}
READER = {"max_risk": "safe", "effects": {}, "sandbox": {"image": "python", "workspace": "read-only"}}


@pytest.fixture
def lead(broker: Broker) -> Broker:
    return with_profiles(broker)


def with_profiles(broker: Broker) -> Broker:
    broker.profile("worker", **WORKER)
    broker.profile("coder", max_risk="code_execution", effects={})
    broker.profile("reader", sandbox={"workspace": "read-only"}, max_risk="safe", effects={})
    return broker


def orchestrate(broker: Broker, code: str, **how: Any) -> tuple[list[Any], Done]:
    """Run Python code as the operator's task, and return what it said."""
    # Outside of the workspace, so that what the tasks change is all that there is in it.
    done = broker.run("python3", "-c", PRELUDE + textwrap.dedent(code), **how)
    assert done.code == 0, (done.out, done.err)
    return [json.loads(line) for line in done.out.splitlines()], done


def outcome(broker: Broker, *words: str, **how: Any) -> dict[str, Any]:
    """Have the operator's task delegate once, and return the outcome."""
    [found], _ = orchestrate(broker, f"say(delegate(*{list(words)!r}))", **how)
    assert isinstance(found, dict)
    return found


def test_a_child_sees_its_parents_changes_and_its_own_land_there_and_then_for_real(lead: Broker) -> None:
    lead.file("real", "real\n")
    said, done = orchestrate(lead, """
        open("parents", "w").write("parent\\n")
        say(delegate("--profile", "worker", "--", "bash", "-c", "cat real parents; echo child > childs; rm real; ls"))
        say([open("childs").read(), sorted(os.listdir())])
    """)  # fmt: skip

    child, seen = said
    assert child["stdout"] == "real\nparent\nchilds\nparents\n"
    assert child["changes"]["counts"] == {"landed": 2, "withheld": 0, "conflicts": 0}
    assert seen == ["child\n", ["childs", "parents"]]
    assert sorted(os.listdir(lead.workspace)) == ["childs", "parents"]
    assert done["changes"]["counts"] == {"landed": 3, "withheld": 0, "conflicts": 0}


def test_the_same_when_root_supervises_somebody_elses_workspace(for_somebody: Broker) -> None:
    lead = with_profiles(for_somebody)
    lead.file("real", "real\n")
    said, _ = orchestrate(lead, """
        os.mkdir("made")
        say(delegate("--profile", "worker", "--", "bash", "-c", "echo more >> real; echo child > made/childs; mkdir d; mv real d/"))
        say([open("d/real").read(), open("made/childs").read()])
    """)  # fmt: skip

    assert said[0]["changes"]["counts"]["conflicts"] == 0, said[0]
    assert said[1] == ["real\nmore\n", "child\n"]
    assert (lead.workspace / "d" / "real").read_text() == "real\nmore\n"
    assert (lead.workspace / "d" / "real").stat().st_uid == for_somebody.owner


def test_an_ordinary_users_tasks_delegate_as_well(by_somebody: Broker) -> None:
    said, _ = orchestrate(with_profiles(by_somebody), """
        say(delegate("--profile", "worker", "--", "bash", "-c", "echo child > childs"))
        say(open("childs").read())
    """)  # fmt: skip

    assert said[1] == "child\n"
    assert (by_somebody.workspace / "childs").read_text() == "child\n"


def test_siblings_do_not_see_each_other_and_their_conflict_is_reported(lead: Broker) -> None:
    lead.file("shared", "before\n")
    said, done = orchestrate(lead, """
        command = "echo $0 > shared; echo $0 > of-$0; echo ready >&2; read line; ls; cat shared"
        both = [start("--profile", "worker", "--stdin", "--stream", "--", "bash", "-c", command, name, stdin=subprocess.PIPE)
                for name in ("one", "two")]
        for child in both:
            assert child.stderr.readline() == b"ready\\n"
        for child in both:
            child.stdin.write(b"go\\n")
            child.stdin.flush()
            child.stdin.close()
            child.stdin = None
            say(finish(child))
        say(open("shared").read())
    """)  # fmt: skip

    first, second, left = said
    assert first["stdout"] == "of-one\nshared\none\n"
    assert "two\n" in second["stdout"]
    assert first["changes"]["conflicts"] == []
    assert [row["path"] for row in second["changes"]["conflicts"]] == ["shared"]
    assert left == "one\n"
    assert (lead.workspace / "shared").read_text() == "one\n"
    assert (lead.workspace / "of-two").read_text() == "two\n"
    assert done["status"] == "finished"


def test_a_read_only_child_sees_the_parents_changes_and_can_change_nothing(lead: Broker) -> None:
    said, _ = orchestrate(lead, """
        open("parents", "w").write("parent\\n")
        say(delegate("--profile", "reader", "--", "cat", "parents"))
        say(delegate("--profile", "reader", "--", "touch", "parents"))
    """)  # fmt: skip

    assert said[0]["stdout"] == "parent\n"
    assert (said[1]["status"], said[1]["exit_code"]) == ("denied", 126)


def test_the_mount_of_a_read_only_child_refuses_whoever_writes(lead: Broker) -> None:
    lead.profile("blind", sandbox={"workspace": "read-only"})  # permits any class: only the kernel is left to refuse
    said, _ = orchestrate(lead, """
        open("parents", "w").write("parent\\n")
        say(delegate("--profile", "blind", "--trust", "trusted", "--", "python3", "-c", "open('parents', 'a')"))
        say(delegate("--profile", "blind", "--trust", "trusted", "--", "python3", "-c", "open('new', 'w')"))
    """)  # fmt: skip

    for child in said:
        assert "Read-only file system" in child["stderr"] or "Permission denied" in child["stderr"]
        assert child["exit_code"] == 1
    assert sorted(os.listdir(lead.workspace)) == ["parents"]


def test_what_a_child_may_not_do_is_told_to_every_task_above(lead: Broker) -> None:
    said, done = orchestrate(lead, """
        inner = ["broker", "delegate", "--profile", "coder", "--trust", "trusted", "--", "bash", "-c", "curl http://x.example; true"]
        say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "-c",
                     f"import subprocess; subprocess.run({inner!r})"))
        say(json.loads(subprocess.run(["broker", "denials", "--json"], capture_output=True).stdout))
        say([json.loads(line) for line in open(os.environ["BROKER_DENIALS"])])
    """)  # fmt: skip

    child, asked, file = said
    [row] = child["denials_below"]
    assert (row["of"], row["class"]) == ("root/1/1", "network_egress")
    assert child["denials"] == []
    assert [one["of"] for one in asked["denials_below"]] == ["root/1/1"]
    assert [one["of"] for one in file] == ["root/1/1"]
    events = [event for event in lead.events() if event["type"] == "task.denied"]
    assert [(event["task"], event.get("of")) for event in events] == [
        ("root/1/1", None), ("root/1", "root/1/1"), ("root", "root/1/1"),
    ]  # fmt: skip
    assert done["denied_below"] == 1


TRIES = """
import subprocess
for _ in range(12):
    try:
        subprocess.call(["curl", "x"])
    except OSError:
        pass
"""


def test_a_denial_that_is_repeated_is_counted_in_every_task_above(lead: Broker) -> None:
    lead.file("tries.py", TRIES)
    said, done = orchestrate(lead, """
        say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "tries.py"))
    """)

    assert [row["count"] for row in said[0]["denials"]] == [12]
    assert [(row["of"], row["count"]) for row in done["denials_below"]] == [("root/1", 12)]
    counts = [(event["task"], event["count"]) for event in lead.events() if event["type"] == "task.denied.repeated"]
    assert counts == [("root/1", 10), ("root", 10), ("root/1", 12), ("root", 12)]


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["--", "true"], "finished", 0),
        (["--", "bash", "-c", "exit 3"], "finished", 3),
        (["--limit", "time=1s", "--", "sleep", "60"], "timeout", 124),
        (["--", "curl", "http://x"], "denied", 126),
        (["--", "no-such-program-anywhere"], "not_found", 127),
        (["--", "bash", "-c", "kill -9 $$"], "signalled", 137),
    ],
)
def test_each_way_to_end_has_its_status_and_exit_code(
    lead: Broker, words: list[str], status: str, code: int
) -> None:
    lead.profile("all")
    found = outcome(lead, "--profile", "coder" if "no-such" not in words[-1] else "all", "--trust", "trusted", *words)

    assert (found["status"], found["exit_code"]) == (status, code), found


def test_a_delegation_that_is_refused_is_a_result_and_an_event_in_the_task_that_asked(lead: Broker) -> None:
    found = outcome(lead, "--profile", "no-such", "--", "true")

    assert (found["status"], found["exit_code"], found["rule"]) == ("denied", 77, "delegate.profile")
    decided = [event for event in lead.events() if event["type"] == "delegation.decided"]
    assert [(event["task"], event["verdict"], event["rule"]) for event in decided] == [("root", "deny", "delegate.profile")]
    denied = [event for event in lead.events() if event["type"] == "task.denied"]
    assert [(event["task"], event["tool"]) for event in denied] == [("root", "delegate")]


def test_a_profile_cannot_be_defined_in_the_workspace_nor_named_by_a_path(lead: Broker) -> None:
    lead.file("profiles/mine.json", json.dumps({"profiles": {"mine": {"max_risk": "destructive"}}}))
    for name in ("mine", "../../x", "profiles/mine", str(lead.workspace / "profiles" / "mine.json"), "", "a" * 100):
        said, _ = orchestrate(lead, f"""
            done = subprocess.run(["broker", "delegate", "--profile", {name!r}, "--", "true"], capture_output=True)
            say([done.returncode, done.stdout.decode(), done.stderr.decode()])
        """)  # fmt: skip
        [[code, out, err]] = said
        assert code in (64, 77), (name, out, err)
        assert not [event for event in lead.events() if event["type"] == "task.created" and event["task"] != "root"]


def test_depth_breadth_and_number_are_limited_for_the_whole_tree(lead: Broker) -> None:
    lead.profile("few", delegate={"depth": 1, "breadth": 2, "tasks": 3})
    said, _ = orchestrate(lead, """
        held = [start("--profile", "few", "--trust", "trusted", "--stdin", "--stream", "--",
                      "bash", "-c", "echo ready >&2; read line", stdin=subprocess.PIPE) for _ in range(2)]
        for child in held:
            assert child.stderr.readline() == b"ready\\n"
        say(delegate("--profile", "worker", "--", "true"))
        for child in held:
            child.communicate(b"\\n")
        deeper = ["broker", "delegate", "--profile", "worker", "--", "true"]
        say(delegate("--profile", "few", "--trust", "trusted", "--", *deeper))
        say(delegate("--profile", "worker", "--", "true"))
    """, profile="few")  # fmt: skip

    assert (said[0]["rule"], said[0]["exit_code"], said[0]["status"]) == ("delegate.breadth", 75, "budget")
    assert json.loads(said[1]["stdout"])["rule"] == "delegate.depth"
    assert (said[2]["rule"], said[2]["exit_code"]) == ("delegate.tasks", 75)


def test_an_operator_says_which_profiles_sub_tasks_may_have_and_whether_there_are_any(lead: Broker) -> None:
    lead.profile("choosy", delegate={"profiles": ["worker"]})
    lead.profile("alone", tools={"disabled": ["delegate"]})

    assert outcome(lead, "--profile", "reader", "--", "true", profile="choosy")["rule"] == "delegate.profiles"
    assert outcome(lead, "--profile", "worker", "--", "true", profile="choosy")["status"] == "finished"
    assert outcome(lead, "--profile", "worker", "--", "true", profile="alone")["rule"] == "tool.delegate.disabled"


def test_a_child_may_only_be_narrower_than_the_profile_that_it_selects(lead: Broker) -> None:
    lead.profile("small", sandbox={"memory": "256M", "time": "1m"}, max_risk="local_write", effects={})
    for wider in (["--max-risk", "install"], ["--limit", "memory=1G"], ["--limit", "time=2m"]):
        found = outcome(lead, "--profile", "small", *wider, "--", "true")
        assert (found["rule"], found["exit_code"]) == ("delegate.widens", 77), found

    narrower = outcome(lead, "--profile", "small", "--max-risk", "safe", "--limit", "memory=64M", "--", "touch", "x")
    assert (narrower["max_risk"], narrower["exit_code"]) == ("safe", 126)


def test_trust_is_the_lesser_of_two_and_a_missing_one_is_untrusted(lead: Broker) -> None:
    starts = "broker delegate --profile coder --trust trusted -- true"
    lead.profile("starter", max_risk="code_execution", effects={}, allowlist=[starts])
    said, _ = orchestrate(lead, """
        say(delegate("--profile", "coder", "--", "true"))
        say(delegate("--profile", "starter", "--", "broker", "delegate", "--profile", "coder", "--trust", "trusted", "--", "true"))
    """)  # fmt: skip

    assert (said[0]["trust"], said[0]["max_risk"]) == ("untrusted", "local_write")
    grandchild = json.loads(said[1]["stdout"])
    assert (grandchild["trust"], grandchild["max_risk"]) == ("untrusted", "local_write")
    assert grandchild["narrowed"]


def test_environment_names_that_the_parent_does_not_have_reach_no_child(lead: Broker) -> None:
    lead.environment |= {"OPERATORS_TOKEN": "secret", "SHARED_NAME": "shared"}
    lead.profile("poor", env={"pass": ["SHARED_NAME"]})
    lead.profile("rich", env={"pass": ["OPERATORS_TOKEN", "SHARED_NAME"], "set": {"OWN": "x"}})

    names = "import os; print([f'{name}={value}' for name, value in os.environ.items()])"
    child = outcome(lead, "--profile", "rich", "--trust", "trusted", "--", "python3", "-c", names, profile="poor")

    assert "OPERATORS_TOKEN" not in child["stdout"]
    assert "OWN=" not in child["stdout"]
    assert "SHARED_NAME=shared" in child["stdout"]


def test_a_secret_that_the_parent_does_not_see_is_shown_to_no_child(lead: Broker) -> None:
    lead.file(".env", "KEY=secret\n")
    lead.profile("shown", sandbox={"show": [".env"]})
    lead.file("read.py", "print(open('.env').read())")
    read = ("--profile", "shown", "--trust", "trusted", "--", "python3", "read.py")

    assert "secret" not in outcome(lead, *read)["stdout"]
    assert "secret" in outcome(lead, *read, profile="shown")["stdout"]


def test_persistence_of_a_child_is_withheld_from_its_parents_view(lead: Broker) -> None:
    said, _ = orchestrate(lead, """
        say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "-c",
                     "import os\\nos.makedirs('.github/workflows'); open('.github/workflows/x.yml', 'w').write('on: push'); open('fine', 'w')"))
        say(os.path.exists(".github/workflows/x.yml"))
    """)  # fmt: skip

    assert [row["path"] for row in said[0]["changes"]["withheld"]] or said[0]["denied"], said[0]
    assert said[1] is False
    assert not (lead.workspace / ".github" / "workflows").exists()


def test_a_child_whose_caller_dies_is_ended_and_nothing_of_it_lands(lead: Broker) -> None:
    said, _ = orchestrate(lead, """
        child = start("--profile", "worker", "--stream", "--", "bash", "-c", "echo x > made; echo ready >&2; sleep 600")
        assert child.stderr.readline() == b"ready\\n"
        child.kill()
        child.wait()
        say(sorted(os.listdir()))
    """)  # fmt: skip

    assert said == [[]]
    killed = [event for event in lead.events() if event["type"] == "task.killed"]
    assert [(event["task"], event["reason"]) for event in killed] in ([("root/1", "caller")], [("root/1", "parent")])
    assert list(lead.workspace.iterdir()) == []


def test_children_end_with_their_parent_and_lose_nothing_of_the_record(lead: Broker) -> None:
    _, done = orchestrate(lead, """
        open("daemon.sh", "w").write("setsid sleep 600 & echo ready >&2; curl x; sleep 600")
        child = start("--profile", "coder", "--trust", "trusted", "--stream", "--", "bash", "daemon.sh")
        assert child.stderr.readline() == b"ready\\n"
        while not json.loads(subprocess.run(["broker", "denials", "--json"], capture_output=True).stdout)["denials_below"]:
            pass
    """)  # fmt: skip

    assert done["denied_below"] == 1
    ended = [event for event in lead.events() if event["type"] == "task.finished"]
    assert [(event["task"], event["status"]) for event in ended] == [("root/1", "killed"), ("root", "finished")]


def test_the_request_of_a_task_file_selects_and_narrows_and_reaches_the_agent(lead: Broker) -> None:
    request = {
        "profile": "worker", "command": ["bash", "-c", "cat $BROKER_TASK"], "goal": "review\u202e\x1b[2J", "context": "the diff",
        "trust_level": "trusted", "max_risk": "local_write", "limits": {"time": "1m", "memory": "512M"}, "label": "a review",
    }  # fmt: skip
    said, _ = orchestrate(lead, f"""
        child = start("--request", "-", stdin=subprocess.PIPE)
        out, _ = child.communicate({json.dumps(request)!r}.encode())
        say(json.loads(out))
        say(out.decode())
    """)  # fmt: skip

    task = json.loads(said[0]["stdout"])
    assert (task["goal"], task["context"], task["label"]) == (request["goal"], "the diff", "a review")
    assert "\x1b" not in said[1]
    assert said[0]["trust"] == "trusted"


@pytest.mark.parametrize(
    "text",
    [
        b'{"profile": "worker", "command": ["true"], "allowlist": ["curl x"]}',
        b'{"profile": "worker", "command": ["true"], "effects": {"add": ["network_egress"]}}',
        b'{"profile": "worker", "command": ["true"], "profiles": {"worker": {"max_risk": "destructive"}}}',
        b'{"profile": "worker", "command": ["true"], "max_risk": "destructive"}',
        b'{"profile": "worker", "command": "true"}',
        b'{"profile": "worker", "profile": "any", "command": ["true"]}',
        b'{"profile": {"max_risk": "destructive"}, "command": ["true"]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"profile": "worker", "command": ["' + b"x" * 300_000 + b'"]}',
        b"",
    ],
)
def test_a_task_file_that_would_define_or_widen_or_makes_no_sense_is_refused(
    text: bytes, lead: Broker
) -> None:
    lead.file("request", text)
    said, _ = orchestrate(lead, """
        done = subprocess.run(["broker", "delegate", "--request", "-"], stdin=open("request", "rb"), capture_output=True)
        say([done.returncode, done.stderr.decode(errors="replace")])
    """)  # fmt: skip

    [[code, err]] = said
    assert code in (64, 77), err
    assert not [event for event in lead.events() if event["type"] == "task.created" and event["task"] != "root"]


def test_an_agent_that_the_operator_listed_leads_a_sub_task_and_all_it_starts_is_judged(lead: Broker) -> None:
    agent = lead.folder / "agents"
    agent.mkdir()
    agent.chmod(0o755)
    script = agent / "reviewer"
    script.write_text("#!/bin/sh\necho agent $1; cat real; curl http://x; echo x > written; echo code $?\n")
    script.chmod(0o755)
    lead.file("real", "real\n")
    shown = {"read_only": [str(agent)]}
    lead.profile("boss", sandbox=shown, delegate={"agents": [str(script)]})
    lead.profile("critic", sandbox={**shown, "workspace": "read-only"}, max_risk="safe", effects={})
    lead.profile("strict", sandbox=shown)

    words = ("--profile", "critic", "--trust", "trusted", "--", "reviewer", "now")
    found = outcome(lead, *words, profile="boss")
    assert found["stdout"].startswith("agent now\nreal\n"), found
    assert found["stdout"].endswith("code 2\n") or found["stdout"].endswith("code 1\n")
    assert [row["class"] for row in found["denials"]] == ["network_egress"]

    refused = outcome(lead, "--profile", "critic", "--trust", "trusted", "--", str(script), profile="strict")
    assert (refused["status"], refused["exit_code"]) == ("denied", 126)


def test_a_login_shell_finds_the_client_whatever_the_images_profile_makes_of_path(broker: Broker) -> None:
    done = broker.run("bash", "-lc", "command -v broker")
    assert (done.code, done.out) == (0, b"/run/broker/bin/broker\n")
