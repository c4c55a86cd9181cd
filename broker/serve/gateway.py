"""The model gateway: connections from inside a sandbox, each answered by exactly one upstream outside.

In: a connected socket that the guard accepted on the sandbox's loopback, and the gateway that its port stands for. Out:
the upstream's answers (visit.py), or, for the proxy's port, those of listed hosts (proxy.py). The credential is added here,
outside. What a task can occupy is bounded: connections, threads, memory; and it all ends when the task does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

from broker.classify import classify
from broker.classify.risk import Risk
from broker.decide.egress import host_listed, refused
from broker.decide.gateway import Gateway
from broker.decide.verdict import Allow, Deny, Layer
from broker.errors import JournalError
from broker.record import event
from broker.record.log import diagnose
from broker.request.operation import Connection
from broker.serve.credentials import Credentials
from broker.serve.shares import HERE, rates_of
from broker.serve.upstream import Upstream
from broker.serve.visit import MOST_LOOKED_INTO, Visit
from broker.task.task import Task

MOST_CONNECTIONS = 64
MOST_REFUSED = 1_000
CLOSE_SECONDS = 2.0  # for what is under way to be accounted for
LINGER_SECONDS = 1.0  # for a refusal to be read by who is still sending
_BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n"


class Gateways:
    """The gateways of one task. `close` ends every connection."""

    def __init__(self, task: Task) -> None:
        """Serve a task's gateways, and its hosts; what is refused is its denial."""
        profile = task.envelope.profile
        self.hosts = profile.hosts
        self.credentials = Credentials(lambda path: _could_be_written(path, task))
        self._task, self._gateways = task, {gateway.inside: gateway for gateway in profile.gateways}
        self._upstreams = {gateway.name: Upstream(gateway) for gateway in profile.gateways}
        self._passing: set[Upstream] = set()  # of hosts that the proxy was asked for
        self._tunnels: set[socket.socket] = set()
        self._refused: set[int] = set()
        self._rates = rates_of(task)
        self._clients: dict[socket.socket, float] = {}  # since when it is the client that is waited for; 0.0: it is not
        self._threads: set[threading.Thread] = set()
        self._held = 0
        self._lock = threading.Lock()
        self._closed = self._over = False

    def accept(self, port: int, client: socket.socket) -> None:
        """Serve a connection on a thread of its own. With too many of them, the one that has waited longest for its client goes."""
        gateway = self._gateways.get(port)
        with self._lock:
            if self._closed or not self._room() or not HERE.take(len(self._clients)):
                with contextlib.suppress(OSError):
                    client.send(_BUSY, socket.MSG_DONTWAIT)
                client.close()
                return
            self._clients[client] = time.monotonic()
            name = f"gateway-{gateway.name if gateway is not None else 'proxy'}"
            thread = threading.Thread(target=self._serve, args=(gateway, client), name=name, daemon=True)
            self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """End every connection, and the upstream's, and wait a little until each is accounted for. May be called twice."""
        if self._over:
            return
        with self._lock:
            self._closed = True
            clients, threads = list(self._clients), list(self._threads)
            upstreams = [*self._upstreams.values(), *self._passing]
            tunnels = list(self._tunnels)
        for one in (*clients, *tunnels):
            _shut(one)
        for upstream in upstreams:
            upstream.close()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._over = True

    def _room(self) -> bool:
        """Whether one more can be served; the one that has waited longest for its client makes room for it."""
        if len(self._clients) < MOST_CONNECTIONS:
            return True
        waiting = [(since, client) for client, since in self._clients.items() if since]
        if not waiting:
            return False
        _, oldest = min(waiting, key=lambda pair: pair[0])
        _shut(oldest)
        del self._clients[oldest]
        return True

    def _serve(self, gateway: Gateway | None, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if gateway is None:
                from broker.serve.proxy import serve_proxy

                serve_proxy(self, client)
            else:
                visit = Visit(self, self._upstreams[gateway.name], client)
                while visit.serve_one():
                    pass
            _linger(client)
        except JournalError as error:
            self._task.cannot_record(error)
        except OSError:
            pass  # it is gone, or was too slow: nobody is there to be told
        except Exception as error:  # noqa: BLE001 - a bug of ours ends the connection, not the run
            diagnose("gateway.failed", task=self._task.path, error=f"{type(error).__name__}: {error}"[:300])
        finally:
            with self._lock:
                self._clients.pop(client, None)
                self._threads.discard(threading.current_thread())
            client.close()
            HERE.leave()

    # What the connections need

    def too_often(self, gateway: Gateway) -> float:
        """Return the seconds until the next request may go out, 0.0 for now."""
        return 0.0 if gateway.per_minute is None else self._rates.too_often(gateway.name, gateway.per_minute)

    def hold(self, count: int) -> bool:
        """Count bytes that are held in memory, or, below zero, no longer. Returns whether there was room."""
        with self._lock:
            if count > 0 and self._held and self._held + count > MOST_LOOKED_INTO:
                return False
            self._held += count
            return True

    def waits(self, client: socket.socket, *, for_client: bool) -> None:
        """Say whether it is the client that is waited for now."""
        with self._lock:
            if client in self._clients:
                self._clients[client] = time.monotonic() if for_client else 0.0

    @contextlib.contextmanager
    def passing(self, gateway: Gateway) -> Iterator[Upstream]:
        """Lend connections to a host that is no gateway of the profile's."""
        upstream = Upstream(gateway)
        with self._lock:
            self._passing.add(upstream)
        try:
            yield upstream
        finally:
            with self._lock:
                self._passing.discard(upstream)
            upstream.close()

    @contextlib.contextmanager
    def tunnelling(self, outer: socket.socket) -> Iterator[None]:
        """Know a connection outwards while bytes are carried to it."""
        with self._lock:
            self._tunnels.add(outer)
        try:
            yield
        finally:
            with self._lock:
                self._tunnels.discard(outer)

    def may_connect(self, host: str, port: int, what: str) -> Deny | None:
        """Decide about a connection through the proxy, and record it. Raises JournalError.

        A listed host is a place, and no permission: that is the ceiling's, or a grant's that something in the task was started with.
        """
        denial = None
        if not host_listed(host, port, self.hosts):
            denial = refused(what, "network.hosts", f"The profile lets only these be reached: {', '.join(self.hosts)}.")
        elif not self._may_reach_out():
            denial = refused(what, "network.ceiling", "The profile lists the host, but nothing here may do what is network_egress.")
        operation = Connection(address=host, port=port)
        verdict = denial or Allow(layer=Layer.PROFILE, rule="network.hosts", effects=frozenset({Risk.NETWORK_EGRESS}))
        if denial is None or self._is_new(what):
            self.record(event.CONNECTION_DECIDED, **event.decided(operation, classify(operation, self._task.context), verdict))
        if denial is not None:
            self.refuse(denial)
        return denial

    def _may_reach_out(self) -> bool:
        task = self._task
        return any(Risk.NETWORK_EGRESS in effects for effects in (task.envelope.effects, *(grant.effects for grant in task.grants())))

    def _is_new(self, what: str) -> bool:
        """Whether a refusal deserves a line of its own: a loop of attempts must not fill the record."""
        with self._lock:
            if hash(what) in self._refused or len(self._refused) >= MOST_REFUSED:
                return False
            self._refused.add(hash(what))
            return True

    def record(self, kind: str, **fields: object) -> None:
        """Write an event of the task. Raises JournalError.

        What comes too late is left out: a connection that was still being opened sent nothing, and the record may be closed.
        """
        if self._over:
            raise ConnectionAbortedError
        self._task.record(kind, **fields)

    def refuse(self, denial: Deny) -> None:
        """Make a refusal loud. Raises JournalError."""
        self._task.refuse("gateway", denial)


def _could_be_written(path: str, task: Task) -> bool:
    """Whether the task, or one that it was delegated by, could have put a file of its own at a path."""
    if task.can_write(path) or task.can_write(os.path.realpath(path)):
        return True
    return task.parent is not None and _could_be_written(path, task.parent)


def _shut(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _linger(client: socket.socket) -> None:
    """Let a client that is still sending read the answer: a close with unread bytes would take it away again."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_WR)
        client.settimeout(LINGER_SECONDS)
        until = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < until and client.recv(1 << 16):
            pass
