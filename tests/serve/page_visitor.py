"""The page's server in this process, and a visitor that speaks to it over a bare socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from broker.serve.page.door import Door
from broker.serve.page.server import Server, door_of, listener


class Reply(NamedTuple):
    """An answer, as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


class Served:
    """A server that runs. `head` has what our own page's requests have."""

    def __init__(self, door: Door, port: int) -> None:
        self.door, self.port = door, port
        self.entered = 0
        self.asked: list[tuple[str, ...]] = []

    @property
    def host(self) -> str:
        return self.door.hosts[0]

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"broker-page={self.door.cookie}"}

    @property
    def own(self) -> dict[str, str]:
        return {"Origin": f"http://{self.host}", "Sec-Fetch-Site": "same-origin"}

    def ask(self, method: str, name: str, body: object = None, *, whole_path: bool = False, **headers: str) -> Reply:
        """Ask for something below the server's path, with these headers (`_` for `-`); the Host is ours, unless one is given."""
        given = {"Host": self.host} | {key.replace("_", "-"): value for key, value in headers.items()}
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            given = {"Content-Type": "application/json", "Content-Length": str(len(data))} | given
        target = name if whole_path else f"{self.door.path}{name}"
        lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {value}" for key, value in given.items()), "", ""]
        return self.raw("\r\n".join(lines).encode("latin-1") + data)

    def get(self, name: str, **headers: str) -> Reply:
        return self.ask("GET", name, **self.cookie, **headers)

    def post(self, name: str, body: object, **headers: str) -> Reply:
        return self.ask("POST", name, body, **{**self.own, **self.cookie, **headers})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def raw(self, data: bytes) -> Reply:
        with self.connect() as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # it need not take what it does not want
                connection.sendall(data)
            return read(connection)


def read(connection: socket.socket) -> Reply:
    """Read an answer until the other side closes; status 0 where it just closes."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    if not data:
        return Reply(0, {}, b"")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(": ") for line in lines]
    return Reply(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, body)


def news(connection: socket.socket, seen: bytearray) -> dict[str, Any]:
    """Return the next thing that a stream says. `seen` holds what came and was not read yet."""
    while True:
        for line in seen.split(b"\n")[:-1]:
            del seen[: len(line) + 1]
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return found
        piece = connection.recv(65536)
        assert piece, "the stream has ended"
        seen += piece


@contextmanager
def served(address: str = "127.0.0.1") -> Iterator[Served]:
    """Run a server for the length of the block."""
    listening = listener(address, 0)
    listening.listen(64)
    made = Served(door_of(listening), listening.getsockname()[1])

    def explain(*words: str) -> dict[str, Any]:
        made.asked.append(words)
        return {"id": "R:1", "what": "w", "why": "y", "how": "h"}

    def entered() -> None:
        made.entered += 1

    async def run() -> None:
        ended = asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(ended.set))
        loop = asyncio.get_running_loop()
        started.set()
        await Server(made.door, explain, entered).serve(listening, ended)

    ends: list[Any] = []
    started = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(run()), name="page-server")
    thread.start()
    assert started.wait(20)
    try:
        yield made
    finally:
        ends[0]()
        thread.join(20)
        listening.close()
    assert not thread.is_alive()
