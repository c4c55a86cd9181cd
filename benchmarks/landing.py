"""The copy-on-write workspace: what landing costs, what working in a layer costs, and what neither may cost by."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.execs import WORK, prepare
from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import folders, layer_of, profile, run_in, sandbox
from broker.classify.context import Context
from broker.decide.envelope import Envelope
from broker.decide.trust import Trust
from broker.enforce import landing
from broker.enforce.changes import changes_of
from broker.enforce.layer import Layer
from broker.task.changes import ChangeJudge

FILES = 10_000
LARGE = 2 << 30
_numbers = itertools.count()


def figures(docker: bool) -> Iterator[Pair]:
    """Yield each figure as it is measured, on bubblewrap: the layer is the same in Docker."""
    del docker
    with folders() as (workspace, state):
        place = Path(workspace)
        yield from _files(place, Path(state))
        yield _large(place, Path(state))
        yield _walk(place, Path(state))
        yield _start(place, state)
    with folders() as (workspace, state):
        prepare(Path(workspace))
        for name, (script, goal, _) in WORK.items():
            yield _work(workspace, state, name, script, goal)


def _layer(workspace: Path, state: Path) -> Layer:
    layer = layer_of((str(workspace),), f"20260101-000000-{next(_numbers):04x}", os.getuid(), os.getgid(), state)
    layer.wait_for_the_clock()
    return layer


def _settle(layer: Layer) -> int:
    """Walk, judge and land, as the end of a task does."""
    workspace = layer.manifest.workspace
    context = Context(cwd=workspace, home="/home/agent", workspace=workspace, writable=(workspace,))
    judged = ChangeJudge(layer, Envelope(profile=profile(), trust=Trust.TRUSTED), context).judge(changes_of(layer))
    return len(landing.land(layer, judged.landing).done)


def _files(place: Path, state: Path) -> Iterator[Pair]:
    source = place.parent / "source"
    for number in range(FILES):
        file = source / f"{number // 100}" / f"file{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number}\n" * 40)
    for name, there in (("10,000 new files", False), ("10,000 changed files", True)):

        def ready(target: str, there: bool = there) -> Path:
            real = place / target
            shutil.rmtree(real, ignore_errors=True)
            real.mkdir()
            if there:
                _copy(source, real)
                subprocess.run(["find", str(real), "-type", "f", "-exec", "truncate", "-s", "3", "{}", "+"], check=True)
            os.sync()
            return real

        def ours(ready: Callable[[str], Path] = ready) -> float:
            layer = _layer(ready("ours"), state)
            _copy(source, Path(layer.upper(0)))
            os.sync()
            start = time.perf_counter()
            done = _settle(layer)
            seconds = time.perf_counter() - start
            if done < FILES:
                raise RuntimeError(f"only {done} landed")
            layer.remove()
            return seconds

        def other(ready: Callable[[str], Path] = ready) -> float:
            target = ready("other")
            start = time.perf_counter()
            _copy(source, target)
            return time.perf_counter() - start

        yield pair(f"land {name}", ours, other, against="cp -a of the same", goal=2.0, runs=5, inner=True)
    for rest in (place / "ours", place / "other", source):
        shutil.rmtree(rest)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


def _large(place: Path, state: Path) -> Pair:
    def ours() -> float:
        layer = _layer(place, state)
        _fill(Path(layer.upper(0)) / "large")
        start = time.perf_counter()
        _settle(layer)
        seconds = time.perf_counter() - start
        layer.remove()
        (place / "large").unlink()
        return seconds

    def other() -> float:
        _fill(place / "large")
        start = time.perf_counter()
        subprocess.run(["cp", "-a", "--reflink=never", str(place / "large"), str(place / "copy")], check=True)
        seconds = time.perf_counter() - start
        (place / "large").unlink()
        (place / "copy").unlink()
        return seconds

    return pair("land one file of 2 GB", ours, other, against="cp -a of the same", goal=0.1, runs=2, inner=True)


def _fill(path: Path) -> None:
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for _ in range(LARGE // len(block)):
            file.write(block)


def _walk(place: Path, state: Path) -> Pair:
    """Ten changes beside 50,000 files, and beside none."""

    def settle(real: Path) -> float:
        layer = _layer(real, state)
        for number in range(10):
            (Path(layer.upper(0)) / f"new{number}").write_text("new")
        start = time.perf_counter()
        for _ in range(20):
            list(changes_of(layer))
        seconds = time.perf_counter() - start
        layer.remove()
        return seconds

    small, large = place / "small", place / "many"
    small.mkdir(exist_ok=True)
    many(large)
    return pair(
        "walk 10 changes in a workspace of 50,000 files", lambda: settle(large), lambda: settle(small),
        against="in an empty one", goal=1.1, runs=9, inner=True,
    )  # fmt: skip


def many(place: Path) -> None:
    """Make 50,000 files in 1,000 folders."""
    for folder in range(1000):
        (place / f"{folder // 100}" / f"{folder}").mkdir(parents=True, exist_ok=True)
        for number in range(50):
            (place / f"{folder // 100}" / f"{folder}" / f"{number}.py").touch()


def _start(place: Path, state: str) -> Pair:
    def start(real: Path) -> None:
        with sandbox("bubblewrap", str(real), state, mode="overlay") as (running, task):
            run_in(running, task, ("/bin/true",), str(real))

    small, large = place / "small", place / "many"
    return pair(
        "start on a workspace of 50,000 files in 1,000 folders", lambda: start(large), lambda: start(small),
        against="on an empty one", goal=1.1, runs=15,
    )  # fmt: skip


def _work(workspace: str, state: str, name: str, script: str, goal: float) -> Pair:
    del goal
    argv = ("/bin/sh", "-c", script)
    with (
        sandbox("bubblewrap", workspace, state, mode="overlay") as layered,
        sandbox("bubblewrap", workspace, state, mode="direct") as direct,
    ):

        def timed(where: tuple[object, object]) -> float:
            running, task = where
            start = time.perf_counter()
            if run_in(running, task, argv, workspace):  # type: ignore[arg-type]
                raise RuntimeError(f"failed inside: {argv}")
            return time.perf_counter() - start

        return pair(
            f"{name}, overlay", lambda: timed(layered), lambda: timed(direct), against="direct", goal=1.10, runs=7, inner=True
        )
