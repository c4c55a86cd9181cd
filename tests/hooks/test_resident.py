"""The process that stays after a call, and answers the next ones: the same answers, and nothing hangs on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hooked_host import ROOT, Host

from broker.record.run_files import list_runs, state_dir
from broker.serve import hook_client
from broker.serve.hook_agents import AGENTS, with_ours


def pid_of(host: Host) -> int:
    """Who stays, once he listens."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if list((host.state / "hooks").glob("*.socket")):
            return int(next((host.state / "hooks").glob("*.pid")).read_text())
        time.sleep(0.02)
    raise TimeoutError("nobody stayed")


def ask(host: Host, event: bytes, *words: str) -> tuple[int, bytes, bytes]:
    """Ask as an agent does, with or without somebody who stays."""
    done = host.broker("hook", "-p", "builder", *words, stdin=event)
    return done.returncode, done.stdout, done.stderr


def test_who_stays_answers_as_a_process_of_its_own_does_and_records_it_in_the_same_run(host: Host) -> None:
    events = [
        host.event("Bash", {"command": "ls"}), host.event("Write", {"file_path": ".git/hooks/x", "content": "x"}),
        host.event("Read", {"file_path": "a"}), host.event("Nothing", {}), b"{", host.event("Bash", {"command": 3}),
    ]  # fmt: skip
    once = [(done.returncode, done.stdout, done.stderr) for event in events for done in [host.hook(event)]]
    ask(host, events[0])
    pid = pid_of(host)
    before = used(pid)
    assert [ask(host, event) for event in events] == once
    assert used(pid) > before
    assert pid_of(host) == pid
    assert len(list_runs(host.state)) == 1
    assert len(host.events("tool.called")) == 4 + 1 + 4


def used(pid: int) -> int:
    """How often the process waited for something: it did something."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("voluntary_ctxt_switches")).split()[1])


def test_each_call_has_its_own_folder_words_and_surroundings(host: Host) -> None:
    event = json.loads(host.event("Write", {"file_path": str(host.workspace / "a"), "content": ""}))
    ask(host, json.dumps(event).encode())
    pid_of(host)
    assert b'"allow"' in ask(host, json.dumps(event).encode())[1]
    elsewhere = json.dumps(event | {"cwd": str(host.home)}).encode()
    assert b'"deny"' in ask(host, elsewhere)[1]
    host.environment["CLAUDE_PROJECT_DIR"] = str(host.workspace)
    assert b'"allow"' in ask(host, elsewhere)[1]
    assert ask(host, elsewhere, "--mode", "never")[0] == 2
    assert b'"deny"' in ask(host, elsewhere, "--workspace", "src")[1]


@pytest.mark.skipif(shutil.which("node") is None, reason="node, which runs what OpenCode would, is not installed")
def test_opencodes_plugin_has_somebody_stay_before_the_first_tool_and_blocks_what_is_denied(host: Host, tmp_path: Path) -> None:
    plugin, script = tmp_path / "broker.mjs", tmp_path / "opencode.mjs"
    hook = (sys.executable, "-m", "broker", "hook", "-p", "builder")
    plugin.write_text(with_ours(AGENTS["opencode"], None, hook, str(plugin)))
    script.write_text(
        f"import {{ Broker }} from {json.dumps(str(plugin))}\n"
        f"const broker = await Broker({{ directory: {json.dumps(str(host.workspace))} }})\n"
        "for await (const _ of process.stdin) {}\n"  # until the test has seen who stays
        "for (const path of ['a.txt', '.git/hooks/x']) {\n"
        "  const call = { tool: 'write', sessionID: 's', callID: path }\n"
        "  try { await broker['tool.execute.before'](call, { args: { filePath: path, content: 'x' } }); console.log('goes on') }\n"
        "  catch (error) { console.log(error.message.split('\\n')[0]) }\n"
        "}\n"
    )
    with subprocess.Popen(["node", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=host.environment, text=True) as opencode:
        pid_of(host)
        said, _ = opencode.communicate()
    assert [line.partition(":")[0] for line in said.splitlines()] == ["goes on", "broker denied this (persistence)"]


def test_another_version_of_the_program_is_not_answered_by_this_one(tmp_path: Path) -> None:
    for name in ("sha256.py", "__init__.py", *(f"{part}/__init__.py" for part in hook_client._PARTS), "serve/hook_client.py"):
        (tmp_path / "broker" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "broker" / name, tmp_path / "broker" / name)
    code = "from broker.serve.hook_client import key; print(key())"

    def key() -> bytes:
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True).stdout

    os.utime(tmp_path / "broker" / "decide", ns=(1, 1))
    first = key()
    assert key() == first
    (tmp_path / "broker" / "decide" / "new.py").write_text("")
    assert key() != first


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_killing_or_stopping_it_changes_no_answer_but_at_worst_blocks(host: Host, how: signal.Signals) -> None:
    event = host.event("Read", {"file_path": "a"})
    first = ask(host, event)
    pid = pid_of(host)
    os.kill(pid, how)
    code, out, err = ask(host, event)
    if how is signal.SIGKILL:
        assert (code, out, err) == first
    else:
        assert (code, out) == (2, b"")
        assert b"no answer within 10 seconds" in err


def test_a_socket_where_others_could_have_put_it_is_not_asked(host: Host) -> None:
    event = host.event("Read", {"file_path": "a"})
    ask(host, event)
    pid = pid_of(host)
    (host.state / "hooks").chmod(0o770)
    before = used(pid)
    assert ask(host, event)[0] == 0
    assert used(pid) == before


def test_once_leaves_nobody_behind(host: Host) -> None:
    host.hook(host.event("Read", {"file_path": "a"}))
    assert not list((host.state / "hooks").glob("*.pid"))


@pytest.mark.parametrize(
    "environment",
    [{}, {"BROKER_STATE_DIR": "/x/y"}, {"BROKER_STATE_DIR": "rel"}, {"XDG_STATE_HOME": "/x"}, {"XDG_STATE_HOME": "rel"}],
)
def test_it_is_looked_for_in_the_state_directory(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hook_client.folder() == str(state_dir() / "hooks")
