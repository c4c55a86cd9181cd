"""A connection to an upstream that speaks HTTP/1.1. The heads are h11's business; bodies are carried as they are (bodies.py)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import h11

from broker.decide.egress import Header, Outgoing
from broker.serve import bodies
from broker.serve.bodies import Piece
from broker.serve.upstream import Answer, Failed, Wanted, send_all, take, wait

MOST_HEAD = 64 * 1024  # bytes of an answer's status line and headers
MOST_INTERIM = 16  # answers of 1xx before the answer
HEAD_SECONDS = 60.0  # for the rest of a head that has begun
CHUNK = 1 << 18
VERSIONS = (b"1.1", b"1.0")


class Http1Line:
    """A connection that speaks HTTP/1.1."""

    def __init__(self, outer: socket.socket) -> None:
        self.outer = outer
        self.used = 0.0
        self.reusable = False
        self._buffer = bytearray(CHUNK)

    def ask(self, out: Outgoing, headers: list[Header], body: Iterator[bytes], wanted: Wanted) -> Answer:
        """Send a request and wait for the head of its answer."""
        self.reusable = False
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        framing = [(b"transfer-encoding", b"chunked")] if out.length is None else [(b"content-length", b"%d" % out.length)]
        if out.upgrade:
            framing = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        elif out.length == 0 and out.method in ("GET", "HEAD", "DELETE", "OPTIONS"):
            framing = []
        whole = self._send(http, h11.Request(method=out.method, target=out.target, headers=[*headers, *framing]), body)
        head, rest = self._head(http, wanted)
        found = [(bytes(name), bytes(value)) for name, value in head.headers]
        if head.status_code == 101:
            if not out.upgrade:
                raise Failed("the upstream switched to another protocol, which nobody had asked for")
            return Answer(101, found, iter(()), switched=self.outer, rest=rest)
        length = _length(out.method, head)
        lasts = whole and head.http_version == b"1.1" and not any(name == b"connection" for name, _ in found)
        chunked = length is None and any(name == b"transfer-encoding" for name, _ in found)
        lasts = lasts and (chunked or length is not None)
        return Answer(head.status_code, found, self._pieces(rest, length, chunked=chunked, wanted=wanted, lasts=lasts), length)

    def _send(self, http: h11.Connection, request: h11.Request, body: Iterator[bytes]) -> bool:
        """Send head and body. Returns whether all was taken; who answers before may not want the rest."""
        first = http.send(request)
        for piece in body:
            data = http.send_with_data_passthrough(h11.Data(data=piece)) or []
            try:
                send_all(self.outer, (first, *data))
            except OSError:
                return False
            first = b""
        self.outer.sendall(first + http.send(h11.EndOfMessage()))
        return True

    def _head(self, http: h11.Connection, wanted: Wanted) -> tuple[h11.Response | h11.InformationalResponse, bytes]:
        """Wait for the head of the answer. Returns it, and what came after it."""
        interim, until = 0, 0.0
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = take(self.outer, wanted, until)
                until = until or time.monotonic() + HEAD_SECONDS
                http.receive_data(data)
            elif isinstance(event, h11.InformationalResponse) and event.status_code != 101:
                interim, until = interim + 1, 0.0
                if interim > MOST_INTERIM:
                    raise Failed("the upstream announces an answer for ever")
            elif isinstance(event, (h11.Response, h11.InformationalResponse)) and event.http_version in VERSIONS:
                return event, http.trailing_data[0]
            else:
                raise Failed("the upstream gave no answer in HTTP/1.1")

    def _pieces(self, rest: bytes, length: int | None, *, chunked: bool, wanted: Wanted, lasts: bool) -> Iterator[Piece]:
        """Yield the body; after it the connection can be used again, if nothing came behind it."""

        def fill(view: memoryview) -> int:
            wait(self.outer, wanted)
            return self.outer.recv_into(view)

        body = bodies.chunked(fill, self._buffer, rest) if chunked else bodies.sized(fill, self._buffer, rest, length)
        try:
            left_over = yield from body
        except bodies.Malformed as error:
            raise Failed(str(error)) from None
        self.reusable = lasts and not left_over


def _length(method: str, head: h11.Response | h11.InformationalResponse) -> int | None:
    """Return how long an answer's body is (RFC 9112 §6.3); None: it says so itself."""
    if method == "HEAD" or head.status_code in (204, 304):
        return 0
    if any(name == b"transfer-encoding" for name, _ in head.headers):
        return None
    return next((int(value) for name, value in head.headers if name == b"content-length"), None)
