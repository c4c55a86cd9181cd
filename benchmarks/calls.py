"""What a call from inside costs: `broker` connects, says its words, is answered with a line, and exits."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.execs import WORK
from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import folders, run_in, sandbox
from broker.enforce.calls import CallLine
from broker.enforce.confinement import CLIENT_FOLDER

LOOP = "i=0; while [ $i -lt 500 ]; do {}; i=$((i+1)); done"


def answer(line: CallLine) -> None:
    """Answer a call without looking anything up."""
    line.words()
    line.write(b"yes\n")
    line.exit(0)


def figures(docker: bool) -> Iterator[Pair]:
    """Yield each figure as it is measured, on bubblewrap: the guard is the same in Docker."""
    del docker
    with (
        folders() as (workspace, state),
        folders() as (other, other_state),
        sandbox("bubblewrap", workspace, state, calls=True) as (running, task),
        sandbox("bubblewrap", other, other_state) as (deaf, deaf_task),
    ):
        task.called = answer

        def seconds(script: str, *, calls: bool = True) -> float:
            argv = ("/bin/sh", "-c", script)
            start = time.perf_counter()
            if run_in(running, task, argv, workspace) if calls else run_in(deaf, deaf_task, argv, other):
                raise RuntimeError(f"failed inside: {script}")
            return time.perf_counter() - start

        yield pair(
            "500 × a call from inside", lambda: seconds(LOOP.format(f"{CLIENT_FOLDER}/broker x >/dev/null")),
            lambda: seconds(LOOP.format("/bin/true >/dev/null")), against="500 × /bin/true, same sandbox", goal=3, runs=5, inner=True,
        )  # fmt: skip
        script, _, runs = WORK["2,000 × /bin/true from a shell"]
        yield pair(
            "2,000 × /bin/true, calls welcome", lambda: seconds(script), lambda: seconds(script, calls=False),
            against="calls not welcome", goal=1.05, runs=runs, inner=True,
        )  # fmt: skip
