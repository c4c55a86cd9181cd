"""The connections of one task to one gateway's upstream: opened, kept, ended. What they speak is upstream_http1.py, or _http2.py.

In: what may be sent on. Out: the answer's head, and its body piece by piece, as it comes. A connection serves one request
at a time, so that nothing of one request can end up in another, and whoever gives up the request ends it. Nobody is
believed: heads, times and sizes are bounded, and no redirect, proxy setting or cookie is followed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import h11

from broker.decide.egress import Header, Outgoing
from broker.decide.gateway import Gateway
from broker.serve.addresses import Unreachable, connect, resolve
from broker.serve.bodies import Piece
from broker.values import dataclass

IDLE_SECONDS = 600.0  # a model may think for long before its next word
WRITE_SECONDS = 120.0  # nothing of a piece is taken
KEPT_SECONDS = 30.0  # an unused connection
MOST_KEPT = 8
SMALL = 1 << 14  # bytes that are joined sooner than sent one by one
READ = 1 << 16  # at once, where bytes objects are made: larger ones are memory that the kernel maps anew each time
Wanted = Callable[[float], bool]  # waits so many seconds for the upstream; raises Gone when nobody waits for it any more


class Failed(Exception):
    """The upstream did not answer as HTTP wants. Its text goes to the agent. `late`: it did not answer in time."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class Gone(Exception):
    """Who asked does not wait for the answer any more."""


@dataclass(slots=True)
class Answer:
    """An upstream's answer. `length` is its body's, None where it ends when it ends. `headers` have lower-case names.

    A piece is good until the next is asked for. `switched` is the connection when it speaks another protocol from now on.
    """

    status: int
    headers: list[Header]
    pieces: Iterator[Piece]
    length: int | None = None
    switched: socket.socket | None = None
    rest: bytes = b""


class Line(Protocol):
    """One connection."""

    outer: socket.socket
    used: float

    def ask(self, out: Outgoing, headers: list[Header], body: Iterator[bytes], wanted: Wanted) -> Answer:
        """Send a request and wait for the head of its answer."""

    @property
    def reusable(self) -> bool:
        """Whether another request may follow: the last one was answered in full, and nothing is left over."""


@functools.cache
def tls_context(files: tuple[str | None, str | None], *, http2: bool) -> ssl.SSLContext:
    """Return how certificates are checked: by the host's authorities, or SSL_CERT_FILE and SSL_CERT_DIR. Reading them takes a while."""
    context = ssl.create_default_context(cafile=files[0], capath=files[1])
    context.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
    return context


