"""The command line from cold, against a Python that does nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import folders


def figures(docker: bool) -> Iterator[Pair]:
    """Yield each figure as it is measured."""
    del docker

    def python() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    with folders() as (workspace, state):
        environment = {**os.environ, "BROKER_STATE_DIR": state}

        def broker(*words: str, code: int = 0) -> None:
            done = subprocess.run(
                [sys.executable, "-m", "broker", *words], cwd=workspace, env=environment, capture_output=True, check=False
            )
            if done.returncode != code:
                raise RuntimeError(f"broker {words}: {done.returncode} {done.stderr.decode()}")

        yield pair(
            "broker --help", lambda: broker("--help"), python, against="python -c pass", goal=4, runs=15
        )
        yield pair(
            "broker exec: a refusal from cold", lambda: broker("exec", "--", "curl", "https://example.com", code=126),
            python, against="python -c pass", goal=4, runs=15,
        )  # fmt: skip
        # What an agent's session pays for it: 20 starts of Python are a fifth of a second, a tenth of a short session.
        yield pair(
            "broker run of `true`, from cold, bubblewrap", lambda: broker("run", "-q", "--engine", "bubblewrap", "--", "true"),
            python, against="python -c pass", goal=20, runs=15,
        )  # fmt: skip
        yield from _hooks(workspace, environment)


def _hooks(workspace: str, environment: dict[str, str]) -> Iterator[Pair]:
    """What an agent waits for before each tool: 60 ms at most, which are five starts of Python. The first of a session loads more."""

    def python() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    def hook(tool: str, arguments: dict[str, str], *words: str) -> None:
        event = {
            "session_id": "bench", "cwd": workspace, "hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": arguments,
        }  # fmt: skip
        program = str(Path(sys.executable).with_name("broker"))
        subprocess.run(
            [program, "hook", "-p", "builder", *words], input=json.dumps(event).encode(), env=environment, cwd=workspace,
            capture_output=True, check=True,
        )  # fmt: skip

    calls = {
        "a command into the sandbox": ("Bash", {"command": "git status && go test ./..."}),
        "a file may be written": ("Write", {"file_path": f"{workspace}/a.txt", "content": "x"}),
        "a file may not be written": ("Write", {"file_path": f"{workspace}/.git/hooks/x", "content": "x"}),
    }
    for name, (tool, arguments) in calls.items():
        yield pair(
            f"broker hook: {name}", lambda tool=tool, arguments=arguments: hook(tool, arguments),  # type: ignore[misc]
            python, against="python -c pass", goal=5, runs=25,
        )  # fmt: skip
    yield pair(
        "broker hook: the first of a session", lambda: hook("Read", {"file_path": "a"}, "--once"), python,
        against="python -c pass", goal=10, runs=15,
    )  # fmt: skip
    for file in Path(environment["BROKER_STATE_DIR"], "hooks").glob("*.pid"):
        os.kill(int(file.read_text()), signal.SIGTERM)
