"""How long classifying takes: cold (a new process), tables, and per command without any cache.

    python benchmarks/classify.py [FILE.jsonl …]

Without a file the rows of tests/cases are timed. Ratios are against `python -c pass` in the same run.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from broker.classify import classify
from broker.classify.compile_tables import main as compile_tables
from broker.classify.context import Context
from broker.request.operation import ShellText

HERE = Path(__file__).resolve().parent.parent
CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")


def texts(files: list[str]) -> list[str]:
    """The shell texts to time."""
    if files:
        rows = [
            json.loads(line) for file in files for line in Path(file).read_text("utf-8").splitlines() if line
        ]
        return [row["op"] for row in rows if row.get("kind", "shell") == "shell"]
    found: list[str] = []
    for file in sorted((HERE / "tests" / "cases").glob("*.toml")):
        found += [row["command"] for row in tomllib.loads(file.read_text("utf-8"))["case"]]
    return found


def cold(code: str, times: int = 7) -> float:
    """Seconds that a new interpreter takes for this code: the best of some."""
    best = 1e9
    for _ in range(times):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE)
        best = min(best, time.perf_counter() - started)
    return best


def per_command(commands: list[str], rounds: int = 5) -> list[float]:
    """Seconds for each command: the best of some rounds, after one that is not counted."""
    best = [1e9] * len(commands)
    for round_number in range(rounds + 1):
        for index, text in enumerate(commands):
            started = time.perf_counter()
            classify(ShellText(text=text), CONTEXT)
            taken = time.perf_counter() - started
            if round_number:
                best[index] = min(best[index], taken)
    return sorted(best)


def main(files: list[str]) -> int:
    """Print the figures."""
    compile_tables()
    bare = cold("pass")
    loaded = cold("from broker.classify.tables import load; load()")
    verdict = cold(
        "from broker.classify import classify\nfrom broker.classify.context import Context\n"
        "from broker.request.operation import ShellText\n"
        "classify(ShellText(text='ls -l | head'), Context(cwd='/w', home='/h', workspace='/w'))"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    commands = texts(files)
    times = per_command(commands)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = len(times)
    print(f"python -c pass                  {bare * 1e3:8.1f} ms")
    print(f"loading the tables              {(loaded - bare) * 1e3:8.1f} ms on top")
    print(f"first verdict of a new process  {verdict * 1e3:8.1f} ms ({verdict / bare:.1f} x python -c pass)")
    print(f"commands                        {count:8d}")
    print(f"median                          {statistics.median(times) * 1e6:8.0f} µs")
    print(f"p99                             {times[int(count * 0.99)] * 1e6:8.0f} µs")
    print(f"worst                           {times[-1] * 1e6:8.0f} µs")
    print(f"peak memory                     {after / 1024:8.1f} MB (before any command: {before / 1024:.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
