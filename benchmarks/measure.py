"""Pairs of timings in one run, because machines are noisy: ours and the other in turn, ratios pair by pair."""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Medians in seconds, and the median of the ratios of the pairs."""

    name: str
    ours: float
    other: float
    ratio: float
    goal: float
    against: str

    def line(self) -> str:
        """One row of the table in docs/benchmarks.md."""
        good = "yes" if self.ratio <= self.goal else "**no**"
        return (
            f"| {self.name} | {_time(self.ours)} | {self.against} {_time(self.other)} | {self.ratio:.2f}× | "
            f"≤ {self.goal:g}× | {good} |"
        )


def as_installed() -> None:
    """Have each Python that is started find its modules compiled, as those of an installed broker are.

    Where PYTHONDONTWRITEBYTECODE is set, each start compiles what was edited since, and that is what would be measured.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = place = tempfile.mkdtemp(prefix="broker-bench-compiled-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)


def pair(
    name: str, ours: Callable[[], object], other: Callable[[], object], *, against: str, goal: float, runs: int,
    inner: bool = False,
) -> Pair:  # fmt: skip
    """Time both in turn, `runs` times after one warm-up. `inner`: they return their own seconds."""
    ours_seen, other_seen = [], []
    for round_number in range(runs + 1):
        first, second = _one(ours, inner=inner), _one(other, inner=inner)
        if round_number:
            ours_seen.append(first)
            other_seen.append(second)
    ratios = [a / b for a, b in zip(ours_seen, other_seen, strict=True)]
    return Pair(
        name=name, ours=statistics.median(ours_seen), other=statistics.median(other_seen),
        ratio=statistics.median(ratios), goal=goal, against=against,
    )  # fmt: skip


def _one(call: Callable[[], object], *, inner: bool) -> float:
    start = time.perf_counter()
    result = call()
    return float(result) if inner else time.perf_counter() - start  # type: ignore[arg-type]


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
