"""Each agent's MCP settings of docs/mcp.md, as they stand there, with the real agent on the host: its model calls a tool of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inside import QUICK, Inside, chosen
from installed import cache, installed
from model_server import Call, ModelServer
from outside import configured, words

from conformance.driver import until

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text().partition("## Adding it to an agent")[2].partition("\n## ")[0]
SETTINGS = {
    name.lower(): text for name, text in re.findall(r"^(Claude|Codex|Gemini|OpenCode)[^`]*`.*?^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
}
INSIDE = re.search(r"-- --mcp-config\s+'([^']*)'", PAGE)
LINE = re.search(r"`(claude mcp add [^`]*)`", PAGE)
# How the model calls the tool.
TOOLS = {
    "claude": ("mcp__broker__shell", ""), "codex": ("shell", "mcp__broker"), "gemini": ("mcp_broker_shell", ""), "opencode": ("broker_shell", ""),
}  # fmt: skip

pytestmark = [pytest.mark.needs_bubblewrap, pytest.mark.timeout(240)]


class Host:
    """An agent on the host, in a home of its own, with a broker on its PATH and a project."""

    def __init__(self, agent: str, folder: Path, home: Path, model: ModelServer) -> None:
        """Make them. `home` is not below /tmp, for Codex."""
        self.agent, self.home, self.model, self.work = agent, home, model, folder / "project"
        self.work.mkdir()
        subprocess.run(["git", "init", "-q", str(self.work)], check=True)
        (self.work / "Makefile").write_text("test:\n\tgrep -q fixed code.txt && echo all tests passed\n")
        (self.work / "code.txt").write_text("broken\n")
        program = folder / "bin" / "broker"  # agents pass on only a part of their environment
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nBROKER_STATE_DIR={folder}/state exec {Path(sys.executable).parent}/broker "$@"\n')
        program.chmod(0o755)
        self.environment = configured(agent, model, home)
        self.environment["PATH"] = f"{program.parent}:{installed(agent).parent}:{self.environment['PATH']}"
        profiles = home / ".config" / "broker" / "profiles"
        profiles.mkdir(parents=True)
        builder = {"max_risk": "local_write", "allowlist": ["make test"], "sandbox": {"engine": "bubblewrap"}}
        (profiles / "mine.json").write_text(json.dumps({"profiles": {"builder": builder}}))

    def settle(self) -> None:
        """Put the page's settings where it says that they go, beside those that lead to the model."""
        text = SETTINGS[self.agent].replace("/home/me/project", str(self.work))
        match self.agent:
            case "claude":
                (self.work / ".mcp.json").write_text(text)
            case "codex":
                with (self.home / ".codex" / "config.toml").open("a") as file:
                    file.write(text)
            case "gemini":
                added(self.home / ".gemini" / "settings.json", text)
            case "opencode":
                added(self.home / ".config" / "opencode" / "opencode.json", text)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the agent to its end."""
        line = words(self.agent, "Do it.")
        if self.agent == "claude":
            line = [line[0], "-p", "Do it.", "--allowedTools", "mcp__broker"]
        return self.type(line)

    def type(self, line: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command line there."""
        return subprocess.run(
            line, env=self.environment, cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )


def added(path: Path, text: str) -> None:
    """Add settings to a file of them."""
    settings: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps(settings | json.loads(text)))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[str], Host]]:
    """Make a host for an agent."""
    homes: list[Path] = []
    tmp_path.chmod(0o755)
    with ModelServer() as model:

        def make(agent: str) -> Host:
            installed(agent)
            tool, space = TOOLS[agent]
            commands = ("echo fixed > code.txt && make test", "curl evil.example")
            model.script = [*(Call(tool, {"command": command}, space=space) for command in commands), "I am done."]
            homes.append(Path(tempfile.mkdtemp(prefix="home-", dir=cache())))
            return Host(agent, tmp_path, homes[-1], model)

        yield make
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)


def works_there(host: Host) -> None:
    """The project's command runs in the sandbox, and the other one is refused with its reason."""
    done = host.run()
    assert done.returncode == 0, done.stdout + done.stderr
    results = [one.text for one in host.model.results()]
    assert len(results) == 2, done.stdout + done.stderr
    assert "all tests passed" in results[0]
    assert "curl reaches out to the network" in results[1]
    until(lambda: (host.work / "code.txt").read_text() == "fixed\n", "the server, for which no agent has to wait, landed it")


@pytest.mark.parametrize("name", [name for name in chosen() if name in TOOLS])
def test_the_settings_of_the_page_give_the_agent_tools_that_work_in_a_sandbox(name: str, host: Callable[[str], Host]) -> None:
    there = host(name)
    there.settle()
    works_there(there)


@pytest.mark.parametrize("name", [name for name in chosen() if name == "claude"])
def test_the_line_that_adds_them_does_so(name: str, host: Callable[[str], Host]) -> None:
    there = host(name)
    assert LINE is not None
    assert there.type(["bash", "-c", LINE[1]]).returncode == 0
    works_there(there)


@pytest.mark.parametrize("name", [name for name in chosen() if name == "claude"])
def test_inside_a_sandbox_the_tools_are_those_of_the_task(name: str, start: Callable[..., Inside]) -> None:
    assert INSIDE is not None
    inside = start(name, [Call("mcp__broker__shell", {"command": "echo fixed > code.txt && make test"}), "I am done."])
    line = inside.words("Do it.")
    done = subprocess.run(
        [*line, "--mcp-config", INSIDE[1]], env=inside.environment(), cwd=inside.folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all tests passed" in inside.model.results()[0].text
    assert (inside.workspace / "code.txt").read_text() == "fixed\n"


def test_the_page_shows_the_settings_of_each_agent() -> None:
    assert SETTINGS.keys() == TOOLS.keys()
    assert set(QUICK) <= TOOLS.keys()
