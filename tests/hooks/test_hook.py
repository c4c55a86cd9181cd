"""`broker hook` as a process: what it answers each agent, what blocks, and what is recorded before it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hooked_host import Host, command_of

from broker.record.run_files import list_runs
from broker.record.verify import verify

SHELLS = {"claude": "Bash", "codex": "Bash", "gemini": "run_shell_command", "opencode": "bash"}
WRITERS = {"claude": ("Write", "file_path"), "gemini": ("write_file", "file_path"), "opencode": ("write", "filePath")}


def denied(answer: dict[str, Any], dialect: str) -> str:
    """The reason of a refusal in this dialect."""
    if dialect in ("gemini", "opencode"):
        assert answer["decision"] == "deny"
        return str(answer["reason"])
    told = answer["hookSpecificOutput"]
    assert told["hookEventName"] == "PreToolUse"
    assert told["permissionDecision"] == "deny"
    return str(told["permissionDecisionReason"])


def rewritten(answer: dict[str, Any], dialect: str) -> dict[str, Any]:
    """The new input of a tool in this dialect."""
    found: dict[str, Any]
    if dialect == "opencode":
        assert answer["decision"] == "allow"
        found = answer["tool_input"]
    elif dialect == "gemini":
        assert answer["decision"] == "allow"
        found = answer["hookSpecificOutput"]["tool_input"]
    else:
        assert answer["hookSpecificOutput"]["permissionDecision"] == "allow"
        found = answer["hookSpecificOutput"]["updatedInput"]
    return found


# What is answered


@pytest.mark.parametrize("dialect", SHELLS)
def test_a_shell_command_is_rewritten_into_the_sandbox_word_by_word(host: Host, dialect: str) -> None:
    command = "echo 'it''s' \"$HOME\" `id`\ncat <<'E'\n'\\''\nE\n# ünïcode ! %s"
    event = host.event(SHELLS[dialect], {"command": command, "timeout": 7}, dialect)
    new = rewritten(host.answer(event, "--trust", "untrusted", "--engine", "bubblewrap"), dialect)
    words = command_of(new["command"])
    assert words[-4:] == ["--", "bash", "-c", command]
    assert words[:4] == [sys.executable, "-m", "broker", "exec"]
    assert new["timeout"] == 7
    for pair in (("--profile", "builder"), ("--workspace", str(host.workspace)), ("--trust", "untrusted"), ("--engine", "bubblewrap")):
        assert words[words.index(pair[0]) + 1] == pair[1]


@pytest.mark.needs_bubblewrap
def test_a_rewritten_command_runs_in_the_sandbox_in_the_folder_it_was_meant_for_and_lands_what_it_may(host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    event = host.event("Bash", {"command": f"pwd; id -un; echo x > new.txt; (echo y > {outside}) 2>/dev/null; ls /sys/class/net"})
    command = rewritten(host.answer(event, "--engine", "bubblewrap", profile_of(host, tmp_path)), "claude")["command"]
    done = subprocess.run(["bash", "-c", command], cwd=host.workspace / "src", env=host.environment, capture_output=True, text=True)
    assert done.stdout.split()[:2] == [str(host.workspace / "src"), "agent"], done.stderr
    assert (host.workspace / "src" / "new.txt").read_text() == "x\n"
    assert not outside.exists()


def profile_of(host: Host, tmp_path: Path) -> str:
    """An option that makes `builder` permit a write anywhere: what stops it then is the sandbox."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "p.toml").write_text('[profiles.builder]\nmax_risk = "destructive"\neffects = {add = ["unknown"]}\nrequires = []\n')
    return f"--profile-dir={folder}"


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_file_tool_is_allowed_in_the_project_and_denied_where_it_plants_something(host: Host, dialect: str) -> None:
    tool, key = WRITERS[dialect]
    fine = host.answer(host.event(tool, {key: str(host.workspace / "a.txt"), "content": "x"}, dialect))
    assert fine.get("decision", fine.get("hookSpecificOutput", {}).get("permissionDecision")) == "allow"
    said = denied(host.answer(host.event(tool, {key: str(host.workspace / ".git/hooks/pre-commit"), "content": "x"}, dialect)), dialect)
    assert "persistence" in said
    assert "profile builder permits only" in said
    assert "[path.persistence:.git/hooks/ · profile]" in said


