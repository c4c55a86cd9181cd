"""Each line of docs/agents.md that starts an agent is executed, as it stands, with the real agent and a scripted model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from inside import ARGUMENTS, GATEWAYS, Inside, chosen
from model_server import Shell

from broker.agents.adapter import load_adapter

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
LINES = re.findall(r"^\$ (broker run .*--agent (\w+) .*)$", PAGE.read_text(), re.MULTILINE)
EDIT = "code.txt\n<<<<<<< SEARCH\nbroken\n=======\nfixed\n>>>>>>> REPLACE\n"  # how aider is told of a change

pytestmark = pytest.mark.needs_bubblewrap


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("line", "name"), [pytest.param(*found, id=f"{n}-{found[1]}") for n, found in enumerate(LINES) if found[1] in chosen()])
def test_each_line_of_the_page_does_what_it_says(line: str, name: str, start: Callable[..., Inside]) -> None:
    inside = start(name, [Shell("echo fixed > code.txt && make test"), "I am done."])
    if name == "mini":
        inside.model.script = [*inside.model.script[:1], Shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]
    if name == "aider":
        inside.model.answer_without_tools = f"```\n{EDIT}```\n"
    home = inside.folder / "operator"
    profiles = home / ".config" / "broker" / "profiles"
    profiles.mkdir(parents=True)
    (home / ".local" / "share").mkdir(parents=True)
    builder = {
        "max_risk": "local_write", "allowlist": ["make test"],
        "gateways": {GATEWAYS[name]: {"upstream": inside.model.url, "addresses": ["127.0.0.0/8"]}},
    }  # fmt: skip
    (profiles / "mine.json").write_text(json.dumps({"profiles": {"builder": builder}}))
    environment = inside.environment()
    environment |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    environment.pop("XDG_CONFIG_HOME", None)
    if name == "aider":
        subprocess.run(["git", "add", "code.txt"], cwd=inside.workspace, check=True)
        line += " code.txt"
    done = subprocess.run(
        ["bash", "-c", line], env=environment, cwd=inside.workspace, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (inside.workspace / "code.txt").read_text() == "fixed\n", done.stdout + done.stderr
    assert sorted(path.name for path in inside.workspace.iterdir()) == [".env", ".git", "Makefile", "code.txt"]
    if "--agent-home" in line:
        assert any((home / ".local" / "share" / "claude-home").iterdir())


def test_the_page_shows_each_agent_that_is_shipped() -> None:
    assert {agent for _, agent in LINES} == set(GATEWAYS)


@pytest.mark.parametrize("name", GATEWAYS)
def test_the_page_and_the_suite_start_an_agent_as_its_adapter_says(name: str) -> None:
    adapter = load_adapter(name)
    assert list(adapter.unattended) == ARGUMENTS[name]
    assert adapter.model is not None
    assert adapter.model.gateway == GATEWAYS[name]
    line = next(line for line, started in LINES if started == name)
    assert all(word in line for word in adapter.unattended if word != "{prompt}")


def test_an_agent_that_is_not_installed_is_refused_with_the_line_that_installs_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broker", "run", "--agent", "codex", "--", "exec", "x"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == 64
    assert "npm install -g @openai/codex" in done.stderr
