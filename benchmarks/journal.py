"""How many events a second the journal takes, with its chain, the chain file and the look for secrets. Goal: 20,000.

    python benchmarks/journal.py [FOLDER]

Events are decisions as `run` records them. The folder decides the file system (default: the temporary one).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.decide.verdict import Allow, Layer
from broker.record import event
from broker.record.chain import REACHED, Chain
from broker.record.evidence import examine
from broker.record.journal import SEGMENT, Journal, Sync
from broker.record.verify import verify
from broker.request.operation import Exec

COUNT = 20_000
ROUNDS = 5
OPERATION = Exec(
    argv=("git", "-C", "/work/project", "status", "--short", "--branch"),
    path="/usr/bin/git",
    program="/usr/bin/git",
    cwd="/work/project",
)
REASON = Reason(rule="program.git.status", risk=Risk.SAFE, text="reads the state of a repository")
PART = Part(kind=PartKind.COMMAND, effects=frozenset({Risk.SAFE}), reasons=(REASON,))
ASSESSMENT = Assessment(parts=(PART,), classifier="1", tables="ab" * 32)
VERDICT = Allow(layer=Layer.PROFILE, rule="profile.max_risk", effects=frozenset({Risk.SAFE}))


SECRET = Exec(
    argv=("curl", "-H", "Authorization: Bearer mF_9.B5f-4.1JqM", "https://host.example/x"), path="/usr/bin/curl", program="/usr/bin/curl",
    cwd="/work/project",
)  # fmt: skip


def fill(journal: Journal, count: int, operation: Exec = OPERATION) -> None:
    """Append decisions, made into fields each time, as a run does."""
    for number in range(count):
        fields = event.decided(operation, ASSESSMENT, VERDICT)
        journal.append(event.EXEC_DECIDED, task="root/1", scope=3, pid=number, **fields)


def rate(
    folder: Path, *, threads: int = 1, sync: Sync = Sync.ENDS, count: int = COUNT, operation: Exec = OPERATION,
    segment: int = SEGMENT,
) -> tuple[float, Journal]:  # fmt: skip
    """Return events a second, and the journal."""
    with Journal.create(folder, sync=sync, segment=segment) as journal:
        workers = [
            threading.Thread(target=fill, args=(journal, count // threads, operation)) for _ in range(threads)
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return count / (time.perf_counter() - start), journal


def plain_writes(folder: Path, line: bytes) -> float:
    """Return the same lines a second without a chain: what the kernel alone takes."""
    descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    start = time.perf_counter()
    for _ in range(COUNT):
        os.write(descriptor, line)
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return COUNT / seconds


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        folder = Path(place)
        rates = [rate(folder) for _ in range(ROUNDS)]
        journal = rates[-1][1]
        line = journal.path.read_bytes().splitlines(keepends=True)[-1]
        print(f"append, one thread     {statistics.median(each for each, _ in rates):>10,.0f} events/s")
        print(f"append, four threads   {rate(folder, threads=4)[0]:>10,.0f} events/s")
        print(f"append, 1 MiB segments {rate(folder, segment=1 << 20)[0]:>10,.0f} events/s")
        print(f"append, each a secret  {rate(folder, operation=SECRET)[0]:>10,.0f} events/s")
        forced = rate(folder, sync=Sync.EVERY, count=200)[0]
        print(f"append, each forced    {forced:>10,.0f} events/s")
        print(f"write(2) alone         {plain_writes(folder, line):>10,.0f} lines/s of {len(line)} bytes")
        start = time.perf_counter()
        found = verify(journal.path)
        print(f"verify                 {found.count / (time.perf_counter() - start):>10,.0f} events/s")
        assert found.ok
        start = time.perf_counter()
        findings = list(examine(folder))
        events = sum(finding.found.count for finding in findings if finding.found)
        print(f"verify, whole record   {events / (time.perf_counter() - start):>10,.0f} events/s of {len(findings)} runs")
        assert all(finding.ok for finding in findings)
        start = time.perf_counter()
        for _ in range(20):
            with Journal.create(folder) as short:
                short.append(event.RUN_STARTED)
        print(f"create and first event {(time.perf_counter() - start) / 20 * 1000:>10.2f} ms")
        start = time.perf_counter()
        for number in range(1000):
            Chain(folder).append(REACHED, run=journal.run, count=number, head="0" * 64)
        print(f"an entry in the chain  {(time.perf_counter() - start) * 1000:>10,.0f} µs")


if __name__ == "__main__":
    main()
