"""Delegation: from a request to the first output of a sub-task, and eight sub-tasks beside each other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import profile
from broker.decide.profile import LAYERS
from broker.delegation import Assignment, delegate
from broker.request.delegation import TaskRequest
from broker.stage import Stage, Watcher
from broker.supervisor import RunRequest, session

BARE = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "true"]  # fmt: skip
NAP = 1.0


@contextlib.contextmanager
def orchestrator(engine: str) -> Iterator[Stage]:
    """An operator's task that may delegate under the profile `benchmark`."""
    chosen = replace(profile("base"), requires=tuple(layer for layer in LAYERS if layer != "limits"))
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
        place = Path(folder, "workspace")
        place.mkdir()
        os.chmod(folder, 0o755)
        request = RunRequest(
            argv=("benchmark",), profile=chosen, workspace=str(place), engine=engine, state_dir=Path(folder, "state"),
            profiles=(chosen,),
        )  # fmt: skip
        with session(request, Watcher(called=lambda _stage, line: line.hang_up())) as opened:
            yield opened.stage


def first_output(stage: Stage) -> float:
    """Seconds from a request to the first byte that the sub-task writes."""
    seen: list[float] = []
    start = time.perf_counter()
    told = Assignment(output=lambda _stream, _data: seen.append(time.perf_counter() - start))
    found = delegate(stage, TaskRequest(profile="benchmark", argv=("echo", "x"), trust="trusted"), told)
    assert found["exit_code"] == 0, found
    return seen[0]


def together(stage: Stage, count: int) -> float:
    """Seconds that so many sub-tasks take beside each other, each of which only waits."""
    request = TaskRequest(profile="benchmark", argv=("sleep", str(NAP)), trust="trusted")
    start = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        for found in pool.map(lambda _: delegate(stage, request), range(count)):
            assert found["exit_code"] == 0, found
    return time.perf_counter() - start


def _timed(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(words, check=True)
    return time.perf_counter() - start


def figures(docker: bool) -> Iterator[Pair]:
    """Yield the rows. The first one's own goal is 30 ms, on a quiet machine on which bare bubblewrap takes 5."""
    del docker  # a sub-task there starts as any other container does
    with orchestrator("bubblewrap") as stage:
        yield pair(
            "first output of a sub-task, bubblewrap", partial(first_output, stage), lambda: _timed(BARE),
            against="bare `bwrap … true`", goal=6, runs=40, inner=True,
        )  # fmt: skip
        yield pair(
            "8 sub-tasks at once, each waits 1 s", lambda: together(stage, 8), lambda: together(stage, 1),
            against="one", goal=1.5, runs=4,
        )  # fmt: skip
