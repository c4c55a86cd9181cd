"""How many events a second are handed on in each format and to each sink, and in how much memory; and judged again.

    python benchmarks/export.py [--events N] [--folder FOLDER]

The events are those of audit.py: decisions as tasks make them, one in twenty a refusal. Each command is a process of its own;
its memory is what the kernel says it had at most. HTTP and NATS are servers on this machine that keep what they get (NATS: on disk).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from audit import fill

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile, up_to
from broker.decide.trust import Trust
from broker.record import event
from broker.record.journal import Journal
from broker.record.recorded import profile_data
from broker.request.operation import Exec
from broker.task.task import Task

FORMATS = ("cloudevents", "cef", "ocsf", "otel")


def timed(state: Path, *words: str) -> tuple[float, float, int]:
    """Run `broker`, and return how long it took, its processor time, and its memory at most, in MiB."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "broker", *words], env={**os.environ, "BROKER_STATE_DIR": str(state)}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status >> 8 in (0, 1), f"broker {' '.join(words)} ended with {status >> 8}"
    child.returncode = status >> 8
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10


@contextmanager
def web() -> Iterator[str]:
    """Serve HTTP on this machine, and take everything."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def stream(folder: Path) -> Iterator[str | None]:
    """Serve a JetStream stream on this machine; None where there is no nats-server."""
    if shutil.which("nats-server") is None:
        yield None
        return
    import nats

    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        ["nats-server", "-js", "-a", "127.0.0.1", "-p", "-1", "-sd", str(folder / "store"), "--ports_file_dir", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (found := list(folder.glob("nats-server_*.ports"))) or not found[0].read_text().strip():
            time.sleep(0.05)
        [url] = json.loads(found[0].read_text())["nats"]

        async def make() -> None:
            client = await nats.connect(url)
            await client.jetstream().add_stream(name="BROKER", subjects=["broker.>"])
            await client.close()

        asyncio.run(make())
        yield f"{url}/BROKER"
    finally:
        process.terminate()
        process.wait()


def judged(state: Path, count: int) -> Path:
    """Write a run that can be judged again, as a task does."""
    own = Profile(name="team", max_risk=Risk.LOCAL_WRITE, effects=up_to(Risk.LOCAL_WRITE))
    context = Context(cwd="/w", home="/home/agent", workspace="/w")
    with Journal.create(state) as journal:
        journal.append(event.RUN_STARTED, command=["agent"])
        journal.append(event.TASK_CREATED, task="root", profile="team", trust="trusted", effects=own.effects, context=context, envelope=profile_data(own))
        task = Task(path="root", envelope=Envelope(profile=own, trust=Trust.TRUSTED), context=context, journal=journal, run_dir=str(state))
        for number in range(count):
            argv = (("git", "status"), ("cat", f"file-{number}"), ("bash", "-c", f"cd src && grep -n x file-{number} | head"))[number % 3]
            task.judge(Exec(argv=argv, path=f"/usr/bin/{argv[0]}", program=f"/usr/bin/{argv[0]}", cwd="/w"), at_gate=True)
        journal.append(event.RUN_FINISHED, status="finished", exit_code=0)
        return journal.path


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="broker-export-", dir=args.folder))
    try:
        measure(folder, args.events)
    finally:
        shutil.rmtree(folder)
    return 0


def measure(folder: Path, count: int) -> None:
    """Print a row for each."""
    state = folder / "state"
    fill(state, count)
    print("| work | events/s | processor, µs an event | most memory |\n|---|---|---|---|", flush=True)

    def row(what: str, events: int, *words: str, of: Path = state) -> None:
        seconds, processor, memory = timed(of, *words)
        print(f"| {what} | {events / seconds:,.0f} | {processor / events * 1e6:.0f} | {memory} MiB |", flush=True)

    for format_ in FORMATS:
        row(f"{format_}, to a file", count, "export", "last", "--format", format_, "--to", str(folder / "out"))
        (folder / "out").unlink()
    with web() as url:
        row("cloudevents, to HTTP", count, "export", "last", "--format", "cloudevents", "--to", url)
        row("otel, to HTTP", count, "export", "last", "--format", "otel", "--to", url)
    with stream(folder / "nats") as url:
        if url is not None:
            row("cloudevents, to a JetStream", count, "export", "last", "--format", "cloudevents", "--to", url)
    few = count // 10
    judged(folder / "judged", few)
    row("judged again (a third of them shell texts)", few, "replay", "last", of=folder / "judged")


if __name__ == "__main__":
    sys.exit(main())
