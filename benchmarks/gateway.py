"""What a gateway costs: the same client in a sandbox, through a gateway; outside, straight to the same upstream; and outside
through a relay in Python that looks at nothing, which is what any way through a process like the broker costs at least.

All are measured in turn, in one run. Upstream and relay are processes of their own that do nothing else; the broker is the
real command, on bubblewrap. Run alone: python -m benchmarks.gateway
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
LARGE = 512 * MIB
ROUNDS = 5
REQUESTS = 200

# Runs on both sides, with nothing but the standard library. argv: URL; prints JSON.
CLIENT = """
import json, socket, sys, threading, time
host, port = sys.argv[1].removeprefix("http://").split("/")[0].split(":")
view = memoryview(bytearray(1 << 20))

def opened():
    return socket.create_connection((host, int(port)))

def head(client, path, extra=b""):
    client.sendall(b"POST /" + path + b" HTTP/1.1\\r\\nHost: x\\r\\n" + (extra or b"Content-Length: 0\\r\\n") + b"\\r\\n")

def first_bytes(count):
    seen = []
    with opened() as client:
        for _ in range(count):
            began = time.perf_counter()
            head(client, b"small")
            client.recv(4096)
            seen.append(time.perf_counter() - began)
    return seen

def fresh_ones(count):
    seen = []
    for _ in range(count):
        began = time.perf_counter()
        with opened() as client:
            head(client, b"small")
            client.recv(4096)
        seen.append(time.perf_counter() - began)
    return seen

def large(path, size):
    with opened() as client:
        began, got = time.perf_counter(), 0
        head(client, path)
        while got < size:
            got += client.recv_into(view)
        return size / (time.perf_counter() - began) / 1e6

def upload(size):
    with opened() as client:
        began = time.perf_counter()
        head(client, b"take", b"Content-Length: %d\\r\\n" % size)
        for _ in range(0, size, 1 << 20):
            client.sendall(view)
        client.recv(4096)
        return size / (time.perf_counter() - began) / 1e6

def streams(count):
    # Each stream is 50 events that the upstream sends as fast as they are taken.
    done = []
    def one():
        with opened() as client:
            head(client, b"events")
            text = b""
            while not text.endswith(b"0\\r\\n\\r\\n"):
                text += client.recv(65536)
            done.append(text.count(b"data:"))
    threads = [threading.Thread(target=one) for _ in range(count)]
    began = time.perf_counter()
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert done == [50] * count, done
    return time.perf_counter() - began

first_bytes(20)
print(json.dumps({"first": first_bytes(REQUESTS), "fresh": fresh_ones(REQUESTS // 4), "sized": large(b"sized", LARGE),
    "chunked": large(b"chunked", LARGE), "upload": upload(LARGE), "streams": streams(60)}))
""".replace("REQUESTS", str(REQUESTS)).replace("LARGE", str(LARGE))


def upstream() -> None:
    """Serve: run as a process of its own. Prints its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client,), daemon=True).start()


def _serve(client: socket.socket) -> None:
    piece = bytes(MIB)
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with client, contextlib.suppress(OSError):
        rest = b""
        while True:
            while b"\r\n\r\n" not in rest:
                data = client.recv(65536)
                if not data:
                    return
                rest += data
            head, _, rest = rest.partition(b"\r\n\r\n")
            if b"/small " in head:
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            elif b"/sized " in head:
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE)
                for _ in range(0, LARGE, MIB):
                    client.sendall(piece)
            elif b"/chunked " in head:
                client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(0, LARGE, 0x10000):
                    client.sendall(chunk)
                client.sendall(b"0\r\n\r\n")
            elif b"/take " in head:
                left, view = LARGE - len(rest), memoryview(bytearray(MIB))
                rest = b""
                while left:
                    left -= client.recv_into(view)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            else:
                client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(50):
                    client.sendall(b"c\r\ndata: hello\n\r\n")
                client.sendall(b"0\r\n\r\n")


