"""Run one command twice, outside and inside a sandbox, in the same folder, and hold one against the other.

The inside run goes through the real command line. Both runs see the same project, freshly copied, at the same
path, and the same environment but for the home and the temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PROJECTS = Path(__file__).parent / "projects"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# An ordinary user: root's tests must not pass for the one reason that root may do everything.
ORDINARY = 1000

Normal = Callable[[str], str]

PROFILE = """
[profiles.compat]
description = "What a developer's tools do: everything but the network, the system and other people's files"
max_risk = "code_execution"
effects = {{ add = {effects} }}
requires = ["network", "seccomp", "landlock", "exec_gate", "file_labels"]
sandbox = {{ image = "{image}", memory = "6G", pids = 4096, tmp_size = "4G", time = "10m" }}
env = {{ set = {{ {environment} }} }}
"""


def without_times(text: str) -> str:
    """Return the text with every duration, time of day and process id of a shell's message replaced."""
    text = re.sub(r"\b\d+(\.\d+)? ?(ms|s|seconds|secs)\b", "TIME", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "CLOCK", text)
    return re.sub(r"(?<=: line )(\d+): +\d+ (?=[A-Z])", r"\1: PID ", text)  # "a.sh: line 9: 4711 Killed"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run. `result` is what `--result` wrote; empty for the outside run."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    files: tuple[str, ...]
    result: dict[str, Any] = field(default_factory=dict)

    def seen(self, normal: Normal, *, stderr: bool) -> dict[str, Any]:
        """Return what is to be the same, times replaced."""
        seen: dict[str, Any] = {"exit_code": self.exit_code, "stdout": normal(self.stdout)}
        if stderr:
            seen["stderr"] = normal(self.stderr)
        return seen


@dataclass(kw_only=True)
class SideBySide:
    """A folder to run things in, outside and inside."""

    engine: str
    image: str
    place: Path
    environment: dict[str, str] = field(default_factory=dict)
    effects: tuple[str, ...] = ("persistence", "destructive", "unknown")
    times: list[tuple[float, float, float]] = field(default_factory=list)
    owner: int = field(default_factory=lambda: ORDINARY if os.geteuid() == 0 else os.geteuid())

    @property
    def workspace(self) -> Path:
        """The project, in both runs."""
        return self.place / "work" / "project"

    def fresh(self, project: str, before: str = "") -> None:
        """Copy a project of `projects/` to the workspace, and run `before` there; whatever was there is gone."""
        shutil.rmtree(self.place / "work", ignore_errors=True)
        for name in ("home", "tmp"):
            shutil.rmtree(self.place / name, ignore_errors=True)
            (self.place / name).mkdir()
        self.workspace.parent.mkdir()
        if project:
            shutil.copytree(PROJECTS / project, self.workspace, symlinks=True)
        else:
            self.workspace.mkdir()
        if os.geteuid() == 0:
            for folder in ("work", "home", "tmp"):
                subprocess.run(["chown", "-R", f"{self.owner}:{self.owner}", self.place / folder], check=True)
        if before:
            ready = self.outside(["sh", "-e", "-c", before])
            assert ready.exit_code == 0, ready.stderr

    def outside(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 300) -> Ran:
        """Run it as it would run without a broker."""
        return self._run(argv, stdin, timeout, cwd=self.workspace, env=self.outside_environment(), **self.as_owner())

    def inside(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 300) -> Ran:
        """Run it with `broker run`."""
        result = self.place / "result.json"
        result.unlink(missing_ok=True)
        ran = self._run(self.command_line(argv), stdin, timeout, cwd=ROOT, env=self.broker_environment())
        if not result.exists():
            raise AssertionError(f"the broker gave no result (exit {ran.exit_code}):\n{ran.stderr}")
        found = json.loads(result.read_text(encoding="ascii"))
        return Ran(
            exit_code=ran.exit_code, stdout=ran.stdout, stderr=ran.stderr, seconds=ran.seconds, files=ran.files,
            result=found,
        )  # fmt: skip

    def same(
        self, argv: Sequence[str], *, project: str = "", normal: Normal = without_times, stderr: bool = True,
        files: bool = True, stdin: bytes = b"", refused: str = "", before: str = "", timeout: float = 300,
    ) -> Ran:  # fmt: skip
        """Run it both ways; exit code, output, and the names of the files it left must be the same.

        Returns the inside run. Nothing may have been refused in it but what the pattern `refused` names.
        `before` is a shell text that makes the workspace ready, outside, for either run.
        """
        self.fresh(project, before)
        outside = self.outside(argv, stdin=stdin, timeout=timeout)
        self.fresh(project, before)
        inside = self.inside(argv, stdin=stdin, timeout=timeout)
        denials = [row["what"] for row in inside.result["denials"]]
        assert [what for what in denials if not (refused and re.fullmatch(refused, what))] == []
        assert inside.seen(normal, stderr=stderr) == outside.seen(normal, stderr=stderr)
        if files:
            assert inside.files == outside.files
        self.note_times(outside, inside)
        return inside

    def note_times(self, outside: Ran, inside: Ran) -> None:
        """Keep the times for the summary: outside, inside without and with the start of broker and sandbox."""
        self.times.append((outside.seconds, inside.result["usage"]["wall_seconds"], inside.seconds))

    def command_line(self, argv: Sequence[str], *options: str) -> list[str]:
        """Return the command line that runs `argv` in the sandbox."""
        profiles = self.place / "profiles"
        profiles.mkdir(exist_ok=True)
        environment = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self.environment.items())
        image = self.image if self.engine == "docker" else ""
        text = PROFILE.format(image=image, environment=environment, effects=json.dumps(self.effects))
        (profiles / "compat.toml").write_text(text, encoding="utf-8")
        return [
            sys.executable, "-m", "broker", "run", "--quiet", "--engine", self.engine, "--profile", "compat",
            "--profile-dir", str(profiles), "--workspace", str(self.workspace),
            "--result", str(self.place / "result.json"), *options, "--", *argv,
        ]  # fmt: skip

    def broker_environment(self) -> dict[str, str]:
        """Return the environment of the broker itself."""
        mine = {"BROKER_STATE_DIR": str(self.place / "state"), "BROKER_LAYER_DIR": str(self.place / "layers")}
        return {**os.environ, **mine, "PYTHONPATH": str(ROOT)}

    def outside_environment(self) -> dict[str, str]:
        """Return what a task's environment would be."""
        return {
            "HOME": str(self.place / "home"), "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash", "PATH": PATH,
            "TMPDIR": str(self.place / "tmp"), "LANG": "C.UTF-8", **self.environment,
        }  # fmt: skip

    def as_owner(self) -> dict[str, Any]:
        """Return how subprocess starts something as the workspace's owner."""
        if os.geteuid() != 0:
            return {}
        return {"user": self.owner, "group": self.owner, "extra_groups": []}

    def _run(self, argv: Sequence[str], stdin: bytes, timeout: float, **options: Any) -> Ran:
        began = time.monotonic()
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout, umask=0o022, check=False, **options
        )  # fmt: skip
        seconds = time.monotonic() - began
        # As `broker` and every shell report a signal.
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Ran(
            exit_code=code, stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"), seconds=seconds, files=self._files(),
        )  # fmt: skip

    def _files(self) -> tuple[str, ...]:
        return tuple(sorted(str(path.relative_to(self.workspace)) for path in self.workspace.rglob("*")))
