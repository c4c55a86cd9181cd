"""How long questions about a million events take. Goals: a query 300 ms, the index made anew 20 s, following 50 ms.

    python benchmarks/audit.py [--events N] [--folder FOLDER]

One run of decisions as tasks make them, in a state directory of its own. Each command is timed as a user has it: a
process of its own, from its start to its end; its memory is what the kernel says it had at most. Following is measured
from before an event is appended to when its line comes out of the other process, at 1,000 events/s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.decide.verdict import Allow, Deny, Layer
from broker.record import event
from broker.record.journal import Journal
from broker.request.operation import Exec

TABLES = "ab" * 32
ENV = (("HOME", "/home/agent"), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("SHELL", "/bin/bash"))
FOLLOWED = 5_000
ALLOWED = (("git", "status", "--short"), ("ls", "-la"), ("cat", "README.md"), ("grep", "-rn", "TODO", "src"), ("sed", "-n", "1,80p"))
REFUSED = (
    (("curl", "https://example.com"), Risk.NETWORK_EGRESS, "program.curl"),
    (("npm", "install", "left-pad"), Risk.INSTALL, "program.npm.install"),
    (("rm", "-rf", "/"), Risk.DESTRUCTIVE, "path.delete_root"),
    (("tee", ".git/hooks/pre-commit"), Risk.PERSISTENCE, "path.persistence:.git/hooks/"),
)
TASKS = ("root", "root/1", "root/1/1", "root/1/2", "root/2")


def one(number: int, choose: random.Random) -> dict[str, object]:
    """Return the fields of a decision: one in twenty is a refusal."""
    risk, rule, words = Risk.SAFE, "program.ls", ALLOWED[number % len(ALLOWED)]
    if choose.random() < 0.05:
        words, risk, rule = choose.choice(REFUSED)
    reason = Reason(rule=rule, risk=risk, text=f"{words[0]} does what it does")
    part = Part(kind=PartKind.COMMAND, effects=frozenset({risk}), reasons=(reason,))
    operation = Exec(argv=(*words, f"file-{number}"), path=f"/usr/bin/{words[0]}", program=f"/usr/bin/{words[0]}", cwd="/work/project", env=ENV)
    verdict = (
        Allow(layer=Layer.PROFILE, rule="profile.effects", effects=frozenset({risk}))
        if risk is Risk.SAFE
        else Deny(what=" ".join(words), effects=frozenset({risk}), layer=Layer.PROFILE, rule=rule, reason=f"{words[0]} is {risk.label}", hint="")
    )
    return event.decided(operation, Assessment(parts=(part,), classifier="2", tables=TABLES), verdict)


def fill(state: Path, count: int) -> Path:
    """Write the journal."""
    choose = random.Random(1)
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
        for number in range(count - 2):
            journal.append(event.EXEC_DECIDED, task=TASKS[number * 7 % len(TASKS)], scope=3, pid=number, **one(number, choose))
        journal.append(event.RUN_FINISHED, status="finished", exit_code=0, denials=0)
    return journal.path


def command(state: Path, *words: str) -> tuple[float, float, int, int]:
    """Run `broker` with these words; return seconds, those of the processor, lines printed, and the most memory in MiB."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "broker", *words], stdout=subprocess.PIPE, env={**os.environ, "BROKER_STATE_DIR": str(state)}
    ) as process:
        assert process.stdout is not None
        lines = sum(piece.count(b"\n") for piece in iter(lambda: process.stdout.read(1 << 20), b""))  # type: ignore[union-attr]
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, lines, usage.ru_maxrss >> 10


