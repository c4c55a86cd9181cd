"""A hundred tasks in a tree three levels deep (bubblewrap): what they cost the broker, how late people hear, how fast it ends.

`python -m benchmarks.tree`: needs bubblewrap; takes about a minute. Each leaf asks for a program that it may not have, again
and again, with the time in its arguments: what a follower reads is compared with its own clock.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from broker.task import watching

SHAPE = (3, 4, 7)  # 3 below the root, 4 below each of these, 7 below each of those: 99, and the root
# A leaf's denial is five events in the journal: what was decided, and `task.denied` of the leaf and each task above it.
EVENTS = 1_000  # a second, all leaves together
DENIALS = EVENTS / (2 + len(SHAPE))
SECONDS = 10.0
PROFILE = {
    "max_risk": "code_execution", "effects": {"add": ["unknown"]}, "sandbox": {"workspace": "read-only"},
    "delegate": {"depth": 3, "breadth": 16, "tasks": 200, "agents": ["/usr/bin/python3"]},
}  # fmt: skip
TASK = """
import os, subprocess, sys, time

def tried():
    # A refused execve(2) returns: no process is made for it, so that what is measured is the broker's work.
    try:
        os.execv("/usr/bin/git", ["git", "push", str(time.time_ns())])
    except OSError:
        pass

shape, pause = eval(sys.argv[2]), float(sys.argv[3])
if shape:
    words = ["broker", "delegate", "--profile", "lead", "--trust", "trusted", "--", "python3", "-c", sys.argv[1], sys.argv[1]]
    below = [subprocess.Popen([*words, repr(shape[1:]), str(pause)], stdout=subprocess.DEVNULL) for _ in range(shape[0])]
    for one in below:
        one.wait()
else:
    # `from`: everybody waits until the whole tree stands.
    while not os.path.exists("go"):
        time.sleep(0.1)
    due = time.time()
    while True:
        due += pause
        time.sleep(max(0.0, due - time.time()))
        tried()
"""


def figures() -> str:
    """Return the figures as sentences."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-", dir="/var/tmp") as place:
        for name in ("workspace", "profiles", "state"):
            (Path(place) / name).mkdir(mode=0o755)
        (Path(place) / "state").chmod(0o700)
        (Path(place) / "profiles" / "lead.json").write_text(json.dumps({"profiles": {"lead": PROFILE}}))
        os.environ["BROKER_RUNTIME_DIR"] = f"{place}/runtime"
        os.environ["BROKER_STATE_DIR"] = f"{place}/state"
        idle = _memory_alone(place)
        with _running(place, SHAPE) as broker:
            return _measured(place, broker, idle)


class _running:  # noqa: N801 - reads as a word
    """`broker run` with an orchestrator in it."""

    def __init__(self, place: str, shape: tuple[int, ...]) -> None:
        leaves = 1
        for count in shape:
            leaves *= count
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker", "run", "-q", "--engine", "bubblewrap", "--profile-dir", f"{place}/profiles",
             "-p", "lead", "-w", f"{place}/workspace", "--", "python3", "-c", TASK, TASK, repr(shape), str(leaves / DENIALS)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __enter__(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def _follow(count: int) -> watching.Watched:
    """Follow the one run there is, as soon as so many tasks run."""
    deadline = time.monotonic() + 120
    one: watching.Watched | None = None
    while one is None or [row["state"] for row in one.tasks.values()].count("running") < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the tree does not stand: {one and list(one.tasks.values())[-3:]}")
        if one is None:
            one = next(iter(watching.connect().values()), None)
            if one is None:
                time.sleep(0.05)
                continue
            one.ask(op="follow")
        watching.listen([one], 0.2)
    return one


def _memory_alone(place: str) -> int:
    """The broker's own memory (USS, bytes) with one task that waits, like the leaves do."""
    with _running(place, ()) as broker:
        one = _follow(1)
        time.sleep(2)
        one.close()
        return int(broker.memory_full_info().uss)


def _measured(place: str, broker: psutil.Process, idle: int) -> str:
    began = time.monotonic()
    one = _follow(100)
    stood = time.monotonic() - began
    time.sleep(2)
    watching.listen([one], 0)
    memory = int(broker.memory_full_info().uss)
    threads, descriptors = broker.num_threads(), broker.num_fds()
    before = sum(broker.cpu_times()[:2])
    time.sleep(3)
    quiet = (sum(broker.cpu_times()[:2]) - before) / 3
    Path(place, "workspace", "go").touch()
    lags, noted, rate, busy = _listened(one, broker)
    after = int(broker.memory_full_info().uss)
    inside = [pid for pid in psutil.pids() if _sees(pid, place)]
    words = [sys.executable, "-m", "broker", "tasks", "kill", "last", "--json"]
    start = time.monotonic()
    ended = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["ended"]
    said = time.monotonic() - start
    while any(_sees(pid, place) for pid in inside):
        time.sleep(0.002)
    gone = time.monotonic() - start
    one.close()
    return (
        f"100 tasks, {len(SHAPE)} levels: {(memory - idle) / 99 / 1024:.0f} KiB of broker memory each (USS; {idle >> 20} MiB with one "
        f"task, {memory >> 20} MiB with 100, {after >> 20} MiB after {sum(map(bool, lags)):,} denials), {(threads - 8) / 99:.1f} threads "
        f"and {descriptors / 100:.1f} descriptors each; the tree stood after {stood:.1f} s; looking at what they use takes "
        f"{quiet * 100:.0f} % of a core.\n"
        f"{rate:,.0f} denials a second for {SECONDS:.0f} s, which are {rate * EVENTS / DENIALS:,.0f} events in the journal: a reader has "
        f"one {_spread(noted)} after it was decided, {_spread(lags)} after it was tried; the broker "
        f"used {busy * 100:.0f} % of a core.\n"
        f"tasks kill: {len(ended)} tasks and {len(inside)} processes gone after {gone:.2f} s, said after {said:.2f} s (Python's start "
        f"included)."
    )


def _listened(one: watching.Watched, broker: psutil.Process) -> tuple[list[float], list[float], float, float]:
    """Read for a while. Return how long ago denials were tried, and decided (seconds), denials a second, and a share of a core."""
    lags: list[float] = []
    noted: list[float] = []
    while not one.denials:
        watching.listen([one], 1.0)
    one.denials.clear()
    before, start = sum(broker.cpu_times()[:2]), time.monotonic()
    while time.monotonic() - start < SECONDS:
        watching.listen([one], 0.5)
        now = time.time_ns()
        lags += [(now - int(row["what"].rpartition(" ")[2])) / 1e9 for row in one.denials]
        noted += [now / 1e9 - row["at"] for row in one.denials]
        one.denials.clear()
    took = time.monotonic() - start
    return lags, noted, len(lags) / took, (sum(broker.cpu_times()[:2]) - before) / took


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return (
        f"{statistics.median(ordered) * 1000:.0f} ms (median), {ordered[int(len(ordered) * 0.99)] * 1000:.0f} ms (99 %), "
        f"{ordered[-1] * 1000:.0f} ms (worst)"
    )


def _sees(pid: int, place: str) -> bool:
    try:
        mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return False
    return any(place in line.split()[4] for line in mounts.splitlines())


if __name__ == "__main__":
    print(figures())