def relay(port: int) -> None:
    """Carry bytes to the upstream and back: run as a process of its own. Prints its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            outer = socket.create_connection(("127.0.0.1", port))
            for source, target in ((client, outer), (outer, client)):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    view = memoryview(bytearray(1 << 18))
    with contextlib.suppress(OSError):
        while count := source.recv_into(view):
            target.sendall(view[:count])
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def served(what: str = "upstream()") -> Iterator[int]:
    """Run the upstream, or a relay to one."""
    words = [sys.executable, "-c", f"from benchmarks.gateway import relay, upstream; {what}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def inside(place: Path, port: int) -> Any:
    """Run the client in a sandbox, under a profile with one gateway."""
    profile = {"profiles": {"gateway": {
        "max_risk": "code_execution", "effects": {"add": ["unknown"]},
        "gateways": {"up": {
            "upstream": f"http://127.0.0.1:{port}", "env": {"UP": "{url}"}, "request_bytes": 2 * LARGE, "response_bytes": 2 * LARGE,
        }},
    }}}  # fmt: skip
    (place / "profiles").mkdir(exist_ok=True)
    (place / "profiles" / "gateway.json").write_text(json.dumps(profile), encoding="ascii")
    (place / "workspace").mkdir(exist_ok=True)
    (place / "workspace" / "client.py").write_text(CLIENT, encoding="ascii")
    words = [sys.executable, "-m", "broker", "run", "--engine", "bubblewrap", "-q", "--profile-dir", str(place / "profiles"),
             "-p", "gateway", "-w", str(place / "workspace"), "--", "sh", "-c", "exec python3 client.py $UP"]  # fmt: skip
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, env=os.environ | {"BROKER_STATE_DIR": str(place / "state")})
    return json.loads(done.stdout)


def outside(place: Path, port: int) -> Any:
    """Run the same client here, straight to the upstream."""
    words = [sys.executable, str(place / "workspace" / "client.py"), f"http://127.0.0.1:{port}"]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)


def figures() -> str:
    """Measure, and return the rows of the table in docs/benchmarks.md."""
    ours: list[Any] = []
    relayed: list[Any] = []
    straight: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, served() as port, served(f"relay({port})") as between:
        place = Path(folder)
        place.chmod(0o755)
        for _ in range(ROUNDS):
            ours.append(inside(place, port))
            straight.append(outside(place, port))
            relayed.append(outside(place, between))

    def of(side: list[Any], name: str) -> float:
        return statistics.median(statistics.median(one[name]) if isinstance(one[name], list) else one[name] for one in side)

    rows = ["| through a gateway | inside | a bare relay | straight | goal | met |", "|---|---|---|---|---|---|"]
    for name, text in (("first", "first byte, connection kept"), ("fresh", "first byte, new connection")):
        taken = " | ".join(f"{of(side, name) * 1000:.2f} ms" for side in (ours, relayed, straight))
        added = (of(ours, name) - of(straight, name)) * 1000
        rows.append(f"| {text} | {taken} | adds ≤ 3 ms: {added:.2f} | {_met(added <= 3)} |")
    for name, text in (("sized", "an answer of 512 MiB, sized"), ("chunked", "an answer of 512 MiB, in chunks"), ("upload", "a request of 512 MiB")):
        taken = " | ".join(f"{of(side, name):.0f} MB/s" for side in (ours, relayed, straight))
        rows.append(f"| {text} | {taken} | ≥ 200 MB/s: {of(ours, name) / of(relayed, name):.2f}× the relay | {_met(of(ours, name) >= 200)} |")
    taken = " | ".join(f"{of(side, 'streams') * 1000:.0f} ms" for side in (ours, relayed, straight))
    rows.append(f"| 60 streams of 50 events at once | {taken} | | |")
    return "\n".join(rows)


def _met(good: bool) -> str:
    return "yes" if good else "**no**"


if __name__ == "__main__":
    print(figures())