def queries(state: Path, rounds: int) -> None:
    """Time the questions."""
    last = ("events", "last")
    second = f"{_last_time(state)[:19]}Z"
    for name, words in (
        ("a rule and a task", (*last, "--rule", "path.delete_root", "--task", "root/1/2", "--limit", "100")),
        ("refusals, the newest 100", (*last, "--verdict", "deny", "--limit", "100")),
        ("worse than network, in the last second", (*last, "--risk", ">=system_write", "--since", second)),
        ("one type that occurs once", (*last, "--type", "run.started")),
        ("a task's refusals of one class, 1,000", (*last, "--task", "root/2", "--risk", "install", "--limit", "1000", "--json")),
        ("all refusals of one rule (12,000), JSON", (*last, "--rule", "program.curl", "--json")),
        ("a text, in every line", (*last, "--grep", "file-777777")),
        ("the same without the index", (*last, "--rule", "path.delete_root", "--task", "root/1/2", "--limit", "100", "--no-index")),
        ("everything, as JSON", (*last, "--json")),
    ):
        times = [command(state, *words) for _ in range(1 if name.startswith(("everything", "the same")) else rounds)]
        seconds, processor = (statistics.median(each[column] for each in times) * 1000 for column in (0, 1))
        _, _, lines, memory = times[0]
        print(f"{name:<44}{seconds:>9,.0f} ms  processor {processor:>7,.0f} ms  {lines:>9,} lines  {memory:>4} MiB", flush=True)


def _last_time(state: Path) -> str:
    from broker.cli.events_list import _last_event
    from broker.record.run_files import find_run

    last = _last_event(find_run(state, "last"))
    assert last is not None
    return str(last["time"])


def following(state: Path, *, per_second: int = 1_000) -> None:
    """Time how long an event takes to come out of `broker events --follow`."""
    seen: dict[int, float] = {}
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"])
        with subprocess.Popen(
            [sys.executable, "-m", "broker", "events", journal.run, "--follow", "--json"],
            stdout=subprocess.PIPE, env={**os.environ, "BROKER_STATE_DIR": str(state)},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            process.stdout.readline()  # it follows

            def read() -> None:
                for line in process.stdout or ():
                    now = time.perf_counter()
                    if (pid := json.loads(line).get("pid")) is not None:
                        seen[pid] = now

            reader = threading.Thread(target=read)
            reader.start()
            written = {}
            choose = random.Random(2)
            begin = time.perf_counter()
            for number in range(FOLLOWED):
                fields = one(number, choose)
                if (wait := begin + number / per_second - time.perf_counter()) > 0:
                    time.sleep(wait)
                written[number] = time.perf_counter()
                journal.append(event.EXEC_DECIDED, pid=number, **fields)
            took = time.perf_counter() - begin
            journal.append(event.RUN_FINISHED, status="finished", exit_code=0, denials=0)
            reader.join()
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = 0
    lags = sorted(seen[number] - written[number] for number in written)
    print(
        f"follow at {FOLLOWED / took:,.0f} events/s: median {lags[len(lags) // 2] * 1000:.1f} ms, p99 {lags[len(lags) * 99 // 100] * 1000:.1f} ms, "
        f"worst {lags[-1] * 1000:.1f} ms; {usage.ru_maxrss >> 10} MiB; none of {len(written):,} lost: {len(seen) == len(written)}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to make the state directory; one that is there is used as it is")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    state = args.folder or Path(tempfile.mkdtemp())
    try:
        if not (state / "runs").exists():
            state.mkdir(mode=0o700, exist_ok=True)
            start = time.perf_counter()
            path = fill(state, args.events)
            print(f"{args.events:,} events written in {time.perf_counter() - start:.0f} s: {path}")
        for file in state.glob("index.sqlite*"):
            file.unlink()
        seconds, processor, _, memory = command(state, "events", "last", "--type", "run.started")
        size = (state / "index.sqlite").stat().st_size
        print(f"index made: {seconds:.1f} s (processor {processor:.1f} s), {memory} MiB at most, {size >> 20} MiB on disk")
        queries(state, args.rounds)
        with tempfile.TemporaryDirectory() as other:
            following(Path(other))
    finally:
        if args.folder is None:
            shutil.rmtree(state)


if __name__ == "__main__":
    main()
