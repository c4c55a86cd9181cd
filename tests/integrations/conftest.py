"""What the frameworks' tests share: a Python with the framework and this project, and folders of a test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.fixtures import folder  # noqa: F401 - fixtures are used by name
from integrations.documented import Run
from integrations.frameworks import NoPython, project_for, python_with

ANYTHING = """\
[profiles.anything]
description = "Whatever a suite does: policy is not what it looks at"
max_risk = "code_execution"
effects.add = ["unknown"]
requires = ["network", "seccomp", "landlock", "exec_gate", "file_labels"]
sandbox.image = "python"
"""


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """What returns a framework's Python, and the folder where this project is installed for it."""
    made: dict[str, tuple[Path, Path]] = {}

    def get(name: str) -> tuple[Path, Path]:
        if name not in made:
            try:
                python = python_with(name)
            except NoPython as error:
                if os.environ.get("BROKER_REQUIRE_ENGINES") == "1" or os.environ.get("CI") == "true":
                    pytest.fail(str(error), pytrace=False)
                pytest.skip(str(error))
            made[name] = python, project_for(python, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture
def profile(folder: Path) -> Path:  # noqa: F811 - a fixture
    """A profile's file, for suites that are not about policy."""
    made = folder / "anything.toml"
    made.write_text(ANYTHING)
    return made


@pytest.fixture
def workspace(folder: Path) -> Path:  # noqa: F811 - a fixture
    """A workspace with one file, under git."""
    folder.chmod(0o755)
    made = folder / "workspace"
    made.mkdir()
    (made / "README.md").write_text("read me\n")
    (made / ".git" / "hooks").mkdir(parents=True)
    return made


@pytest.fixture
def run(pythons: Callable[[str], tuple[Path, Path]], folder: Path, workspace: Path, profile: Path) -> Run:  # noqa: F811 - a fixture
    """Run a framework's Python, with this project, in the workspace. Returns what it printed."""
    for name in ("state", "layers", "home"):
        (folder / name).mkdir(mode=0o700)

    def go(name: str, *words: str | Path, ok: bool = True, cwd: Path = workspace, **variables: str) -> str:
        python, project = pythons(name)
        done = subprocess.run(
            [python, *words], cwd=cwd, check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={
                "PATH": os.environ["PATH"], "HOME": str(folder / "home"), "TMPDIR": str(folder), "PYTHONPATH": str(project),
                "BROKER_STATE_DIR": str(folder / "state"), "BROKER_LAYER_DIR": str(folder / "layers"), "PROFILE": str(profile),
                "WORKSPACE": str(workspace), "PYTHONDONTWRITEBYTECODE": "1", "MSWEA_SILENT_STARTUP": "1", "COLUMNS": "200", **variables,
            },
        )  # fmt: skip
        assert not ok or done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    return go
