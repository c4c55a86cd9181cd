"""A connection to an upstream that chose HTTP/2, by httpcore2. One request at a time, as with HTTP/1.1.

httpcore2 lets several threads use one connection but not start requests on it at once, and what one of them waits for would
hang on whether another one reads. Connections are cheap here, requests are few.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import h2.exceptions
import httpcore2

from broker.decide.egress import Header, Outgoing
from broker.decide.gateway import Gateway
from broker.serve.bodies import Piece
from broker.serve.upstream import Answer, Failed, Wanted, take, words


class Http2Line:
    """A connection that speaks HTTP/2."""

    def __init__(self, outer: socket.socket, gateway: Gateway) -> None:
        self.outer = outer
        self.used = 0.0
        self._whole = False
        self._host = gateway.host.encode("ascii")
        self._stream = _Stream(outer)
        self._http = httpcore2.HTTP2Connection(httpcore2.Origin(b"https", self._host, gateway.port), self._stream)
        self._port = gateway.port

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return self._whole and self._http.is_available() and self._http.is_idle()

    def ask(self, out: Outgoing, headers: list[Header], body: Iterator[bytes], wanted: Wanted) -> Answer:
        """Send a request and wait for the head of its answer."""
        self._whole = False
        self._stream.wanted = wanted
        framing: list[Header] = []
        if out.length is None:
            framing = [(b"transfer-encoding", b"chunked")]  # not sent: it says that there is a body
        elif out.length or out.method in ("POST", "PUT", "PATCH"):
            framing = [(b"content-length", b"%d" % out.length)]
        request = httpcore2.Request(
            out.method, httpcore2.URL(scheme=b"https", host=self._host, port=self._port, target=out.target),
            headers=[*headers, *framing], content=body,
        )  # fmt: skip
        with _told():
            response = self._http.handle_request(request)
        if response.status < 200:
            raise Failed("the upstream switched to another protocol, which nobody had asked for")
        found = [(name.lower(), value) for name, value in response.headers]
        length = next((int(value) for name, value in found if name == b"content-length" and value.isdigit()), None)
        if out.method == "HEAD" or response.status in (204, 304):
            length = 0
        return Answer(response.status, found, self._pieces(response), length)

    def _pieces(self, response: httpcore2.Response) -> Iterator[Piece]:
        with _told(), contextlib.closing(response):
            yield from response.iter_stream()
        self._whole = True


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say what went wrong in the words of every connection."""
    try:
        yield
    except (
        httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ConnectionNotAvailable, h2.exceptions.H2Error,
        ValueError, LookupError,  # what the two of them make of a status that is no number, or of frames after the end
    ) as error:  # fmt: skip
        raise Failed(f"the upstream ended the connection: {words(error) or type(error).__name__}") from None


class _Stream(httpcore2.NetworkStream):
    """The bytes below, bounded in time, and ended when nobody waits for the answer."""

    def __init__(self, outer: socket.socket) -> None:
        self._outer = outer
        self.wanted: Wanted = lambda _seconds: True

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del max_bytes, timeout
        return take(self._outer, self.wanted)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        if buffer:
            self._outer.sendall(buffer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._outer.close()

    def get_extra_info(self, info: str) -> Any:
        del info
        return None


