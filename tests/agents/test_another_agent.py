"""An agent that nobody has described is learnt in the three steps of docs/agents.md, which are executed as they stand there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import cache
from model_server import ModelServer, Shell

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text().partition("## Another agent")[2]
RECORDING, ADAPTER = (textwrap.dedent(block) for block in re.findall(r"^ *```toml\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL))
LINES = re.findall(r'`(broker run [^`]*"Run the tests")`', PAGE)
COMMAND = "echo fixed > code.txt && make test"

pytestmark = [pytest.mark.needs_bubblewrap, pytest.mark.timeout(120)]


class Operator:
    """Somebody with an agent that is new, a project, and an empty configuration."""

    def __init__(self, folder: Path, agent: Path, model: ModelServer) -> None:
        """Install the agent, make a project."""
        self.folder, self.agent, self.model, self.last = folder, agent, model, ""
        (agent / "bin").mkdir(parents=True)
        shutil.copy(Path(__file__).parent / "their_agent.py", agent / "bin" / "their-agent")
        (agent / "bin" / "their-agent").chmod(0o755)
        self.work = folder / "work"
        self.work.mkdir()
        subprocess.run(["git", "init", "-q", str(self.work)], check=True)
        (self.work / "Makefile").write_text("test:\n\tgrep -q fixed code.txt && echo all tests passed\n")
        (self.work / "code.txt").write_text("broken\n")
        self.settings = folder / "home" / ".config" / "broker"
        for name in ("profiles", "agents"):
            (self.settings / name).mkdir(parents=True)

    def shown(self, text: str) -> str:
        """Return a text of the page for where the agent is here, and its model."""
        return text.replace("/opt/their-agent", str(self.agent)).replace(
            'upstream = "https://api.openai.com"\n', f'upstream = "{self.model.url}"\naddresses = ["127.0.0.0/8"]\n'
        )

    def broker(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a line; it goes well."""
        path = f"{Path(sys.executable).parent}:{self.agent}/bin:/usr/local/bin:/usr/bin:/bin"
        environment = {
            "PATH": path, "HOME": str(self.folder / "home"), "BROKER_STATE_DIR": str(self.folder / "state"), "OPENAI_API_KEY": "k",
            "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", ""),
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-c", line.replace("broker run ", "broker run --engine bubblewrap ")], env=environment, cwd=self.work,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        if found := re.search(r"read it: broker events (\S+)\)", done.stderr):
            self.last = found[1]
        return done

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of these types of the last run."""
        lines = self.broker(f"broker events {self.last} --json").stdout.splitlines()
        return [one for one in map(json.loads, lines) if one["type"] in kinds]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """An operator; the agent is installed where no task can write."""
    agent = cache() / f"their-agent-{os.getpid()}"
    tmp_path.chmod(0o755)
    try:
        with ModelServer([Shell(COMMAND), "I am done."]) as model:
            yield Operator(tmp_path, agent, model)
    finally:
        shutil.rmtree(agent, ignore_errors=True)


def test_an_agent_without_an_adapter_is_learnt_in_the_three_steps_of_the_page_and_is_quiet_then(operator: Operator) -> None:
    record, quiet = LINES
    (operator.settings / "profiles" / "recording.toml").write_text(operator.shown(RECORDING))
    builder = operator.shown(RECORDING).replace("recording", "builder").replace("system_write", "local_write")
    builder = re.sub(r"^effects.*\n", "allowlist = []\n", builder, flags=re.MULTILINE)
    (operator.settings / "profiles" / "builder.toml").write_text(builder)

    # 1. Under a profile that lets much happen in the box, nothing is refused, and all of it is on record.
    operator.broker(operator.shown(record))
    assert operator.events("task.denied") == []
    started = [" ".join(one["operation"]["argv"]) for one in operator.events("exec.decided")]
    assert any(line.endswith("their-agent --index") for line in started)
    operator.broker(f"broker discard {operator.last}")

    # 2. Under the one that it is to have, what is refused is what the agent does by itself, and what the project's commands are.
    operator.broker(operator.shown(record).replace("recording", "builder"))
    operator.broker(f"broker discard {operator.last}")
    refused = [one["what"] for one in operator.events("task.denied")]
    assert [next(word for word in ("core.pager", "--index", "source") if word in what) for what in refused] == ["core.pager", "--index", "source"]
    proposals = operator.broker(f"broker profile suggest {operator.last} --profile builder").stdout
    number = re.search(r"^ *(\d+)\. make test ", proposals, re.MULTILINE)
    assert number is not None, proposals
    operator.broker(f"broker profile suggest {operator.last} --profile builder --pick {number[1]} --write")

    # 3. With the adapter, everything that it does by itself is its own, and its command is judged alone.
    (operator.settings / "agents" / "their-agent.toml").write_text(ADAPTER)
    done = operator.broker(quiet)
    assert operator.events("task.denied") == [], done.stderr
    assert [one["visible"] for one in operator.events("exec.decided") if "visible" in one] == [COMMAND]
    assert "all tests passed" in operator.model.results()[-1].text
    assert (operator.work / "code.txt").read_text() == "fixed\n"
    assert sorted(path.name for path in operator.work.iterdir()) == [".git", "Makefile", "code.txt"]
