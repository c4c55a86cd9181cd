"""The model gateway: a connection from inside a sandbox, answered by exactly one upstream outside.

In: a connected socket that the guard accepted on the sandbox's loopback, and the gateway that its port stands for. Out:
the upstream's answer, unbuffered. The credential is added here, outside; each request is judged and recorded before it is
sent, its status and size afterwards. Bodies are never recorded. Nothing that either side sends is trusted: sizes, heads
and times are bounded.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import h11
import httpcore2

from broker.decide.egress import Outgoing, admit, may_use, refused
from broker.decide.gateway import FIRST_PORT, Gateway
from broker.decide.verdict import Deny
from broker.errors import JournalError
from broker.record import event
from broker.serve.upstream import CONNECT_SECONDS, Unreachable, pool_for, value_of
from broker.task.task import Task

MOST_HEAD = 64 * 1024  # bytes of a request's line and headers
MOST_NAMING_MODEL = 64 << 20  # of a body that is looked into for the model's name
IDLE_SECONDS = 600.0  # a model may think for long before its next word
CHUNK = 1 << 18
MOST_CONNECTIONS = 64
_SKIPPED = (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"proxy-authenticate", b"trailer")


class TooMuch(Exception):
    """A body is larger than the gateway lets through."""


class Gateways:
    """The gateways of one task. `close` ends every connection."""

    def __init__(self, task: Task) -> None:
        """Serve a task's gateways, and its hosts; what is refused is its denial."""
        gateways = task.envelope.profile.gateways
        self.hosts = task.envelope.profile.hosts
        self._task, self._gateways = task, gateways
        self._pools = {gateway.name: pool_for(gateway) for gateway in gateways}
        self._recent: dict[str, deque[float]] = {gateway.name: deque() for gateway in gateways}
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False

    def accept(self, port: int, client: socket.socket) -> None:
        """Serve a connection on a thread of its own. One too many is closed at once."""
        number = port - FIRST_PORT
        gateway = self._gateways[number] if number < len(self._gateways) else None
        with self._lock:
            if self._closed or len(self._open) >= MOST_CONNECTIONS:
                client.close()
                return
            self._open.add(client)
        name = f"gateway-{gateway.name if gateway is not None else 'proxy'}"
        threading.Thread(target=self._serve, args=(gateway, client), name=name, daemon=True).start()

    def close(self) -> None:
        """End every connection, and the upstream's. May be called twice."""
        with self._lock:
            self._closed = True
            clients = list(self._open)
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for pool in self._pools.values():
            with contextlib.suppress(Exception):
                pool.close()

    def _serve(self, gateway: Gateway | None, client: socket.socket) -> None:
        try:
            client.settimeout(IDLE_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if gateway is None:
                from broker.serve.proxy import serve_proxy

                serve_proxy(self, client)
                return
            visit = Visit(self, gateway, client)
            while visit.serve_one():
                pass
        except JournalError as error:
            self._task.cannot_record(error)
        except (OSError, h11.ProtocolError, httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError):
            pass  # one of the two is gone, or speaks nonsense: nobody is there to be told
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()

    def too_often(self, gateway: Gateway) -> float:
        """Return the seconds until the next request may go out, 0.0 for now."""
        if gateway.per_minute is None:
            return 0.0
        now = time.monotonic()
        with self._lock:
            recent = self._recent.setdefault(gateway.name, deque())
            while recent and now - recent[0] >= 60.0:
                recent.popleft()
            if len(recent) >= gateway.per_minute:
                return 60.0 - (now - recent[0])
            recent.append(now)
            return 0.0

    def pool(self, gateway: Gateway) -> httpcore2.ConnectionPool:
        """Return the connections to a gateway's upstream."""
        with self._lock:
            if gateway.name not in self._pools:  # a host that the proxy was asked for
                self._pools[gateway.name] = pool_for(gateway)
            return self._pools[gateway.name]

    def record(self, kind: str, **fields: object) -> None:
        """Write an event of the task."""
        self._task.record(kind, **fields)

    def refuse(self, denial: Deny) -> None:
        """Make a refusal loud."""
        self._task.refuse("gateway", denial)


class Visit:
    """One connection from inside."""

    def __init__(
        self, gateways: Gateways, gateway: Gateway, client: socket.socket, http: h11.Connection | None = None
    ) -> None:
        self._all, self._gateway, self._client = gateways, gateway, client
        self._http = http or h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self.sent = self.received = 0

    def serve_one(self) -> bool:
        """Serve one request. Returns whether another may follow on this connection."""
        self.sent = self.received = 0
        try:
            request = self._next()
        except h11.RemoteProtocolError as error:
            self._answer(error.error_status_hint, "bad_request", str(error))
            return False
        return isinstance(request, h11.Request) and self.serve(request)

    def serve(self, request: h11.Request) -> bool:
        """Serve a request whose head was read."""
        began = time.monotonic()
        wait = self._all.too_often(self._gateway)
        if wait:
            self._refuse(429, refused(f"a request through {self._gateway.name}", "gateway.rate",
                                      f"Gateway {self._gateway.name} lets {self._gateway.per_minute} requests through in a minute."),
                         ((b"retry-after", str(int(wait) + 1).encode()),))  # fmt: skip
            return False
        out = admit(self._gateway, request.method, request.target, request.headers)
        if isinstance(out, Deny):
            self._refuse(403, out)
            return False
        if (size := _length(request)) is not None and size > self._gateway.request_bytes:
            self._refuse(413, self._too_large("request", self._gateway.request_bytes))
            return False
        return self._forward(out, began)

    def _forward(self, out: Outgoing, began: float) -> bool:
        path = out.target.partition(b"?")[0].decode("latin-1")
        self._all.record(event.GATEWAY_REQUESTED, gateway=self._gateway.name, host=self._gateway.host, method=out.method, path=path)
        status, why = 0, ""
        try:
            body: Any = self._body() if not out.upgrade else b""
            if self._gateway.models:
                body = b"".join(body)
                denial = may_use(self._gateway, _model(body))
                if denial is not None:
                    why = denial.rule
                    self._refuse(403, denial)
                    return False
            status = self._exchange(out, body)
        except TooMuch as error:
            why = str(error)
            denial = self._too_large(why, self._gateway.request_bytes if why == "request" else self._gateway.response_bytes)
            self._refuse(413, denial)
            return False
        except Unreachable as error:
            why = str(error)
            self._answer(502, "unreachable", str(error))
            return False
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, httpcore2.ProxyError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            self._answer(504 if isinstance(error, httpcore2.TimeoutException) else 502, "upstream", why)
            return False
        finally:
            self._all.record(
                event.GATEWAY_ANSWERED, gateway=self._gateway.name, method=out.method, path=path, status=status, error=why,
                sent=self.sent, received=self.received, seconds=round(time.monotonic() - began, 3),
            )  # fmt: skip
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def _exchange(self, out: Outgoing, body: Any) -> int:
        gateway = self._gateway
        own = [(name.encode("latin-1"), value_of(secret).encode("latin-1")) for name, secret in gateway.headers]
        default = {"https": 443, "http": 80}[gateway.scheme]
        host = gateway.host if gateway.port == default else f"{gateway.host}:{gateway.port}"
        headers = [(b"host", host.encode("latin-1")), *out.headers, *own]
        if out.upgrade:
            headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        elif not any(name == b"content-length" for name, _ in out.headers) and out.method not in ("GET", "HEAD"):
            headers.append((b"transfer-encoding", b"chunked"))
        request = httpcore2.Request(
            out.method,
            httpcore2.URL(scheme=gateway.scheme.encode(), host=gateway.host.encode(), port=gateway.port, target=out.target),
            headers=headers, content=body,
            extensions={"timeout": {"connect": CONNECT_SECONDS, "read": IDLE_SECONDS, "write": IDLE_SECONDS, "pool": CONNECT_SECONDS}},
        )  # fmt: skip
        with contextlib.closing(self._all.pool(gateway).handle_request(request)) as response:
            if response.status == 101:
                return self._tunnel(response)
            kept = [(name, value) for name, value in response.headers if name.lower() not in _SKIPPED]
            sized = any(name.lower() == b"content-length" for name, _ in kept)
            if not sized:
                kept.append((b"transfer-encoding", b"chunked"))
            self._send(h11.Response(status_code=response.status, headers=kept))
            for piece in response.iter_stream():
                self.received += len(piece)
                if self.received > gateway.response_bytes:
                    raise TooMuch("response")
                self._send(h11.Data(data=piece))
            self._send(h11.EndOfMessage())
            return int(response.status)

    def _tunnel(self, response: httpcore2.Response) -> int:
        """Carry a websocket's bytes both ways until one side ends it."""
        stream = response.extensions["network_stream"]
        kept = [(name, value) for name, value in response.headers if name.lower() not in (b"connection", b"upgrade")]
        self._send(h11.InformationalResponse(status_code=101, headers=[*kept, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]))
        rest, _ = self._http.trailing_data
        if rest:
            stream.write(rest)
        outer: socket.socket = stream.get_extra_info("socket")
        while True:
            secure = getattr(outer, "pending", lambda: 0)()
            ready = [outer] if secure else select.select([outer, self._client], [], [], IDLE_SECONDS)[0]
            if not ready:
                return 101
            if self._client in ready:
                data = self._client.recv(CHUNK)
                self.sent += len(data)
                if not data or self.sent > self._gateway.request_bytes:
                    return 101
                stream.write(data)
            if outer in ready:
                data = stream.read(CHUNK)
                self.received += len(data)
                if not data or self.received > self._gateway.response_bytes:
                    return 101
                self._client.sendall(data)

    def _body(self) -> Iterator[bytes]:
        """Yield the request's body as it comes. Raises TooMuch."""
        if self._http.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while True:
            found = self._next()
            if not isinstance(found, h11.Data):
                return
            self.sent += len(found.data)
            if self.sent > self._gateway.request_bytes:
                raise TooMuch("request")
            yield bytes(found.data)

    def _next(self) -> Any:
        while True:
            found = self._http.next_event()
            if found is not h11.NEED_DATA:
                return found
            self._http.receive_data(self._client.recv(CHUNK))

    def _send(self, piece: Any) -> None:
        data = self._http.send(piece)
        if data:
            self._client.sendall(data)

    def _can_answer(self) -> bool:
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def _too_large(self, which: str, limit: int) -> Deny:
        return refused(
            f"a {which} over {limit} bytes through {self._gateway.name}", "gateway.size",
            f"Gateway {self._gateway.name} lets {limit} bytes of a {which} through.",
        )  # fmt: skip

    def _refuse(self, status: int, denial: Deny, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self._all.refuse(denial)
        self._answer(status, denial.rule, f"{denial.reason} Instead: {denial.hint}", headers)

    def _answer(self, status: int, kind: str, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer in the gateway's own name, if nothing was answered yet."""
        if not self._can_answer():
            return
        body = json.dumps({"type": "error", "error": {"type": f"broker.{kind}", "message": f"broker: {message}"}}).encode()
        with contextlib.suppress(OSError, h11.ProtocolError):
            common = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
            self._send(h11.Response(status_code=status, headers=[*common, *headers]))
            self._send(h11.Data(data=body))
            self._send(h11.EndOfMessage())


def _length(request: h11.Request) -> int | None:
    return next((int(value) for name, value in request.headers if name == b"content-length"), None)


def _model(body: bytes) -> object:
    try:
        table = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return table.get("model") if isinstance(table, dict) else None

