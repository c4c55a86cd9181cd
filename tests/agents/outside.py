"""How each real agent is started on the host, unattended, pointed at a scripted model: nothing of ours is around it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from installed import installed
from model_server import ModelServer


def configured(agent: str, model: ModelServer, home: Path) -> dict[str, str]:
    """Write an agent's configuration into a home that is all its own; return its whole environment.

    A Codex home must not lie below /tmp: it would refuse to link its helper programs there.
    """
    home.mkdir(parents=True, exist_ok=True)
    common = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"}
    match agent:
        case "claude":
            return common | {
                "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "fake", "CLAUDE_CONFIG_DIR": str(home / ".claude"),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
            }  # fmt: skip
        case "codex":
            place = home / ".codex"
            place.mkdir(exist_ok=True)
            (place / "config.toml").write_text(
                f'model = "fake"\nmodel_provider = "fake"\n'
                f'[model_providers.fake]\nname = "fake"\nbase_url = "{model.url}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n'
            )
            return common | {"CODEX_HOME": str(place), "FAKE_KEY": "fake"}
        case "gemini":
            place = home / ".gemini"
            place.mkdir(exist_ok=True)
            (place / "settings.json").write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}))
            return common | {
                "GOOGLE_GEMINI_BASE_URL": model.url, "GEMINI_API_KEY": "fake", "GEMINI_CLI_TRUST_WORKSPACE": "true",
            }  # fmt: skip
        case "opencode":
            place = home / ".config" / "opencode"
            place.mkdir(parents=True, exist_ok=True)
            provider = {
                "npm": "@ai-sdk/openai-compatible", "name": "fake", "models": {"fake": {"name": "fake"}},
                "options": {"baseURL": f"{model.url}/v1", "apiKey": "fake"},
            }  # fmt: skip
            (place / "opencode.json").write_text(json.dumps({"model": "fake/fake", "provider": {"fake": provider}}))
            return common | {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
        case "mini":
            return common | {
                "OPENAI_API_BASE": f"{model.url}/v1", "OPENAI_API_KEY": "fake", "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_GLOBAL_CONFIG_DIR": str(home),
            }  # fmt: skip
        case "aider":
            return common | {"OPENAI_API_BASE": f"{model.url}/v1", "OPENAI_API_KEY": "fake", "AIDER_ANALYTICS": "false"}
    raise LookupError(agent)


def words(agent: str, prompt: str) -> list[str]:
    """Return the command line that has an agent do what the prompt says, unattended."""
    first = str(installed(agent))
    match agent:
        case "claude":
            return [first, "-p", prompt, "--output-format", "json", "--permission-mode", "acceptEdits", "--allowedTools", "Bash"]
        case "codex":
            return [first, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", prompt]
        case "gemini":
            return [first, "--yolo", "-p", prompt]
        case "opencode":
            return [first, "run", prompt]
        case "mini":
            return [first, "-y", "--exit-immediately", "-m", "openai/fake", "-t", prompt]
        case "aider":
            return [first, "--model", "openai/fake", "--yes-always", "--no-check-update", "--no-show-release-notes", "--message", prompt]
    raise LookupError(agent)


def run(agent: str, model: ModelServer, home: Path, workspace: Path, prompt: str = "Do it.") -> subprocess.CompletedProcess[str]:
    """Run an agent once, to its end."""
    return subprocess.run(
        words(agent, prompt), env=configured(agent, model, home), cwd=workspace, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
