"""Runs a real agent under `broker run --agent`, pointed at a scripted model, and keeps what came of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from installed import PACKAGES, cache, installed
from model_server import ModelServer

GATEWAYS = {"claude": "anthropic", "opencode": "anthropic", "gemini": "gemini", "codex": "openai", "mini": "openai", "aider": "openai"}
# What the operator types behind `--`: docs/agents.md shows the same, and a test compares.
ARGUMENTS = {
    "claude": ["-p", "{prompt}"],
    "codex": ["exec", "--skip-git-repo-check", "{prompt}"],
    "gemini": ["-p", "{prompt}"],
    "opencode": ["run", "{prompt}"],
    "mini": ["--task", "{prompt}"],
    "aider": ["--message", "{prompt}"],
}
# Which model: an operator has one; the scripted one has no name that an agent could know.
MODELS = {
    "codex": ["-m", "fake"], "opencode": ["-m", "anthropic/claude-sonnet-4-5"], "mini": ["-m", "openai/fake"],
    "aider": ["--model", "openai/fake"],
}  # fmt: skip
QUICK = ("claude", "codex")
SECRET = "hunter2-7f3a91"  # what must never reach the model


@dataclass
class Inside:
    """An agent, a workspace and a broker of its own."""

    agent: str
    model: ModelServer
    engine: str = "bubblewrap"
    image: str = ""  # then the agent is the image's own, and none has to be on this host
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="broker-agent-", dir="/tmp")))
    profile: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.chmod(0o755)
        self.workspace = self.folder / "work"
        self.workspace.mkdir()
        subprocess.run(["git", "init", "-q", str(self.workspace)], check=True)
        (self.workspace / "Makefile").write_text("test:\n\tgrep -q fixed code.txt && echo all tests passed\n")
        (self.workspace / "code.txt").write_text("broken\n")
        (self.workspace / ".env").write_text(f"PASSWORD={SECRET}\n")

    def words(self, prompt: str, *more: str) -> list[str]:
        """Return the command line of the broker."""
        profiles = self.folder / "profiles"
        profiles.mkdir(exist_ok=True)
        table = {
            "max_risk": "local_write", "allowlist": ["make test"],
            "gateways": {GATEWAYS[self.agent]: {"upstream": self.model.url, "addresses": ["127.0.0.0/8"]}},
        } | self.profile  # fmt: skip
        (profiles / "t.json").write_text(json.dumps({"profiles": {"t": table, "open": {"max_risk": "destructive"}}}))
        arguments = [word.replace("{prompt}", prompt) for word in ARGUMENTS[self.agent]]
        place = 1 if arguments[0] in ("exec", "run") else 0
        arguments[place:place] = MODELS.get(self.agent, [])
        return [
            sys.executable, "-m", "broker", "run", "--engine", self.engine, "--profile-dir", str(profiles), "--profile", "t",
            "--workspace", str(self.workspace), "--result", str(self.folder / "result.json"), "--agent", self.agent,
            *(("--image", self.image) if self.image else ()), *more,
            "--", *arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return the operator's environment: the agent is on PATH, and no key is anywhere."""
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        path = os.environ["PATH"] if self.image else f"{installed(self.agent).parent}:{os.environ['PATH']}"
        return kept | {"BROKER_STATE_DIR": str(self.folder / "state"), "PATH": path}

    def run(self, prompt: str = "Fix code.txt and run the tests.", *more: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
        """Run the agent to its end."""
        return subprocess.run(
            self.words(prompt, *more), env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, cwd=self.folder,
        )  # fmt: skip

    def result(self) -> dict[str, Any]:
        """Return what the broker wrote about the run."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of the run's journal, of these types or all."""
        lines = [line for path in sorted((self.folder / "state" / "runs").glob("*.jsonl")) for line in path.read_text().splitlines()]
        return [one for one in map(json.loads, lines) if not kinds or one["type"] in kinds]

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def cache_is_usable() -> bool:
    """Whether something was, or can be, installed."""
    return shutil.which("npm") is not None or cache().exists()


def chosen() -> tuple[str, ...]:
    """Return the agents of this run."""
    named = os.environ.get("BROKER_TEST_AGENTS", "")
    if not named:
        return QUICK
    return tuple(PACKAGES) if named == "all" else tuple(named.split(","))