CALLS: list[tuple[str, str, dict[str, Any], str]] = [
    ("claude", "Read", {"file_path": "{ws}/a.txt"}, "allow"),
    ("claude", "Read", {"file_path": "~/.ssh/id_rsa"}, "deny"),
    ("claude", "Read", {"file_path": "src/../.env"}, "deny"),
    ("claude", "Edit", {"file_path": "{ws}/a.txt", "old_string": "a", "new_string": "b"}, "allow"),
    ("claude", "Edit", {"file_path": "/etc/passwd", "old_string": "a", "new_string": "b"}, "deny"),
    ("claude", "MultiEdit", {"file_path": "{ws}/a.txt", "edits": [{"old_string": "a", "new_string": "b"}]}, "allow"),
    ("claude", "NotebookEdit", {"notebook_path": "{ws}/a.ipynb", "new_source": "x"}, "allow"),
    ("claude", "Grep", {"pattern": "x"}, "allow"),
    ("claude", "Grep", {"pattern": "x", "path": "/root/.ssh"}, "deny"),
    ("claude", "Write", {"file_path": "{ws}/package.json", "content": '{"scripts": {"postinstall": "curl x | sh"}}'}, "deny"),
    ("claude", "Write", {"file_path": "{ws}/package.json", "content": '{"name": "x"}'}, "allow"),
    ("claude", "Write", {"file_path": "{ws}/link", "content": "x"}, "deny"),
    ("claude", "Write", {"file_path": "/tmp/not-mine", "content": "x"}, "deny"),
    ("claude", "WebFetch", {"url": "https://example.com/x", "prompt": "x"}, "deny"),
    ("claude", "WebFetch", {"url": "http://[", "prompt": "x"}, "deny"),
    ("claude", "WebSearch", {"query": "x"}, "deny"),
    ("claude", "TodoWrite", {"todos": []}, ""),
    ("claude", "Workflow", {}, "deny"),
    ("claude", "mcp__broker__shell", {"command": "curl x"}, "deny"),
    ("codex", "apply_patch", {"command": "*** Begin Patch\n*** Add File: b.txt\n+x\n*** End Patch"}, "allow"),
    ("codex", "apply_patch", {"command": "*** Begin Patch\n*** Add File: .git/hooks/x\n+x\n*** End Patch"}, "deny"),
    ("codex", "apply_patch", {"command": "*** Begin Patch\n*** Update File: a.txt\n*** Move to: ../b.txt\n*** End Patch"}, "deny"),
    ("codex", "Bash", {"command": "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a.txt\n*** End Patch\nEOF"}, "allow"),
    ("codex", "write_stdin", {"session_id": 1, "chars": "x"}, ""),
    ("codex", "update_plan", {"plan": []}, ""),
    ("codex", "spawn_agent", {}, "deny"),
    ("gemini", "replace", {"file_path": "{ws}/a.txt", "old_string": "a", "new_string": "b"}, "allow"),
    ("gemini", "read_many_files", {"include": ["a.txt", "/root/.ssh/id_rsa"]}, "deny"),
    ("gemini", "list_directory", {"dir_path": "{ws}"}, "allow"),
    ("gemini", "web_fetch", {"prompt": "read https://example.com"}, "deny"),
    ("gemini", "write_todos", {"todos": []}, ""),
    ("gemini", "save_memory", {"fact": "x"}, "deny"),
    ("opencode", "edit", {"filePath": "{ws}/a.txt", "oldString": "a", "newString": "b"}, "allow"),
    ("opencode", "read", {"filePath": "/root/.ssh/id_rsa"}, "deny"),
    ("opencode", "todowrite", {"todos": []}, "allow"),
]  # fmt: skip


def filled(host: Host, value: Any) -> Any:
    """The input with the project's path in it."""
    return json.loads(json.dumps(value).replace("{ws}", str(host.workspace)))


def said_of(answer: dict[str, Any]) -> str:
    """allow, deny, or nothing, in whatever dialect."""
    return str(answer.get("decision") or answer.get("hookSpecificOutput", {}).get("permissionDecision", ""))


def test_each_tool_is_judged_by_what_it_does_and_each_is_recorded(host: Host) -> None:
    (host.workspace / "a.txt").write_text("a")
    (host.workspace / "link").symlink_to(host.home / ".bashrc")
    found = []
    for dialect, tool, arguments, _ in CALLS:
        found.append((dialect, tool, arguments, said_of(host.answer(host.event(tool, filled(host, arguments), dialect)))))
    assert found == CALLS
    outcomes = {"allow": "allowed", "deny": "denied", "": "passed"}
    called = [(one["tool"], one["outcome"]) for one in host.events("tool.called")]
    assert called == [(tool, "passed" if tool == "todowrite" else outcomes[said]) for _, tool, _, said in CALLS]


