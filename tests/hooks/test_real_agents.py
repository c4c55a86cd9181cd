"""The real agents with the hooks that `broker install` writes, against a scripted model: what they obey, and what they pass over.

Claude Code and Codex are installed when they are missing; Gemini CLI and OpenCode are tried where they are in the cache already
(BROKER_TEST_AGENTS=all installs them, too).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import outside
import pytest
from hooked_host import Host
from inside import cache_is_usable
from installed import cache, installed, program
from model_server import ModelServer, Shell, ToolResult, Turn, Write

from broker.serve.hook_agents import AGENTS

pytestmark = [pytest.mark.needs_bubblewrap, pytest.mark.timeout(400)]
BROKER = Path(sys.executable).with_name("broker")
QUICK = ("claude", "codex")
ALL = (*QUICK, "gemini", "opencode")


@pytest.fixture(params=ALL)
def agent(request: pytest.FixtureRequest) -> str:
    """Each agent that can be had."""
    return available(request.param)


def available(name: str) -> str:
    """The agent, installed; or a skip that says how."""
    if name not in QUICK and program(name) is None and os.environ.get("BROKER_TEST_AGENTS") != "all":
        pytest.skip(f"{name} is not in the cache. Run: python tests/agents/installed.py {name}")
    if program(name) is None and not cache_is_usable() and not engines_required():
        pytest.skip(f"{name} is not installed, and there is no npm to install it with")
    installed(name)
    return name


def engines_required() -> bool:
    """Whether what is missing is a failure: where everything is meant to be there."""
    return os.environ.get("BROKER_REQUIRE_ENGINES") == "1" or os.environ.get("CI") == "true"


@pytest.fixture
def place(host: Host) -> Iterator[Host]:
    """The machine, with a home that is not below /tmp: Codex wants none there."""
    homes = cache() / "homes"
    homes.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=homes, ignore_cleanup_errors=True) as home:
        host.home = Path(home)
        host.environment["HOME"] = home
        yield host


def carried_out(
    host: Host, agent: str, script: Sequence[Turn], *options: str, spoilt: Callable[[str], str] | None = None, trusted: bool = True,
    during: Callable[[], None] | None = None,
) -> list[ToolResult]:  # fmt: skip
    """Install the hooks, spoil them if wanted, and have the agent do what the script says. Returns what its tools answered."""
    with ModelServer(script) as model:
        environment = outside.configured(agent, model, host.home) | {"BROKER_STATE_DIR": str(host.state), "IS_SANDBOX": "1"}
        told = [str(BROKER), "install", "--agent", agent, "--profile", "builder", "--yes", *options]
        subprocess.run([*told, *([] if "verdict" in options else ["--engine", "bubblewrap"])], env=environment, cwd=host.workspace, capture_output=True, check=True)
        file = host.home / AGENTS[agent].home / AGENTS[agent].file
        if spoilt is not None:
            before = file.read_text()
            file.write_text(spoilt(before))
            assert file.read_text() != before
        words = outside.words(agent, "Do it.")
        if agent == "codex" and trusted:
            words.insert(-1, "--dangerously-bypass-hook-trust")
        helper = threading.Thread(target=during) if during else None
        if helper:
            helper.start()
        done = subprocess.run(words, env=environment, cwd=host.workspace, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        if helper:
            helper.join()
        assert done.returncode == 0, done.stderr
        return model.results()


def test_an_agent_works_in_the_sandbox_and_is_told_what_it_may_not(place: Host, agent: str) -> None:
    canary, hook = place.home / "canary", place.workspace / ".git" / "hooks" / "pre-commit"
    results = carried_out(
        place, agent,
        [
            Shell("id -un > who.txt && cat who.txt"), Shell("curl http://127.0.0.1:1/"), Shell(f"cp /etc/hostname {canary}"),
            Write(str(place.workspace / "b.txt"), "written\n"), Write(str(hook), "#!/bin/sh\n"),
        ],
    )  # fmt: skip
    said = [result.text for result in results]
    assert "agent" in said[0]
    assert (place.workspace / "who.txt").read_text() == "agent\n"  # it ran inside, and landed
    assert "network_egress" in said[1]
    assert "system_write" in said[2]
    assert (place.workspace / "b.txt").read_text() == "written\n"
    assert not canary.exists()
    assert not hook.exists()
    if agent != "gemini":  # which itself lets no file tool into .git
        assert "persistence" in said[4]
        assert "persistence" in {one["class"] for one in place.events("task.denied")}
    outcomes = [one["outcome"] for one in place.events("tool.called")]
    assert outcomes.count("rewritten") == 3
    assert "allowed" in outcomes
    (session,) = [one for one in place.events("run.started") if one.get("verb") == "hook"]
    assert session["agent"] == agent


def test_in_verdict_mode_what_is_permitted_runs_on_the_host_and_the_rest_does_not(place: Host, agent: str) -> None:
    canary = place.home / "canary"
    results = carried_out(place, agent, [Shell("pwd -P > where.txt"), Shell(f"cp /etc/hostname {canary}")], "--mode", "verdict")
    assert (place.workspace / "where.txt").read_text() == f"{place.workspace}\n"
    assert "broker denied this (system_write)" in results[1].text
    assert not canary.exists()


def gone(text: str) -> str:
    """The hooks of a broker that was uninstalled."""
    return text.replace(str(BROKER), "/nowhere/broker")


def silent(text: str) -> str:
    """The hooks of a broker that crashes without a word."""
    return text.replace(f'"{BROKER}"', '"/bin/false"').replace(f"{BROKER} hook", "/bin/false hook")


def killed(text: str) -> str:
    """The hooks of a broker that somebody kills."""
    return text.replace(f'["{BROKER}"', '["/bin/sh", "-c", "kill -9 $$"').replace(f"{BROKER} hook", "sh -c 'kill -9 $$' hook")


@pytest.mark.parametrize("spoilt", [gone, silent, killed])
def test_a_broker_that_is_gone_or_crashes_or_is_killed_blocks(place: Host, agent: str, spoilt: Callable[[str], str]) -> None:
    canary = place.home / "canary"
    results = carried_out(place, agent, [Shell(f"touch {canary}")], spoilt=spoilt)
    assert not canary.exists()
    assert len(results) == 1


def test_a_hook_that_hangs_blocks_before_codex_gives_up_on_it(place: Host) -> None:
    available("codex")
    canary = place.home / "canary"
    carried_out(place, "codex", [Shell(f"touch {canary}")], spoilt=lambda text: text.replace(f"{BROKER} hook", "sh -c 'kill -STOP $$' hook"))
    assert not canary.exists()


# What docs/hooks.md says of hooks that are written another way: these agents go on without them.


def bare(text: str) -> str:
    """A hook as one writes it by hand, of a program that is not there."""
    lines = []
    for line in text.splitlines():
        if '"onFailure"' not in line:
            lines.append(line.replace("timeout -k 1 15 ", "").split(" || ")[0] + '",' if " || " in line else line)
    return gone("\n".join(lines)).replace('"timeout": 20,', '"timeout": 20')


@pytest.mark.parametrize("name", QUICK)
def test_these_agents_pass_over_a_bare_hook_that_fails(place: Host, name: str) -> None:
    canary = place.home / "canary"
    carried_out(place, available(name), [Shell(f"touch {canary}")], spoilt=bare)
    assert canary.exists()


def test_codex_passes_over_hooks_that_nobody_has_trusted(place: Host) -> None:
    available("codex")
    canary = place.home / "canary"
    carried_out(place, "codex", [Shell(f"touch {canary}")], trusted=False)
    assert canary.exists()


def test_when_broker_is_killed_during_a_command_the_command_ends_with_it(place: Host) -> None:
    available("claude")

    def kill() -> None:
        from conformance.driver import until

        started = until(lambda: [one for one in place.events("spawn.started") if "tail -f" in str(one["argv"])], "the command")
        run = started[0]["run"]
        pid = next(one["broker_pid"] for one in place.events("run.started") if one["run"] == run)
        os.kill(pid, signal.SIGKILL)

    results = carried_out(place, "claude", [Shell("tail -f /dev/null; touch after.txt"), Shell("id -un")], during=kill)
    assert "agent" in results[1].text
    assert not (place.workspace / "after.txt").exists()
    assert not [line for line in processes() if line == ["tail", "-f", "/dev/null"]]


def processes() -> list[list[str]]:
    """The argument lists of what runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_text(errors="replace").split("\0")[:-1])
        except OSError:
            continue
    return found


