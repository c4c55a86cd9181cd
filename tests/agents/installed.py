"""The real agents, from npm and PyPI, in a cache outside of the repository.

In: an agent's name. Out: the path of its program, installed when it was missing. The versions are fixed here, so that a
failing test is about us. BROKER_TEST_CACHE names the cache, else ~/.cache/broker-tests. Several test workers may ask at
once: one installs, the others wait.

    python -m tests.agents.installed [NAME...]      installs them (without a name: all)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Package:
    """Where an agent comes from: `npm` or `pypi`, the package, its version, and the program that it brings."""

    registry: str
    name: str
    version: str
    program: str


PACKAGES = {
    "claude": Package("npm", "@anthropic-ai/claude-code", "2.1.332", "claude"),
    "codex": Package("npm", "@openai/codex", "0.171.0", "codex"),
    "gemini": Package("npm", "@google/gemini-cli", "0.61.0", "gemini"),
    "opencode": Package("npm", "opencode-ai", "1.18.33", "opencode"),
    "mini": Package("pypi", "mini-swe-agent", "2.4.6", "mini"),
    "aider": Package("pypi", "aider-chat", "0.86.2", "aider"),
}


def cache() -> Path:
    """Return the folder for what the tests install."""
    named = os.environ.get("BROKER_TEST_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "broker-tests"


def folder(agent: str) -> Path:
    """Return where an agent is, or would be, installed. A folder holds one version."""
    return cache() / "agents" / f"{agent}-{PACKAGES[agent].version}"


def program(agent: str) -> Path | None:
    """Return an agent's program if it is installed."""
    found = _program(agent)
    return found if _complete(agent).exists() and found.exists() else None


def installed(agent: str) -> Path:
    """Return an agent's program; install it when it is missing. Raises CalledProcessError with the installer's words."""
    place = folder(agent)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place.with_suffix(place.suffix + ".lock")):
        if (found := program(agent)) is not None:
            return found
        shutil.rmtree(place, ignore_errors=True)  # what an installation that was interrupted left
        place.mkdir()
        package = PACKAGES[agent]
        for command in _commands(package, place):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=INSTALL_SECONDS, cwd=place)
        _complete(agent).touch()
        return _program(agent)


def _commands(package: Package, place: Path) -> list[list[str]]:
    wanted = f"{package.name}@{package.version}" if package.registry == "npm" else f"{package.name}=={package.version}"
    if package.registry == "npm":
        return [["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(place), wanted]]
    pip = str(place / "bin" / "python")
    return [
        [sys.executable, "-m", "venv", str(place)],
        [pip, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted],
    ]


def _program(agent: str) -> Path:
    package = PACKAGES[agent]
    return folder(agent) / ("node_modules/.bin" if package.registry == "npm" else "bin") / package.program


def _complete(agent: str) -> Path:
    return folder(agent) / ".complete"


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PACKAGES:
        print(wanted, installed(wanted))