def test_a_heredoc_that_ends_before_its_patch_does_is_a_command_like_any_other(host: Host) -> None:
    for command in (
        "apply_patch <<'E'\n*** Add File: a\nE\ncurl x\nE", "apply_patch <<E\n*** Add File: $(curl x)\nE", "apply_patch <<'E'; id\n*** Add File: a\nE",
    ):  # fmt: skip
        new = rewritten(host.answer(host.event("Bash", {"command": command}, "codex")), "codex")
        assert command_of(new["command"])[-1] == command


def test_in_verdict_mode_a_command_is_only_judged_and_nothing_is_typed_into_what_runs(host: Host) -> None:
    allowed = host.answer(host.event("Bash", {"command": "ls && go test ./..."}), "--mode", "verdict")
    assert allowed == {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
    assert "network_egress" in denied(host.answer(host.event("Bash", {"command": "ls; curl x"}), "--mode", "verdict"), "claude")
    blocked = host.hook(host.event("write_stdin", {"chars": "curl x\n"}, "codex"), "--mode", "verdict")
    assert (blocked.returncode, blocked.stdout) == (2, b"")


def test_a_tool_that_nobody_knows_goes_on_when_the_operator_says_so(host: Host) -> None:
    event = host.event("mcp__github__search", {})
    assert "hook.unknown_tool" in denied(host.answer(event), "claude")
    assert host.answer(event, "--pass", "mcp__github__*") == {}
    assert host.answer(event, "--pass", "mcp__github__search") == {}
    assert said_of(host.answer(event, "--pass", "mcp__git")) == "deny"
    # Nor does that open what is known.
    assert said_of(host.answer(host.event("Read", {"file_path": "/root/.ssh/id_rsa"}), "--pass", "Read")) == "deny"


def test_claude_code_asks_its_user_where_one_is_there_and_nobody_else_is_asked(host: Host) -> None:
    event = host.event("Bash", {"command": "make deploy"}, permission_mode="default")
    assert said_of(host.answer(event, "--mode", "verdict")) == "deny"
    host.environment["CLAUDE_CODE_SESSION_ATTENDED"] = "1"
    assert said_of(host.answer(event, "--mode", "verdict")) == "ask"
    bypassing = host.event("Bash", {"command": "make deploy"}, permission_mode="bypassPermissions")
    assert said_of(host.answer(bypassing, "--mode", "verdict")) == "deny"
    assert said_of(host.answer(host.event("Bash", {"command": "make deploy"}, "codex"), "--mode", "verdict")) == "deny"


# What blocks


MALFORMED: list[tuple[str, bytes]] = [
    ("nothing", b""), ("spaces", b"  \n"), ("no JSON", b"{"), ("a list", b"[]"), ("not UTF-8", b'{"session_id": "\xff"}'),
    ("nested", b"[" * 200_000), ("huge", b'{"x": "' + b"x" * (17 << 20) + b'"}'), ("NaN", b"NaN"),
]  # fmt: skip
WRONG: list[dict[str, Any]] = [
    {"hook_event_name": None}, {"hook_event_name": "PostToolUse"}, {"hook_event_name": 3}, {"session_id": None}, {"session_id": ""},
    {"session_id": "x" * 1000}, {"session_id": {}}, {"cwd": None}, {"cwd": "relative"}, {"cwd": "/a\0b"}, {"tool_name": ""}, {"tool_name": []},
    {"tool_input": None}, {"tool_input": "ls"}, {"tool_input": {}}, {"tool_input": {"command": None}}, {"tool_input": {"command": ["ls"]}},
    {"tool_name": "Write", "tool_input": {"file_path": "a"}}, {"tool_name": "Write", "tool_input": {"file_path": "a\0", "content": ""}},
    {"tool_name": "Edit", "tool_input": {"file_path": "a", "old_string": 1, "new_string": ""}},
    {"tool_name": "MultiEdit", "tool_input": {"file_path": "a", "edits": "x"}},
]  # fmt: skip


def blocks(done: subprocess.CompletedProcess[bytes]) -> str:
    """What is said where the tool was blocked, in the one way that all agents obey."""
    assert (done.returncode, done.stdout) == (2, b"")
    said = done.stderr.decode()
    assert said.startswith("broker: ")
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(("name", "data"), MALFORMED)
def test_what_is_no_event_blocks(host: Host, name: str, data: bytes) -> None:
    blocks(host.hook(data))


@pytest.mark.parametrize("more", WRONG)
def test_an_event_with_a_wrong_field_blocks(host: Host, more: dict[str, Any]) -> None:
    event = json.loads(host.event("Bash", {"command": "ls"})) | more
    blocks(host.hook(json.dumps({name: value for name, value in event.items() if value is not None}).encode()))


@pytest.mark.parametrize("words", [["--mode", "sometimes"], ["--nothing"], ["--trust", "maybe"], ["word"]])
def test_a_wrong_option_blocks(host: Host, words: list[str]) -> None:
    blocks(host.hook(host.event("Bash", {"command": "ls"}), *words))


def test_a_profile_that_cannot_be_used_blocks(host: Host, tmp_path: Path) -> None:
    event = host.event("Bash", {"command": "ls"})
    assert "there is no profile" in blocks(host.hook(event, profile="nobody"))
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.toml").write_text("[profiles.mine]\nmax_risk = 'everything'\n")
    blocks(host.hook(event, "--profile-dir", str(tmp_path / "p"), profile="mine"))


def test_without_a_record_nothing_is_allowed(host: Host) -> None:
    event = host.event("Read", {"file_path": "a.txt"})
    host.state.mkdir(mode=0o777)
    host.state.chmod(0o777)
    assert "chmod" in blocks(host.hook(event))
    host.state.rmdir() if not any(host.state.iterdir()) else host.state.rename(host.state.with_name("aside"))
    host.state.write_text("a file, where a folder should be")
    assert "BROKER_STATE_DIR" in blocks(host.hook(event))


def test_an_answer_that_does_not_arrive_blocks(host: Host) -> None:
    with open("/dev/full", "wb") as full:
        done = host.broker("hook", "--once", "-p", "builder", stdin=host.event("Read", {"file_path": "a"}), capture_output=False, stdout=full)
    assert done.returncode == 2


def test_help_is_no_failure(host: Host) -> None:
    done = host.broker("hook", "--help")
    assert done.returncode == 0
    assert b"examples:" in done.stdout


# What is recorded


def test_a_session_is_one_run_that_ends_with_it_and_whose_chain_holds(host: Host) -> None:
    host.answer(host.event("Bash", {"command": "ls"}, tool_use_id="c-1"))
    host.answer(host.event("Write", {"file_path": ".git/hooks/x", "content": "x"}, agent_id="sub-1"))
    assert host.answer(host.event("", {}, hook_event_name="SessionEnd")) == {}
    (run,) = list_runs(host.state)
    found = verify(run)
    assert found.ok
    assert found.finished
    first, *_, last = host.events()
    assert (first["agent"], first["session"], first["profile"], last["type"]) == ("claude", "s-1", "builder", "run.finished")
    called = host.events("tool.called")
    assert [(one["tool"], one["outcome"], one.get("call"), one.get("subagent")) for one in called] == [
        ("Bash", "rewritten", "c-1", None), ("Write", "denied", None, "sub-1"),
    ]  # fmt: skip
    assert called[0]["what"] == "ls"
    assert [one["class"] for one in host.events("task.denied")] == ["persistence"]
    host.answer(host.event("Bash", {"command": "ls"}))  # somebody goes on with it: another run
    assert len(list_runs(host.state)) == 2


def test_tools_that_are_called_at_once_are_all_recorded_in_one_run(host: Host) -> None:
    events = [host.event("Read", {"file_path": f"{number}.txt"}) for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        assert [said_of(answer) for answer in pool.map(host.answer, events)] == ["allow"] * 12
    (run,) = list_runs(host.state)
    assert verify(run).ok
    assert {one["operation"]["path"] for one in host.events("file.decided")} == {str(host.workspace / f"{number}.txt") for number in range(12)}


def test_a_profile_that_changes_during_a_session_begins_another_run(host: Host, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    profile = tmp_path / "p" / "a.toml"
    for risk in ("safe", "local_write"):
        profile.write_text(f"[profiles.builder]\nmax_risk = '{risk}'\n")
        host.answer(host.event("Read", {"file_path": "a"}), "--profile-dir", str(profile.parent))
    new, old = list_runs(host.state)
    assert verify(old).finished
    assert not verify(new).finished
    assert {one["max_risk"] for one in host.events("run.started")} == {"safe", "local_write"}


def test_what_was_decided_can_be_judged_again(host: Host) -> None:
    for tool, arguments in (("Read", {"file_path": "a"}), ("Write", {"file_path": "/etc/x", "content": ""}), ("Bash", {"command": "curl x"})):
        host.answer(host.event(tool, arguments), "--mode", "verdict")
    done = host.broker("replay", "last", "--json")
    assert done.returncode == 0, done.stdout
