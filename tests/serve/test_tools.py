"""The tools of a task, as plain functions on a real sandbox: what they return, what they refuse, what they leave behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tool_clients import Opened

from broker.errors import GuardError, JournalError
from broker.profiles.load import load_profile
from broker.serve.tools import MOST_CALLS, Tools
from broker.serve.tools_inside import MOST_LEFT, Call
from broker.supervisor import RunRequest, Watcher, session
from conformance.driver import Broker, until

pytestmark = pytest.mark.needs_bubblewrap
NO_NETWORK: dict[str, Any] = {"max_risk": "code_execution", "effects": {}}
REFUSAL = {"class", "ceiling", "rule", "approvable", "hint", "layer", "effects", "what", "message", "code"}


def in_thread(work: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Begin a call on another thread; what is returned waits for its result."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def result() -> dict[str, Any]:
        thread.join()
        return found[0]

    return result


# shell


def test_a_shell_text_returns_what_it_wrote_and_how_it_ended(opened: Opened) -> None:
    opened.broker.file("a.txt", "a\n")
    result = opened.ok("shell", command="cat a.txt; pwd; echo oh >&2; exit 3")

    assert (result["status"], result["exit_code"]) == ("finished", 3)
    assert result["stdout"] == f"a\n{opened.broker.workspace}\n"
    assert result["stderr"] == "oh\n"
    assert result["denials"] == []


def test_a_shell_starts_where_it_is_told_and_has_the_tasks_environment(opened: Opened) -> None:
    opened.broker.file("d/e", "")
    assert opened.ok("shell", command="pwd", cwd="d")["stdout"] == f"{opened.broker.workspace}/d\n"
    found = opened.ok("shell", command="echo $HOME $BROKER_DENIALS ${BROKER_LAYER_DIR-none} ${PYTEST_CURRENT_TEST-none}")
    assert found["stdout"] == "/home/agent /run/broker/denials.jsonl none none\n"


def test_what_is_denied_in_the_middle_of_a_shell_text_is_in_its_result(opened: Opened, open_tools: Callable[..., Opened]) -> None:
    opened.broker.profile("quiet", **NO_NETWORK)
    quiet = open_tools("quiet")
    result = quiet.ok("shell", command="echo before; curl http://example.com; curl http://example.com; echo after")

    assert result["stdout"] == "before\nafter\n"
    [denial] = result["denials"]
    assert (denial["class"], denial["count"], denial["tool"]) == ("network_egress", 2, "exec")
    assert denial["hint"]
    assert quiet.ok("shell", command="true")["denials"] == []
    [again] = quiet.ok("shell", command="curl http://example.com; true")["denials"]
    assert again["count"] == 1
    assert quiet.ok("denials")["denials"][0]["count"] == 3
    assert [tool for _task, tool, _denial in quiet.denied] == ["exec"]


def test_a_shell_text_that_may_not_start_at_all_is_refused_as_a_value(open_tools: Callable[..., Opened], bubble: Broker) -> None:
    bubble.profile("quiet", **NO_NETWORK)
    result = open_tools("quiet").call("shell", command="echo x > .git/hooks/pre-commit")

    assert result["code"] == "denied"
    assert set(result) == REFUSAL
    assert (result["class"], result["ceiling"]) == ("persistence", "code_execution")


def test_at_its_time_limit_all_that_a_shell_started_is_ended(opened: Opened) -> None:
    result = opened.call("shell", command="setsid sleep 1000 & echo started; sleep 1000", timeout=0.5)

    assert result["code"] == "timeout"
    assert result["stdout"] == "started\n"
    assert opened.ok("shell", command="pgrep sleep || echo none")["stdout"] == "none\n"


def test_a_cancelled_call_ends_what_runs(opened: Opened) -> None:
    call = Call()
    result = in_thread(lambda: opened.call("shell", call=call, command="touch begun; exec sleep 1000"))
    until(lambda: opened.ok("shell", command="ls")["stdout"] == "begun\n", "the command's start")
    call.ask()

    assert result()["code"] == "cancelled"
    assert opened.ok("shell", command="pgrep sleep || echo none")["stdout"] == "none\n"


def test_a_call_that_was_cancelled_before_it_began_runs_nothing_for_long(opened: Opened) -> None:
    call = Call()
    call.ask()
    assert opened.call("shell", call=call, command="sleep 1000")["code"] == "cancelled"


def test_a_server_in_the_background_goes_on_and_is_said_to(opened: Opened) -> None:
    result = opened.ok("shell", command="sleep 1000 & echo started")
    assert (result["stdout"], result["left_running"]) == ("started\n", True)
    assert opened.ok("shell", command="pgrep -c sleep")["stdout"] == "1\n"
    assert opened.ok("shell", command="true")["left_running"] is False


def test_what_is_left_running_takes_a_bounded_number_of_our_descriptors(opened: Opened) -> None:
    for _ in range(MOST_LEFT + 4):
        opened.ok("shell", command="sleep 1000 &")
    until(lambda: opened.ok("shell", command="pgrep -c sleep")["stdout"] == f"{MOST_LEFT}\n", "the end of the oldest")


def test_many_calls_leave_no_descriptors_behind(opened: Opened) -> None:
    opened.ok("shell", command="true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        opened.ok("shell", command="true")
        opened.call("read_file", path="missing")
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "the end of the threads")


def test_long_output_is_kept_at_both_ends_and_takes_bounded_room(opened: Opened) -> None:
    result = opened.ok("shell", command="echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo last")

    assert result["stdout"].startswith("first\n")
    assert result["stdout"].endswith("last\n")
    assert "bytes left out" in result["stdout"]
    assert result["stdout_bytes"] == 20_000_011
    assert len(result["stdout"]) < 70_000


def test_output_that_is_no_text_is_shown_escaped(opened: Opened) -> None:
    assert opened.ok("shell", command="printf '\\377\\200ok'")["stdout"] == "\\xff\\x80ok"


def test_the_tasks_cap_of_output_counts_what_tools_write(open_tools: Callable[..., Opened], bubble: Broker) -> None:
    bubble.profile("terse", sandbox={"output": 100_000})
    terse = open_tools("terse")
    terse.call("shell", command="yes | head -c 90000")
    with pytest.raises(GuardError):  # the task is over
        terse.call("shell", command="yes", timeout=30)

    assert terse.session.budget.exceeded
    assert terse.session.budget.written == 100_000


# files


def test_a_file_is_read_in_pieces_that_never_cut_a_character(opened: Opened) -> None:
    text = "äöü€" * 100
    opened.broker.file("a.txt", text)
    found, offset = "", 0
    while True:
        piece = opened.ok("read_file", path="a.txt", offset=offset, length=101)
        found += piece["text"]
        if "next_offset" not in piece:
            break
        assert piece["next_offset"] == offset + piece["bytes"]
        offset = piece["next_offset"]

    assert found == text
    assert piece["size"] == len(text.encode())


def test_bytes_that_are_no_text_come_as_base64_and_go_back_so(opened: Opened) -> None:
    opened.broker.file("a.bin", b"\xff\x00\xfe")
    assert opened.ok("read_file", path="a.bin")["base64"] == "/wD+"
    opened.ok("write_file", path="b.bin", base64="/wD+")
    assert opened.ok("shell", command="cmp a.bin b.bin && echo same")["stdout"] == "same\n"
    assert opened.call("write_file", path="c", base64="?")["code"] == "invalid"


@pytest.mark.parametrize(("path", "code"), [("missing", "not_found"), ("a.txt/x", "not_found"), (".", "failed"), ("pipe", "failed")])
def test_what_cannot_be_read_says_why(opened: Opened, path: str, code: str) -> None:
    opened.broker.file("a.txt", "")
    opened.ok("shell", command="mkfifo pipe")
    result = opened.call("read_file", path=path)
    assert result["code"] == code
    assert path.strip(".") in result["message"]


def test_a_file_is_read_and_written_in_the_sandbox_and_nowhere_else(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    assert opened.call("read_file", path=str(tmp_path / "secret"))["code"] == "not_found"
    opened.ok("write_file", path="/tmp/only-inside", content="x")
    assert not os.path.lexists("/tmp/only-inside")
    opened.ok("write_file", path="deep/er/file", content="x")
    assert not (opened.broker.workspace / "deep").exists()
    assert opened.call("write_file", path="/usr/bin/planted", content="x")["code"] in ("denied", "not_permitted", "failed")


def test_a_link_leads_no_tool_out(opened: Opened) -> None:
    opened.broker.file(".git/hooks/x", "")
    for name, target in (("a", "/etc/shadow"), ("h", ".git/hooks")):
        os.symlink(target, opened.broker.workspace / name)
    assert opened.call("read_file", path="a")["code"] in ("not_found", "not_permitted")
    result = opened.call("write_file", path="h/pre-commit", content="x")
    assert (result["code"], result.get("class")) == ("denied", "persistence"), result


def test_a_protected_file_is_refused_with_all_that_a_refusal_has(opened: Opened) -> None:
    for tool, args in (("write_file", {"content": "x"}), ("patch", {"old_string": "a", "new_string": "b"})):
        opened.broker.file(".envrc", "a")
        result = opened.call(tool, path=".envrc", **args)
        assert set(result) >= REFUSAL, result
        assert (result["code"], result["class"]) == ("denied", "persistence")


def test_a_version_that_was_read_guards_what_is_written(opened: Opened) -> None:
    opened.broker.file("a.txt", "one")
    version = opened.ok("read_file", path="a.txt")["version"]
    opened.ok("write_file", path="a.txt", content="two", version=version)
    assert opened.call("write_file", path="a.txt", content="three", version=version)["code"] == "changed"
    assert opened.call("write_file", path="a.txt", content="three", create_only=True)["code"] == "changed"
    assert opened.ok("read_file", path="a.txt")["text"] == "two"
    assert opened.call("write_file", path="a.txt", content="x", version="nonsense")["code"] == "invalid"


def test_a_patched_file_keeps_its_mode_and_everything_else(opened: Opened) -> None:
    opened.broker.file("run.sh", b"#!/bin/sh\necho old \xff\n", 0o755)
    assert opened.ok("patch", path="run.sh", old_string="old", new_string="new")["edits"] == 1
    assert opened.ok("shell", command="stat -c %a run.sh; tail -c 6 run.sh | od -An -tx1")["stdout"] == "755\n 6e 65 77 20 ff 0a\n"


def test_a_patch_that_does_not_fit_changes_nothing_and_says_why(opened: Opened) -> None:
    opened.broker.file("a.txt", "one\none\n")
    result = opened.call("patch", path="a.txt", old_string="one", new_string="two")
    assert result["code"] == "no_match"
    assert "occurs 2 times" in result["message"]
    opened.ok("patch", path="a.txt", diff="@@ -2 +2 @@\n-one\n+two\n")
    assert opened.ok("read_file", path="a.txt")["text"] == "one\ntwo\n"


def test_a_batch_changes_every_file_or_none(opened: Opened) -> None:
    for name in "ab":
        opened.broker.file(name, f"{name}\n")
    edits = [{"path": "a", "old_string": "a", "new_string": "A"}, {"path": "b", "old_string": "x", "new_string": "B"}]
    result = opened.call("batch_patch", edits=edits)
    assert (result["code"], result["message"][:9]) == ("no_match", "edits[1]:")
    assert opened.ok("shell", command="cat a b")["stdout"] == "a\nb\n"

    edits[1]["old_string"] = "b"
    edits.append({"path": "./a", "old_string": "A", "new_string": "AA"})
    assert [row["edits"] for row in opened.ok("batch_patch", edits=edits)["files"]] == [2, 1]
    assert opened.ok("shell", command="cat a b")["stdout"] == "AA\nB\n"


def test_a_batch_of_which_one_file_may_not_be_changed_changes_none(opened: Opened) -> None:
    for name in ("a", ".envrc"):
        opened.broker.file(name, "x\n")
    result = opened.call("batch_patch", edits=[{"path": name, "old_string": "x", "new_string": "y"} for name in ("a", ".envrc")])
    assert (result["code"], result["class"]) == ("denied", "persistence")
    assert opened.ok("read_file", path="a")["text"] == "x\n"


def test_what_a_batch_wrote_is_put_back_when_a_later_file_cannot_be_written(opened: Opened) -> None:
    opened.broker.file("a", "x\n")
    opened.broker.file("locked/b", "x\n")
    opened.ok("shell", command="chmod a-w locked")  # it can be read, and nothing can be renamed into it
    if opened.ok("shell", command="id -u")["stdout"] == "0\n":
        opened.ok("shell", command="test ! -w locked || echo writable")
    result = opened.call("batch_patch", edits=[{"path": name, "old_string": "x", "new_string": "y"} for name in ("a", "locked/b")])

    assert result["code"] in ("not_permitted", "failed"), result
    assert (result["put_back"], result["not_put_back"]) == (1, [])
    assert opened.ok("shell", command="cat a locked/b")["stdout"] == "x\nx\n"


# What the profile takes away


def test_a_disabled_tool_is_not_listed_and_refused_by_name(open_tools: Callable[..., Opened], bubble: Broker) -> None:
    bubble.profile("less", tools={"disabled": ["shell", "write_file", "delegate"]})
    less = open_tools("less")

    listed = [tool.name for tool in less.tools.listed()]
    assert listed == ["read_file", "patch", "batch_patch", "plan", "list_subagent_profiles", "can_i", "explain", "denials"]
    for tool, args in (("shell", {"command": "true"}), ("write_file", {"path": "a", "content": ""}), ("delegate_tasks", {"tasks": []})):
        result = less.call(tool, **args)
        assert (result["code"], set(result)) == ("denied", REFUSAL)
    assert [denial.rule for _task, _tool, denial in less.denied] == ["tool.shell.disabled", "tool.write_file.disabled", "tool.delegate.disabled"]


def test_a_read_only_task_can_read_and_change_nothing(open_tools: Callable[..., Opened], bubble: Broker) -> None:
    bubble.file("a.txt", "a")
    bubble.profile("reader", sandbox={"workspace": "read-only"})
    reader = open_tools("reader")
    assert reader.ok("read_file", path="a.txt")["text"] == "a"
    assert reader.call("write_file", path="b.txt", content="")["code"] in ("failed", "not_permitted")
    assert reader.call("patch", path="a.txt", old_string="a", new_string="b")["code"] in ("failed", "not_permitted")


# Sub-tasks


def test_sub_tasks_run_at_once_and_each_has_its_outcome(opened: Opened) -> None:
    opened.broker.file("a.txt", "a\n")
    # Each waits for the other: one after the other would never end.
    opened.broker.profile("worker", max_risk="local_write", effects={})
    tasks = [
        {"profile": "worker", "command": ["cat", "a.txt"], "label": "one"},
        {"profile": "worker", "command": ["touch", ".envrc"], "label": "two"},
        {"profile": "nobody", "command": ["true"], "label": "three"},
    ]
    one, two, three = opened.ok("delegate_tasks", tasks=tasks)["tasks"]

    assert (one["stdout"], one["exit_code"], one["trust"]) == ("a\n", 0, "untrusted")
    assert two["exit_code"] != 0
    assert two["denials"][0]["class"] == "persistence"
    assert (three["status"], three["task"]) == ("denied", "")
    assert {row["of"] for row in opened.ok("denials")["denials_below"]} == {two["task"]}
    assert opened.ok("task_result", task=one["task"])["task"]["stdout"] == "a\n"


def test_a_single_refused_sub_task_is_a_refusal(opened: Opened) -> None:
    result = opened.call("delegate_tasks", tasks=[{"profile": "any", "command": ["true"], "max_risk": "destructive"}])
    assert set(result) >= REFUSAL
    assert (result["code"], result["rule"]) == ("denied", "delegate.widens")


@pytest.mark.parametrize(("task", "why"), [
    ({"profile": "any", "command": ["true"], "allowlist": ["x"]}, "tasks[0].allowlist: a request selects a profile"),
    ({"profile": "../../x", "command": ["true"]}, "tasks[0].profile: write the name of a profile"),
    ({"profile": "any", "command": "true"}, "tasks[0].command: it must be a list, not text"),
    ({"profile": "any"}, "tasks[0].command: it is missing"),
])  # fmt: skip
def test_a_request_that_would_define_or_makes_no_sense_starts_nothing(opened: Opened, task: dict[str, Any], why: str) -> None:
    result = opened.call("delegate_tasks", tasks=[task])
    assert result["code"] == "invalid"
    assert result["message"].startswith(why)
    assert not any(row["type"] == "delegation.decided" for row in opened.broker.events())


def test_a_sub_task_that_is_not_waited_for_has_its_result_later(opened: Opened) -> None:
    opened.broker.file("go", "")
    [row] = opened.ok("delegate_tasks", tasks=[{"profile": "any", "trust_level": "trusted", "command": ["sleep", "0.2"]}], wait=False)["tasks"]
    assert row["status"] == "running"
    assert opened.ok("task_result", task=row["task"], wait=60)["task"]["status"] == "finished"
    assert opened.call("task_result", task="root/99")["code"] == "not_found"


def test_a_client_that_is_gone_leaves_no_sub_task_behind(opened: Opened) -> None:
    sleeper = {"profile": "any", "trust_level": "trusted", "command": ["sleep", "1000"]}
    [row] = opened.ok("delegate_tasks", tasks=[sleeper], wait=False)["tasks"]
    waiting = in_thread(lambda: opened.call("delegate_tasks", tasks=[sleeper]))
    tree = opened.session.stage.run.tree
    until(lambda: len([node for node in tree.picture() if node["state"] == "running"]) == 3, "both sub-tasks")
    opened.tools.close()

    assert waiting()["code"] == "cancelled"
    assert {node["task"]: node["status"] for node in tree.picture()} == {"root": "", row["task"]: "killed", "root/2": "killed"}


def test_the_profiles_for_sub_tasks_say_what_is_left_of_them_here(opened: Opened) -> None:
    rows = {row["name"]: row for row in opened.ok("list_subagent_profiles")["profiles"]}
    assert rows["adversary"]["here"]["workspace"] == "read-only"


# Questions


def test_a_question_is_answered_and_nothing_is_run_or_refused(open_tools: Callable[..., Opened], bubble: Broker) -> None:
    bubble.profile("quiet", **NO_NETWORK)
    quiet = open_tools("quiet")
    assert quiet.ok("can_i", command=["touch", "x"])["verdict"] == "allow"
    answer = quiet.ok("can_i", shell="touch x && curl http://example.com")
    assert (answer["verdict"], answer["refused"]) == ("deny", ["network_egress"])
    assert quiet.call("can_i")["code"] == "invalid"
    assert [part["argv"] for part in quiet.ok("explain", text="cat a | wc -l")["parts"]] == [["cat", "a"], ["wc", "-l"]]
    assert quiet.ok("denials")["denials"] == []


# The record, and bounds


def test_each_call_is_one_event_without_any_content(opened: Opened) -> None:
    opened.call("shell", command="echo x")
    opened.call("write_file", path="a.txt", content="the content")
    opened.call("patch", path="a.txt", old_string="none of it", new_string="x")
    opened.call("patch", file="a.txt")
    opened.call("can_i", command=["ls", "a b"])

    assert opened.called() == [
        ("shell", "echo x", "ok"), ("write_file", "a.txt", "ok"), ("patch", "a.txt", "no_match"), ("patch", "", "invalid"),
        ("can_i", "ls 'a b'", "ok"),
    ]  # fmt: skip
    assert "the content" not in opened.broker.journals()[-1].read_text()


def test_every_result_is_what_the_tools_schema_says(opened: Opened) -> None:
    shapes = {tool.name: tool.shape for tool in opened.tools.listed()}
    opened.broker.file("a.txt", "a\n")
    for name, args in (
        ("shell", {"command": "true"}), ("shell", {"command": "sleep 9", "timeout": 0.1}), ("shell", {}),
        ("read_file", {"path": "a.txt"}), ("read_file", {"path": "b"}), ("write_file", {"path": ".envrc", "content": ""}),
        ("patch", {"path": "a.txt", "old_string": "a", "new_string": "b"}), ("batch_patch", {"edits": [{"path": "x", "diff": "y"}]}),
        ("delegate_tasks", {"tasks": [{"profile": "any", "command": ["true"]}]}), ("delegate_tasks", {"tasks": [{"profile": "x", "command": ["y"]}]}),
        ("task_result", {"task": "root/1"}), ("task_result", {"task": "x"}), ("list_subagent_profiles", {}), ("can_i", {"shell": "ls"}),
        ("explain", {"text": "ls | sh"}), ("denials", {}),
    ):  # fmt: skip
        jsonschema.Draft202012Validator(dict(shapes[name].gives)).validate(opened.call(name, **args))  # type: ignore[arg-type]


def test_more_calls_at_once_than_may_be_are_told_to_wait(opened: Opened) -> None:
    calls = [Call() for _ in range(MOST_CALLS)]
    results = [in_thread(lambda call=call: opened.call("shell", call=call, command="sleep 1000")) for call in calls]  # type: ignore[misc]
    until(lambda: opened.call("denials")["code"] == "busy", "all calls")
    for call in calls:
        call.ask()

    assert {result()["code"] for result in results} == {"cancelled"}
    assert opened.call("denials")["code"] == "ok"


def test_when_the_sandbox_is_gone_a_call_says_so_and_does_not_wait(opened: Opened) -> None:
    result = in_thread(lambda: _gone(opened))
    until(lambda: any(row["type"] == "exec.decided" for row in opened.broker.events()), "the command")
    opened.session.stage.sandbox.kill()
    assert result() == {"gone": True}


def _gone(opened: Opened) -> dict[str, Any]:
    try:
        return opened.call("shell", command="sleep 1000")
    except GuardError:
        return {"gone": True}


def test_what_cannot_be_recorded_ends_the_task(bubble: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_LAYER_DIR", str(bubble.layers))
    profile = load_profile("any", profile_dirs=(str(bubble.profiles),))
    request = RunRequest(argv=("t",), profile=profile, workspace=str(bubble.workspace), engine="bubblewrap", state_dir=bubble.state)
    with pytest.raises(JournalError), session(request, Watcher()) as opened:
        tools = Tools(opened.stage, opened.budget)
        opened.stage.run.journal.close()
        with pytest.raises(JournalError):
            tools.call("write_file", {"path": "a", "content": ""}, Call())
        until(bubble.nothing_survives, "the end of the sandbox")
        tools.close()
    assert not (bubble.workspace / "a").exists()
