"""The real frameworks, from PyPI, in a cache outside of the repository; and this project, installed for their interpreters.

In: a framework's name. Out: a Python that has it. The versions are fixed here, so that a failing test is about us. The cache
is the agents' (tests/agents/installed.py). Several test workers may ask at once: one installs, the others wait.

    python tests/integrations/frameworks.py      installs them all
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
INSTALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Framework:
    """What a suite needs: the oldest Python that it takes, and its packages."""

    oldest: tuple[int, int]
    packages: tuple[str, ...]


FRAMEWORKS = {
    "inspect": Framework((3, 11), ("inspect-ai==0.3.285", "pytest==9.2.0", "pytest-asyncio==1.5.0")),
    "deepagents": Framework((3, 12), ("deepagents==0.7.32", "langchain-tests==1.1.9", "pytest==9.2.0")),
    "deepagents-0.6": Framework((3, 12), ("deepagents==0.6.12", "langchain-tests==1.1.9", "pytest==9.2.0")),
    "mini": Framework((3, 11), ("mini-swe-agent==2.4.6",)),
}


class NoPython(Exception):
    """There is no interpreter here that is new enough. The message says how to get one."""


def interpreter(oldest: tuple[int, int]) -> str:
    """Return a Python that is new enough: this one, one on PATH, or one of pyenv's or uv's. Raises NoPython."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(20, oldest[1] - 1, -1)]
    places = [Path(found) for name in names if (found := shutil.which(name))]
    for folder in (Path.home() / ".pyenv" / "versions", Path.home() / ".local" / "share" / "uv" / "python"):
        places += [place for name in names for place in sorted(folder.glob(f"*/bin/{name}"), reverse=True)]
    for place in places:
        asked = [str(place), "-c", f"import sys, venv; sys.exit(sys.version_info[:2] < {oldest})"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return str(place)
    version = ".".join(map(str, oldest))
    raise NoPython(f"Python {version} or newer is needed, and this is {sys.version.split()[0]}. Run: uv python install {version}")


def python_with(name: str) -> Path:
    """Return the Python of an environment that has the framework and what broker needs, made when it is missing."""
    framework = FRAMEWORKS[name]
    python = interpreter(framework.oldest)
    ours = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    wanted = [*framework.packages, *ours]
    version = subprocess.run([python, "-VV"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256("\n".join([version, *wanted]).encode()).hexdigest()[:12]
    place = cache() / "frameworks" / f"{name}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            shutil.rmtree(place, ignore_errors=True)  # what an installation that was interrupted left
            _run(python, "-m", "venv", str(place))
            _run(str(place / "bin" / "python"), *_PIP, *wanted)
            (place / ".complete").touch()
    return place / "bin" / "python"


def project_for(python: Path, folder: Path) -> Path:
    """Install this project, as it is now, into a folder for PYTHONPATH: with its entry points, without its dependencies."""
    place = folder / "site-packages"  # inspect_ai takes what lies elsewhere for no package, and leaves its name out
    _run(str(python), *_PIP, "--no-deps", "--target", str(place), str(PROJECT))
    return place


_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location")


def _run(*command: str) -> None:
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_SECONDS
    )
    if done.returncode:
        said = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("WARNING: "))
        raise RuntimeError(f"{' '.join(command)}\n{said[-4000:]}")


def cache() -> Path:
    """Return the folder for what the tests install."""
    named = os.environ.get("BROKER_TEST_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "broker-tests"


if __name__ == "__main__":
    for framework_name in FRAMEWORKS:
        print(framework_name, python_with(framework_name))