class Upstream:
    """Opens, keeps and ends connections. Safe to use from several threads."""

    def __init__(self, gateway: Gateway) -> None:
        """Open nothing yet."""
        self.gateway = gateway
        self._addresses: list[str] = []
        self._kept: list[Line] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def asked(
        self, out: Outgoing, headers: list[Header], body: Iterator[bytes], client: socket.socket
    ) -> Iterator[Answer]:
        """Send a request on; the connection is kept if all of the answer was taken. `client` is who waits for it.

        Raises Unreachable, Failed, Gone.
        """
        line = self._take(fresh=out.upgrade)
        try:
            yield line.ask(out, headers, body, _Watch(line.outer, client))
        except (OSError, h11.ProtocolError) as error:
            raise Failed(f"the upstream ended the connection: {words(error)}") from None
        finally:
            self._give_back(line)

    def close(self) -> None:
        """End every connection, whoever is waiting on it. May be called twice."""
        with self._lock:
            self._closed = True
            ending, kept, self._kept = list(self._open), self._kept, []
        for one in ending:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for line in kept:
            self._end(line.outer)

    def _take(self, *, fresh: bool) -> Line:
        while not fresh:
            with self._lock:
                line = self._kept.pop() if self._kept else None
            if line is None:
                break
            if time.monotonic() - line.used < KEPT_SECONDS and not _readable(line.outer):
                return line
            self._end(line.outer)
        return self._connect(http2=not fresh)

    def _give_back(self, line: Line) -> None:
        line.used = time.monotonic()
        with self._lock:
            if line.reusable and not self._closed and len(self._kept) < MOST_KEPT:
                self._kept.append(line)
                return
        self._end(line.outer)

    def _end(self, outer: socket.socket) -> None:
        with self._lock:
            self._open.discard(outer)
        with contextlib.suppress(OSError):
            outer.close()

    def _connect(self, *, http2: bool) -> Line:
        gateway = self.gateway
        known = self._addresses
        try:
            plain = connect(known or self._look_up(), gateway.port)
        except Unreachable:
            if not known:
                raise
            plain = connect(self._look_up(), gateway.port)  # it has moved; where to is looked at as it was the first time
        try:
            outer = plain if gateway.scheme == "http" else self._secured(plain, http2=http2)
            outer.settimeout(WRITE_SECONDS)
            with self._lock:
                if self._closed:
                    raise Unreachable("the task is over")
                self._open.add(outer)
        except BaseException:
            plain.close()
            raise
        if isinstance(outer, ssl.SSLSocket) and outer.selected_alpn_protocol() == "h2":
            from broker.serve.upstream_http2 import Http2Line

            return Http2Line(outer, gateway)
        from broker.serve.upstream_http1 import Http1Line

        return Http1Line(outer)

    def _look_up(self) -> list[str]:
        self._addresses = resolve(self.gateway.host, self.gateway.port, self.gateway.addresses)
        return self._addresses

    def _secured(self, plain: socket.socket, *, http2: bool) -> ssl.SSLSocket:
        files = (os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None)
        try:
            context = tls_context(files, http2=http2)
            return context.wrap_socket(plain, server_hostname=self.gateway.host, suppress_ragged_eofs=False)
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(f"the certificate of {self.gateway.host} is not good: {error.verify_message}") from None
        except OSError as error:
            raise Unreachable(f"no secure connection to {self.gateway.host}: {words(error)}") from None


class _Watch:
    """Waits for an upstream, and sees when nobody waits for it any more."""

    def __init__(self, outer: socket.socket, client: socket.socket) -> None:
        self._outer = outer
        self._poller = select.poll()
        self._poller.register(outer, select.POLLIN)
        self._poller.register(client, select.POLLRDHUP)
        self._client = client.fileno()

    def __call__(self, seconds: float) -> bool:
        """Wait until the upstream says something; False after `seconds`. Raises Gone."""
        if isinstance(self._outer, ssl.SSLSocket) and self._outer.pending():
            return True
        ready = self._poller.poll(seconds * 1000)
        if any(descriptor == self._client for descriptor, _ in ready):
            raise Gone
        return bool(ready)


def wait(outer: socket.socket, wanted: Wanted, until: float = 0.0) -> None:
    """Wait for the upstream, at most to the moment `until`. Raises Failed, Gone."""
    seconds = IDLE_SECONDS if not until else max(0.0, until - time.monotonic())
    if not wanted(seconds):
        raise Failed("the upstream did not answer in time", late=True)


def take(outer: socket.socket, wanted: Wanted, until: float = 0.0) -> bytes:
    """Wait for the upstream, and return what it says; b"" at its end. Raises Failed, Gone."""
    wait(outer, wanted, until)
    return outer.recv(READ)


def send_all(to: socket.socket, pieces: Iterable[Piece]) -> None:
    """Send pieces one after the other, with as few calls and copies as possible."""
    left = [memoryview(piece) for piece in pieces if piece]
    if sum(map(len, left)) < SMALL or isinstance(to, ssl.SSLSocket):
        to.sendall(b"".join(left))
        return
    while left:
        sent = to.sendmsg(left)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if left:
            left[0] = left[0][sent:]


def _readable(outer: socket.socket) -> bool:
    """Whether something came on an unused connection: an end, or what nobody asked for."""
    poller = select.poll()
    poller.register(outer, select.POLLIN)
    return bool(poller.poll(0))


def words(error: Exception) -> str:
    """Return what went wrong, for a sentence."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)[:200]
