"""Gateways of a real task in this process, with a port in front of them, and upstreams that do what a test wants.

What the guard does inside (listen, accept, hand over) is done here by a thread; what comes after is the product's.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.gateway import FIRST_PORT, PROXY_PORT, Gateway
from broker.decide.profile import Profile, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Deny
from broker.errors import BrokerError
from broker.record.journal import Journal, read
from broker.serve.gateway import Gateways
from broker.task.task import Task

PATIENCE = 20.0


class Upstream:
    """A server on loopback: `serve` gets each connection, on a thread of its own."""

    def __init__(self, serve: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> None:
        self._serve, self._context = serve, context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self.ended = threading.Semaphore(0)  # one for each connection that is over
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.settimeout(PATIENCE)
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            with client:
                self._serve(client)
        self.ended.release()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def head_of(client: socket.socket) -> bytes:
    """Read a request's or an answer's head, and nothing behind it."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        piece = client.recv(1)
        if not piece:
            break
        found += piece
    return found


def all_of(client: socket.socket) -> bytes:
    """Read until the other side ends it."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 16):
            found += piece
    return bytes(found)


def says(answer: bytes, asked: list[bytes] | None = None) -> Callable[[socket.socket], None]:
    """Serve one request with these bytes, and end. `asked` gets the heads."""

    def serve(client: socket.socket) -> None:
        head = head_of(client)
        length = re.search(rb"content-length: (\d+)", head.lower())
        left = int(length[1]) if length else 0
        while left and (piece := client.recv(left)):
            left -= len(piece)
        if asked is not None and head:
            asked.append(head)
        client.sendall(answer)

    return serve


class Door:
    """A task with gateways and hosts. `port(name)` is where one of them listens; '' is the proxy."""

    def __init__(self, place: Path, gateways: tuple[Gateway, ...] = (), hosts: tuple[str, ...] = ()) -> None:
        run_dir = place / "run"
        run_dir.mkdir()
        self.journal = Journal.create(place / "state")
        self.told: list[Deny] = []
        self.failed: list[BrokerError] = []
        gateways = tuple(replace(gateway, inside=FIRST_PORT + number) for number, gateway in enumerate(gateways))
        profile = Profile(
            name="test", max_risk=Risk.NETWORK_EGRESS, effects=up_to(Risk.NETWORK_EGRESS), gateways=gateways, hosts=hosts,
        )  # fmt: skip
        self.task = Task(
            path="root", envelope=Envelope(profile=profile, trust=Trust.TRUSTED),
            context=Context(cwd="/w", home="/home/agent", workspace="/w", writable=("/w",)), journal=self.journal,
            run_dir=str(run_dir), tell=lambda _tool, denial: self.told.append(denial),
        )  # fmt: skip
        self.task.end = self.failed.append
        self.ways = Gateways(self.task)
        self._ports: dict[str, int] = {}
        self._listeners: list[socket.socket] = []
        self._clients: list[http.client.HTTPConnection] = []
        for name, inside in (*((gateway.name, gateway.inside) for gateway in gateways), ("", PROXY_PORT)):
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            self._listeners.append(listener)
            self._ports[name] = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener, inside), daemon=True).start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.ways.accept(port, client)

    def port(self, name: str = "up") -> int:
        return self._ports[name]

    def connect(self, name: str = "up") -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port(name)), PATIENCE)

    def client(self, name: str = "up") -> http.client.HTTPConnection:
        """An HTTP client, closed with the door."""
        made = http.client.HTTPConnection("127.0.0.1", self.port(name), timeout=PATIENCE)
        self._clients.append(made)
        return made

    def ask(self, text: bytes, name: str = "up") -> bytes:
        """Send bytes, and return everything that comes until the connection ends."""
        with self.connect(name) as client:
            client.sendall(text)
            return all_of(client)

    def get(self, path: str = "/v1/x", *, headers: str = "", method: str = "GET", name: str = "up") -> bytes:
        return self.ask(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode(), name)

    def post(self, body: bytes, path: str = "/v1/x", name: str = "up") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return self.ask(head.encode() + body, name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the journal holds of this type."""
        return [event for event in read(self.journal.path) if event["type"] == kind]

    def answered(self, count: int = 1) -> list[dict[str, Any]]:
        """The requests that are accounted for, at least so many: that comes after the answer."""
        until(lambda: len(self.events("gateway.answered")) >= count)
        return self.events("gateway.answered")

    def rules(self) -> list[str]:
        """The rules of the denials so far."""
        return [denial.rule for denial in self.told]

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for client in self._clients:
            client.close()
        self.ways.close()
        self.journal.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread does, however long the machine takes."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


class House:
    """Makes doors and upstreams, and closes them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.doors: list[Door] = []
        self._stack = contextlib.ExitStack()

    def upstream(self, serve: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Upstream:
        made = Upstream(serve, context)
        self._stack.callback(made.close)
        return made

    def door(self, *gateways: Gateway, hosts: tuple[str, ...] = ()) -> Door:
        place = self._place / str(len(self.doors))
        place.mkdir()
        made = Door(place, gateways, hosts)
        self.doors.append(made)
        self._stack.callback(made.close)
        return made

    def to(self, serve: Callable[[socket.socket], None] | Upstream, **settings: Any) -> Door:
        """A door with one gateway, `up`, to an upstream."""
        upstream = serve if isinstance(serve, Upstream) else self.upstream(serve)
        return self.door(gateway_to(upstream.port, **settings))

    def close(self) -> None:
        self._stack.close()


def gateway_to(port: int, **settings: Any) -> Gateway:
    return Gateway(**{"name": "up", "scheme": "http", "host": "127.0.0.1", "port": port, **settings})


@contextlib.contextmanager
def house(place: Path) -> Iterator[House]:
    made = House(place)
    try:
        yield made
    finally:
        made.close()
