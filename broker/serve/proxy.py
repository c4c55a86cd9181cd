"""The narrow way out: an HTTP proxy inside, for the hosts that a profile lists.

In: a connection to the proxy's port. Out: a tunnel to a listed host (CONNECT), whose bytes nobody here reads, or, to a
listed host on a plain HTTP port, requests. Names are resolved outside, looked at and used once; each attempt is recorded
before anything is sent, and what is not listed is a denial.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from typing import TYPE_CHECKING

import h11

from broker.decide.gateway import Gateway
from broker.decide.wording import shorten
from broker.record import event
from broker.serve.addresses import Unreachable, connect, resolve
from broker.serve.tunnel import carry
from broker.serve.visit import MOST_HEAD, Visit

if TYPE_CHECKING:
    from broker.serve.gateway import Gateways

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_PLACE = re.compile(r"([^/?#@\\\s:]{1,255}|\[[^\]/?#@\\\s]{1,60}\])(?::([0-9]{1,5}))?")
_NOBODY = Gateway(name="proxy", scheme="http", host="", port=0)  # a request's, before it is known where it goes


def serve_proxy(ways: Gateways, client: socket.socket) -> None:
    """Serve one connection to the proxy's port."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
    with ways.passing(_NOBODY) as nowhere:
        visit = Visit(ways, nowhere, client, http)
        try:
            while (request := visit.head()) is not None:
                if request.method == b"CONNECT":
                    _connect(ways, client, http, request, visit)
                    return
                if not _plain(ways, client, http, request, visit):
                    return
        except h11.RemoteProtocolError as error:
            visit.answer(error.error_status_hint, "bad_request", str(error)[:200])


def _admitted(ways: Gateways, visit: Visit, place: str, port: int, what: str) -> tuple[str, int] | None:
    """Return the host and port of a target that is listed; otherwise refuse it. `port`: the one that is meant when it names none."""
    found = _PLACE.fullmatch(place)
    host, number = (found[1].lower(), int(found[2] or port)) if found else (shorten(place, 253), 0)
    denial = ways.may_connect(host, number, what)
    if denial is None:
        return host.removesuffix("."), number
    visit.answer(403, denial.rule, f"{denial.reason} Instead: {denial.hint}")
    return None


def _connect(ways: Gateways, client: socket.socket, http: h11.Connection, request: h11.Request, visit: Visit) -> None:
    """Serve CONNECT. The connection is a tunnel afterwards, or over."""
    target = request.target.decode("latin-1")
    place = _admitted(ways, visit, target, 0, f"connect to {shorten(target, 260)}")
    if place is None:
        return
    host, number = place
    began = time.monotonic()
    sent = received = 0
    why = ""
    try:
        with contextlib.closing(connect(resolve(host, number, ()), number)) as outer, ways.tunnelling(outer):
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            ways.waits(client, for_client=False)
            sent, received, _ = carry(client, outer, http.trailing_data[0])
    except (Unreachable, OSError) as error:
        why = shorten(str(error), 300)
        visit.answer(502, "upstream", why)
    finally:
        ways.record(
            event.GATEWAY_ANSWERED, gateway="proxy", method="CONNECT", path=f"{host}:{number}", status=502 if why else 200,
            error=why, sent=sent, received=received, seconds=round(time.monotonic() - began, 3),
        )  # fmt: skip


def _plain(ways: Gateways, client: socket.socket, http: h11.Connection, request: h11.Request, visit: Visit) -> bool:
    """Serve a request for http://host/path as a gateway to that host does, if it is listed. Returns whether another may follow."""
    scheme, _, rest = request.target.decode("latin-1").partition("://")
    at = re.search(r"[/?#]", rest)
    name, path = (rest[: at.start()], rest[at.start() :]) if at is not None else (rest, "/")
    shown = shorten(request.target.decode("latin-1").partition("?")[0], 200)
    place = _admitted(ways, visit, name if scheme.lower() == "http" else "", 80, f"reach {shown}")
    if place is None:
        return False
    host, number = place
    gateway = Gateway(name=f"http://{host}:{number}", scheme="http", host=host, port=number, methods=METHODS)
    target = path if path.startswith("/") else "/" + path
    with ways.passing(gateway) as upstream:
        inner = h11.Request(
            method=request.method, target=target.encode("latin-1"), headers=request.headers, http_version=request.http_version
        )
        return Visit(ways, upstream, client, http).serve(inner)
