"""HTTP for the page, with a bound on everything. In: a connection. Out: one request and its answer; then it is closed.

A request has to be whole in a few seconds, however slowly it trickles, and an answer must be read as fast; heads and bodies
have a size; so many connections are open at once, and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import field

import h11

from broker.values import dataclass

MOST_HEAD = 16 << 10  # bytes
MOST_BODY = 8 << 10
MOST_CONNECTIONS = 64
REQUEST_SECONDS = 5.0  # for a whole request
READ_SECONDS = 10.0  # for a client to read what was sent to it
PIECE = 1 << 12

# Nothing but our own files, nothing put into a page as HTML, no frame around it, and nothing of it kept.
HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. Header names are in lower case; of a header that comes twice, the last counts (Host cannot)."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent back; with `stream`, piece by piece for as long as it lasts."""

    status: int = 200
    kind: str = "application/json"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = field(default=None, compare=False)


Serve = Callable[[Request], Awaitable[Answer]]


def as_json(table: object, status: int = 200) -> Answer:
    """Return an answer in JSON."""
    return Answer(status=status, body=json.dumps(table, ensure_ascii=True, separators=(",", ":")).encode("ascii"))


def refusal(status: int, reason: str, *headers: tuple[str, str]) -> Answer:
    """Return an answer that says why not."""
    return Answer(status=status, kind="text/plain; charset=utf-8", body=f"{reason}\n".encode(), headers=headers)


class Connections:
    """Serves connections. `serve` is given each whole request, and must not raise."""

    def __init__(self, serve: Serve) -> None:
        """Begin with none."""
        self._serve = serve
        self._open: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection, if there is room. A plain function: what it starts is ours to keep and to end."""
        if len(self._open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """End them all."""
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        writer.transport.set_write_buffer_limits(high=0)  # what was drained is the kernel's: nothing waits here for a slow reader
        try:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    found = await _request(reader, http)
            except TimeoutError:
                found = refusal(408, f"a request has to be whole within {REQUEST_SECONDS:.0f} s")
            if isinstance(found, Request):
                await _send(writer, http, await self._serve(found))
            elif found is not None:
                await _send(writer, http, found)
                await _let_go(reader, writer)
            writer.close()
        except (OSError, TimeoutError, h11.ProtocolError):
            # Whoever it was is gone, or does not read. What the kernel holds for him goes as well (SO_LINGER in socket(7)).
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            writer.transport.abort()


async def _request(reader: asyncio.StreamReader, http: h11.Connection) -> Request | Answer | None:
    """Read a request. Returns why not, for what is none; None when nothing came."""
    head: h11.Request | None = None
    body = b""
    try:
        while True:
            event = http.next_event()
            match event:
                case h11.NEED_DATA:
                    http.receive_data(await reader.read(PIECE))
                case h11.Request():
                    head = event
                case h11.Data():
                    body += event.data
                    if len(body) > MOST_BODY:
                        return refusal(413, f"a body has at most {MOST_BODY} bytes")
                case h11.EndOfMessage() if head is not None:
                    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
                    return Request(method=head.method.decode(), target=head.target.decode(), headers=headers, body=body)
                case _:
                    return None
    except h11.RemoteProtocolError as error:
        return refusal(error.error_status_hint, "this is no request")


async def _send(writer: asyncio.StreamWriter, http: h11.Connection, answer: Answer) -> None:
    """Send an answer. Raises TimeoutError when nobody reads it."""
    length = () if answer.stream is not None else (("Content-Length", str(len(answer.body))),)
    lines = [*HEADERS, ("Content-Type", answer.kind), *length, *answer.headers]
    await _put(writer, http.send(h11.Response(status_code=answer.status, headers=lines)))
    if answer.stream is None:
        await _put(writer, http.send(h11.Data(data=answer.body)))
    else:
        async with contextlib.aclosing(answer.stream) as pieces:
            async for piece in pieces:
                await _put(writer, http.send(h11.Data(data=piece)))
    await _put(writer, http.send(h11.EndOfMessage()))


async def _let_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what is still sent, for a moment: closed with bytes unread, the kernel would throw our answer away (tcp(7))."""
    if writer.can_write_eof():
        writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while await reader.read(PIECE):
                pass


async def _put(writer: asyncio.StreamWriter, data: bytes | None) -> None:
    writer.write(data or b"")
    async with asyncio.timeout(READ_SECONDS):
        await writer.drain()
