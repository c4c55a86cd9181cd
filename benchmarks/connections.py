"""What connections of a sandbox's own cost, each looked at before it is made; and the way to a port that the broker serves."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import folders, run_in, sandbox
from broker.decide.gateway import ports_for

EACH = 5_000
HOSTS = ("example.invalid:443",)  # a profile that lists one has a port
# Seconds of one, written into a file: neither the start of Python counts, nor that of the sandbox.
FRAME = """
import threading, time
from socket import *
{prepare}
def once():
    {once}
for _ in range(200): once()
began = time.perf_counter()
for _ in range({each}): once()
open("took", "w").write(str((time.perf_counter() - began) / {each}))
"""
LISTEN = "server = create_server(('127.0.0.1', 0)); at = server.getsockname()"
WORK = {  # what is prepared, what is timed, and how many times what it costs outside
    "a TCP connection on the loopback": (LISTEN, "with create_connection(at), server.accept()[0]: pass", 2.5),
    "a UDP datagram to an address of the loopback": (
        "one = socket(AF_INET, SOCK_DGRAM); one.bind(('127.0.0.1', 0)); at = one.getsockname()",
        "one.sendto(b'x', at); one.recv(1)", 10,
    ),
    "a UDP datagram on a connected socket": (
        "one = socket(AF_INET, SOCK_DGRAM); one.bind(('127.0.0.1', 0)); one.connect(one.getsockname())",
        "one.send(b'x'); one.recv(1)", 1.3,
    ),
}  # fmt: skip
ASK = "with create_connection(at) as one: one.send(b'x'); one.recv(1)"
SERVE = LISTEN + """
def serve():
    while True:
        with server.accept()[0] as one: one.recv(1); one.send(b'x')
threading.Thread(target=serve, daemon=True).start()"""


def figures(docker: bool) -> Iterator[Pair]:
    """Yield each figure as it is measured, on bubblewrap: the guard is the same in Docker."""
    del docker
    [port] = ports_for((), HOSTS)
    with folders() as (workspace, state), sandbox("bubblewrap", workspace, state, hosts=HOSTS) as (running, task):
        task.connected = _answer

        def inside(script: str) -> float:
            if run_in(running, task, ("/usr/bin/python3", "-c", script), workspace):
                raise RuntimeError(f"failed inside: {script}")
            return float(Path(workspace, "took").read_text())

        def outside(script: str) -> float:
            subprocess.run(("/usr/bin/python3", "-c", script), cwd=workspace, check=True, stdin=subprocess.DEVNULL)
            return float(Path(workspace, "took").read_text())

        for name, (prepare, once, goal) in WORK.items():
            script = FRAME.format(prepare=prepare, once=once, each=EACH)
            yield pair(
                name, lambda script=script: inside(script), lambda script=script: outside(script),
                against="unsandboxed", goal=goal, runs=7, inner=True,
            )  # fmt: skip
        served = FRAME.format(prepare=f"at = ('127.0.0.1', {port})", once=ASK, each=EACH // 5)
        own = FRAME.format(prepare=SERVE, once=ASK, each=EACH // 5)
        yield pair(
            "a connection to the broker, and a byte back", lambda: inside(served), lambda: outside(own),
            against="to a thread, unsandboxed", goal=10, runs=7, inner=True,
        )  # fmt: skip


def _answer(port: int, connection: socket.socket) -> None:
    """Answer on a thread of its own, as whoever serves a port does."""
    del port

    def serve() -> None:
        with connection:
            connection.recv(1)
            connection.send(b"x")

    threading.Thread(target=serve, daemon=True).start()
