"""The narrow way out: an HTTP proxy inside, for the hosts that a profile lists.

In: a connection to the proxy's port. Out: a tunnel to a listed host (CONNECT), whose bytes nobody here reads, or, to a
listed host on a plain HTTP port, one request. Names are resolved outside, looked at and used once; each attempt is
recorded before anything is sent, and what is not listed is a denial.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TYPE_CHECKING

import h11

from broker.decide.egress import host_listed, refused
from broker.decide.gateway import Gateway
from broker.record import event
from broker.serve.upstream import CONNECT_SECONDS, Unreachable, resolve

if TYPE_CHECKING:
    from broker.serve.gateway import Gateways

CHUNK = 1 << 18
IDLE_SECONDS = 600.0
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def serve_proxy(ways: Gateways, client: socket.socket) -> None:
    """Serve one connection to the proxy's port."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
    while (request := http.next_event()) is h11.NEED_DATA:
        http.receive_data(client.recv(CHUNK))
    if not isinstance(request, h11.Request):
        return
    target = request.target.decode("latin-1")
    if request.method != b"CONNECT":
        _plain(ways, client, http, request)
        return
    host, _, port = target.rpartition(":")
    number = int(port) if port.isdecimal() and len(port) <= 5 else 0
    what = f"connect to {host.strip('[]')[:253]}:{port[:5]}"
    if not host_listed(host, number, ways.hosts):
        denial = refused(what, "network.hosts", f"The profile lets only these be reached: {', '.join(ways.hosts)}.")
        ways.record(event.CONNECTION_DECIDED, host=host[:253], port=number, verdict="deny", rule=denial.rule, reason=denial.reason)
        ways.refuse(denial)
        _answer(client, 403, denial.reason)
        return
    ways.record(event.CONNECTION_DECIDED, host=host, port=number, verdict="allow", rule="network.hosts", reason="")
    began = time.monotonic()
    sent = received = 0
    why = ""
    try:
        with _connect(host, number) as outer:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            rest, _ = http.trailing_data
            sent, received = _tunnel(client, outer, rest)
    except (Unreachable, OSError) as error:
        why = str(error)
        _answer(client, 502, why)
    finally:
        ways.record(
            event.GATEWAY_ANSWERED, gateway="proxy", method="CONNECT", path=f"{host}:{number}", status=0 if why else 200,
            error=why, sent=sent, received=received, seconds=round(time.monotonic() - began, 3),
        )  # fmt: skip


def _plain(ways: Gateways, client: socket.socket, http: h11.Connection, request: h11.Request) -> None:
    """Serve a request for http://host/path as a gateway to that host does, if it is listed."""
    from broker.serve.gateway import Visit

    scheme, _, rest = request.target.decode("latin-1").partition("://")
    place, slash, path = rest.partition("/")
    host, _, port = place.partition(":")
    number = int(port) if port.isdecimal() and len(port) <= 5 else 80
    if scheme != "http" or not host_listed(host, number, ways.hosts):
        denial = refused(
            f"reach {request.target.decode('latin-1')[:200]}", "network.hosts",
            f"The profile lets only these be reached: {', '.join(ways.hosts)}.",
        )  # fmt: skip
        ways.record(event.CONNECTION_DECIDED, host=host[:253], port=number, verdict="deny", rule=denial.rule, reason=denial.reason)
        ways.refuse(denial)
        _answer(client, 403, denial.reason)
        return
    ways.record(event.CONNECTION_DECIDED, host=host, port=number, verdict="allow", rule="network.hosts", reason="")
    gateway = Gateway(name=f"http://{host}:{number}", scheme="http", host=host.lower(), port=number, methods=METHODS)
    plain = h11.Request(method=request.method, target=(slash + path or "/").encode("latin-1"), headers=request.headers)
    Visit(ways, gateway, client, http).serve(plain)


def _connect(host: str, port: int) -> socket.socket:
    problem: OSError | None = None
    for address in resolve(host, port, ()):
        try:
            return socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            problem = error
    raise problem if problem is not None else Unreachable(f"{host} has no address")


def _tunnel(client: socket.socket, outer: socket.socket, first: bytes) -> tuple[int, int]:
    """Carry bytes both ways until both sides have ended. Returns how many went out, and how many came back."""
    counts = {client: len(first), outer: 0}
    outer.settimeout(IDLE_SECONDS)
    if first:
        outer.sendall(first)
    other = {client: outer, outer: client}
    open_ones = {client, outer}
    poller = select.poll()
    for one in open_ones:
        poller.register(one, select.POLLIN)
    names = {one.fileno(): one for one in open_ones}
    while open_ones:
        ready = poller.poll(IDLE_SECONDS * 1000)
        if not ready:
            break
        for descriptor, _ in ready:
            one = names[descriptor]
            data = one.recv(CHUNK)
            if data:
                counts[one] += len(data)
                other[one].sendall(data)
                continue
            poller.unregister(descriptor)
            open_ones.discard(one)
            with contextlib.suppress(OSError):
                other[one].shutdown(socket.SHUT_WR)
    return counts[client], counts[outer]


def _answer(client: socket.socket, status: int, message: str) -> None:
    text = f"broker: {message}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 {status} Refused\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        client.sendall(head.encode("ascii") + text)
