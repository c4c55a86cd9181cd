"""docs/tutorial.md is true: its files are written, its commands are run in order, and each line that it shows is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.needs_bubblewrap
@pytest.mark.timeout(180)
def test_every_command_of_the_tutorial_does_what_the_page_shows(tmp_path: Path) -> None:
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    for folder in (tmp_path, project.parent, project):
        folder.chmod(0o755)
    environment = {
        "HOME": str(project.parent),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
        **{name: os.environ[name] for name in ("BROKER_RUNTIME_DIR", "TMPDIR") if name in os.environ},
    }
    assert executed(PAGE, project, environment) > 20


def executed(page: Path, project: Path, environment: dict[str, str]) -> int:
    """Write a page's files, below ~ or in the project, and run its commands there, in order. Returns how many; each did what it shows."""
    ran = 0
    for language, name, body in BLOCK.findall(page.read_text()):
        if name:
            path = Path(environment["HOME"]) / name.removeprefix("~/") if name.startswith("~/") else project / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.write_text(body)
        elif language == "console":
            for command, shown in commands(body):
                done = subprocess.run(
                    ["bash", "-c", command], cwd=project, env=environment, capture_output=True, text=True, check=False
                )
                said = f"$ {command}\n{done.stdout}{done.stderr}"
                assert done.returncode == 0, said
                printed = " ".join((done.stdout + done.stderr).split())
                for line in shown:
                    assert " ".join(line.split()) in printed, f"{line!r} is not in:\n{said}"
                ran += 1
    return ran


def commands(body: str) -> list[tuple[str, list[str]]]:
    """Take a session apart into commands, each with the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found
