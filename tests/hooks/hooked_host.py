"""A project, a state directory, and `broker hook` as an agent starts it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.record.journal import read
from broker.record.run_files import list_runs

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Host:
    """A machine with a project on it, on which agents have hooks."""

    workspace: Path
    home: Path
    state: Path
    environment: dict[str, str] = field(default_factory=dict)

    def event(self, tool: str, arguments: Any, dialect: str = "claude", **more: Any) -> bytes:
        """What an agent says before a tool."""
        said: dict[str, Any] = {"session_id": "s-1", "cwd": str(self.workspace), "tool_name": tool, "tool_input": arguments}
        said["hook_event_name"] = {"gemini": "BeforeTool", "opencode": "tool.execute.before"}.get(dialect, "PreToolUse")
        if dialect == "codex":
            said |= {"turn_id": "t-1", "model": "m"}
        return json.dumps(said | more).encode()

    def broker(self, *words: str, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run broker as a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "broker", *words], input=stdin, cwd=self.workspace, env=self.environment,
            **{"capture_output": True, **options},
        )  # fmt: skip

    def hook(self, event: bytes, *words: str, profile: str = "builder") -> subprocess.CompletedProcess[bytes]:
        """Ask once, and leave nobody behind."""
        return self.broker("hook", "--once", "--profile", profile, *words, stdin=event)

    def answer(self, event: bytes, *words: str) -> dict[str, Any]:
        """What the hook answered; of silence, nothing."""
        done = self.hook(event, *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else {}

    def events(self, type: str = "") -> list[dict[str, Any]]:
        """The events of all runs."""
        return [one for path in list_runs(self.state) for one in read(path) if not type or one["type"] == type]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A machine of its own for each test."""
    workspace, home, state = tmp_path / "project", tmp_path / "home", tmp_path / "state"
    for folder in (workspace, home):
        folder.mkdir()
    (workspace / "src").mkdir()
    subprocess.run(["git", "init", "--quiet", str(workspace)], check=True)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "BROKER_STATE_DIR": str(state), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8",
    }  # fmt: skip
    yield Host(workspace, home, state, environment)
    for pid in (state / "hooks").glob("*.pid"):  # whoever was left behind to answer
        if (number := pid.read_text()) and Path(f"/proc/{number}").exists():
            os.kill(int(number), 9)


def command_of(rewritten: str) -> list[str]:
    """The words of a command that a shell would start."""
    return shlex.split(rewritten)
