"""A real agent's whole scripted session, inside against outside: python -m benchmarks.agents [AGENT...] [--rounds N].

The model is a script on loopback that answers at once, so what is measured is the agent, its tools, and the broker around
them. Needs the agents in the tests' cache (make agents). Prints one row for each agent, for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "agents"))

from inside import Inside
from installed import PACKAGES
from model_server import ModelServer, Shell, Turn
from outside import configured, words

from benchmarks.measure import as_installed

# Twenty commands of the kind that agents run, one after another.
SCRIPT: list[Turn] = [
    Shell(command)
    for command in (
        "ls -la", "cat code.txt", "git status", "grep -rn broken . | head", "echo fixed > code.txt", "make test", "git diff", "wc -l code.txt",
        "find . -name '*.txt' | sort", "cat Makefile",
    ) * 2
]  # fmt: skip
SCRIPT.append("I am done.")


def once_outside(agent: str) -> float:
    with ModelServer(SCRIPT) as model:
        place = Inside(agent, model)
        home = Path.home() / ".cache" / "broker-bench-home"
        shutil.rmtree(home, ignore_errors=True)
        env = configured(agent, model, home)
        began = time.perf_counter()
        done = subprocess.run(
            words(agent, "Do it."), env=env, cwd=place.workspace, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False
        )
        took = time.perf_counter() - began
        assert done.returncode == 0, done.stderr
        assert len(model.results()) == len(SCRIPT) - 1
        place.remove()
        return took


def once_inside(agent: str) -> float:
    with ModelServer(SCRIPT) as model:
        place = Inside(agent, model)
        began = time.perf_counter()
        done = place.run("Do it.", timeout=300)
        took = time.perf_counter() - began
        assert done.returncode == 0, done.stderr
        assert len(model.results()) == len(SCRIPT) - 1
        place.remove()
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", default=["claude", "codex", "gemini", "opencode"])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    as_installed()
    for agent in asked.agents:
        pairs = [(once_outside(agent), once_inside(agent)) for _ in range(asked.rounds + 1)][1:]  # the first warms up
        outside, inside = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for other, one in pairs)
        print(f"| {agent} {PACKAGES[agent].version} | {outside:.2f} s | {inside:.2f} s | {ratio:.2f}× | load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