# broker doctor


def doctor(host: Host, agent: str, *, path: str = "") -> tuple[int, str]:
    """Ask the doctor; the agent is on its PATH."""
    environment = host.environment | {"PATH": path or f"{installed(agent).parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(host.home / "c")}
    done = subprocess.run([BROKER, "doctor", "--agent", agent], env=environment, cwd=host.workspace, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_doctor_says_live_only_of_hooks_that_are_asked_and_obeyed(place: Host, agent: str) -> None:
    code, said = doctor(place, agent)
    assert code == 78
    assert f"broker install --agent {agent}" in said
    place.broker("install", "--agent", agent, "--profile", "builder", "--yes")
    code, said = doctor(place, agent)
    assert (code, "live" in said) == (0, True), said


def test_the_doctor_sees_hooks_that_are_passed_over(place: Host) -> None:
    place.broker("install", "--agent", "claude", "--yes")
    file = place.home / ".claude" / "settings.json"
    file.write_text(file.read_text().replace("timeout -k 1 15 ", "/nowhere/").replace(" || {", " ; {").replace("exit 2", "exit 1").replace('"block"', '"no"'))
    code, said = doctor(place, available("claude"))
    assert code == 78
    assert "RAN ON THE HOST" in said
    assert "NOT live" in said


def test_the_doctor_says_how_to_install_an_agent_that_is_missing(place: Host, tmp_path: Path) -> None:
    code, said = doctor(place, "codex", path=str(tmp_path))
    assert code == 78
    assert "npm install -g @openai/codex" in said
