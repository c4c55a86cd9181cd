"""The command line from cold, against a Python that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

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
