"""One connection from inside to a gateway: request by request, judged, recorded, sent on, answered.

In: a connected socket. Out: the upstream's answers, unbuffered, or a refusal that says why. Each request is recorded before
anything of it is sent, and its status and sizes afterwards; bodies and queries never are.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import h11

from broker.decide.egress import Header, Outgoing, admit, may_use, passed_back, refused
from broker.decide.model_name import model_named_in
from broker.decide.verdict import Deny
from broker.decide.wording import shorten
from broker.record import event
from broker.serve.addresses import Unreachable
from broker.serve.credentials import masked, without
from broker.serve.tunnel import carry
from broker.serve.upstream import READ, Answer, Failed, Gone, Upstream, send_all
from broker.serve.upstream_http1 import VERSIONS

if TYPE_CHECKING:
    from broker.serve.gateway import Gateways

MOST_HEAD = 64 * 1024  # bytes of a request's line and headers
MOST_LOOKED_INTO = 64 << 20  # bytes of all bodies together that are held to look for the model's name
HEAD_SECONDS = 30.0  # for a head that has begun
NEXT_SECONDS = 300.0  # for the next request of a connection
LEAST_SECRET = 8  # characters of a credential that is looked for in what comes back
BODY_SECONDS = 120.0  # for the next piece of a body, and for taking one


class TooMuch(Exception):
    """A body is larger than the gateway lets through."""


class Visit:
    """One connection from inside. `upstream` is where its requests go."""

    def __init__(self, ways: Gateways, upstream: Upstream, client: socket.socket, http: h11.Connection | None = None) -> None:
        self._ways, self._upstream, self._gateway, self._client = ways, upstream, upstream.gateway, client
        self._http = http or h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self._most = self._gateway.request_bytes if not self._gateway.models else min(self._gateway.request_bytes, MOST_LOOKED_INTO)
        self._echoes: list[bytes] = []  # the credentials of the request that is answered
        self.sent = self.received = 0

    def serve_one(self) -> bool:
        """Serve one request. Returns whether another may follow on this connection."""
        try:
            request = self.head()
        except h11.RemoteProtocolError as error:
            self.answer(error.error_status_hint, "bad_request", str(error)[:200])
            return False
        return request is not None and self.serve(request)

    def head(self) -> h11.Request | None:
        """Wait for the head of a request; None at the end of the connection. Raises h11.RemoteProtocolError."""
        self._ways.waits(self._client, for_client=True)
        self._client.settimeout(NEXT_SECONDS)
        until = 0.0
        while (found := self._http.next_event()) is h11.NEED_DATA:
            if self._http.trailing_data[0]:
                until = until or time.monotonic() + HEAD_SECONDS
                self._client.settimeout(max(0.001, until - time.monotonic()))
            self._http.receive_data(self._client.recv(MOST_HEAD))
        self._client.settimeout(BODY_SECONDS)
        if not isinstance(found, h11.Request):
            return None
        if found.http_version not in VERSIONS:
            raise h11.RemoteProtocolError("only HTTP/1.1 and HTTP/1.0 are spoken here", error_status_hint=505)
        return found

    def serve(self, request: h11.Request) -> bool:
        """Serve a request whose head was read."""
        self.sent = self.received = 0
        gateway = self._gateway
        if wait := self._ways.too_often(gateway):
            denial = refused(
                f"a request through {gateway.name}", "gateway.rate",
                f"Gateway {gateway.name} lets {gateway.per_minute} requests through in a minute.",
            )  # fmt: skip
            self._refuse(429, denial, ((b"retry-after", b"%d" % (int(wait) + 1)),))
            return False
        out = admit(gateway, request.method, request.target, request.headers)
        if isinstance(out, Deny):
            self._refuse(400 if out.rule == "gateway.framing" else 403, out)
            return False
        if out.length is not None and out.length > self._most:
            self._refuse(413, self._too_large("request"))
            return False
        return self._forward(out)

    def _forward(self, out: Outgoing) -> bool:
        began, path = time.monotonic(), shorten(out.target.partition(b"?")[0].decode("latin-1"), 1_000)
        name, host = self._gateway.name, self._gateway.host
        self._ways.record(event.GATEWAY_REQUESTED, gateway=name, host=host, method=out.method, path=path)
        status, why = 0, ""
        try:
            status = self._exchange(out)
        except TooMuch as error:
            why = f"the {error} was too large"
            self._refuse(413, self._too_large(str(error)))
        except (Unreachable, Failed) as error:
            why = shorten(str(error), 300)
            self.answer(504 if isinstance(error, Failed) and error.late else 502, "upstream", f"{name}: {why}")
        except (Gone, _Refused) as error:
            why = str(error) or "the task did not wait for the answer"
        finally:
            self._ways.record(
                event.GATEWAY_ANSWERED, gateway=name, method=out.method, path=path, status=status, error=why,
                sent=self.sent, received=self.received, seconds=round(time.monotonic() - began, 3),
            )  # fmt: skip
        if why and self._http.our_state is h11.SEND_BODY and self._http.their_http_version == b"1.0":
            # Where an answer ends at the end of the connection, nothing else tells a cut one from a whole one.
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionAbortedError
        if not why and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def _exchange(self, out: Outgoing) -> int:
        gateway, held = self._gateway, 0
        body = self._body()
        try:
            if gateway.models and (out.upgrade or out.length != 0 or out.method not in ("GET", "HEAD", "OPTIONS")):
                if self._ways.hold(self._most if out.length is None else out.length):
                    held = self._most if out.length is None else out.length
                else:
                    self.answer(503, "busy", "too many large requests at once; their models have to be looked at. Try again", retry=1)
                    raise _Refused("too many large requests at once")
                whole = b"".join(body)
                if denial := may_use(gateway, model_named_in(whole)):
                    self._refuse(403, denial)
                    raise _Refused(denial.rule)
                body = iter((whole,))
                # As a form, or in UTF-7, the same bytes could name another model: what was read as JSON is sent as JSON.
                kept = tuple((name, value) for name, value in out.headers if name.replace(b"_", b"-") != b"content-type")
                kept = (*kept, (b"content-type", b"application/json"))
                out = Outgoing(method=out.method, target=out.target, headers=kept, length=len(whole))
            default = {"https": 443, "http": 80}[gateway.scheme]
            host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
            headers = [(b"host", (host if gateway.port == default else f"{host}:{gateway.port}").encode("ascii")), *out.headers]
            self._echoes = []
            for header, secret in gateway.headers:
                value = self._ways.credentials.value_of(secret)
                headers.append((header.encode("ascii"), secret.form.replace("{}", value).encode("ascii")))
                if secret.kind != "text" and len(value) >= LEAST_SECRET:
                    self._echoes.append(value.encode("ascii"))
            with self._upstream.asked(out, headers, body, self._client) as answer:
                self._ways.waits(self._client, for_client=False)
                if answer.status == 401:
                    for _, secret in gateway.headers:
                        self._ways.credentials.forget(secret)
                return self._pass_on(answer, out.method)
        finally:
            if held:
                self._ways.hold(-held)

    def _pass_on(self, answer: Answer, method: str) -> int:
        kept = passed_back(self._gateway, answer.headers)
        if kept is None:
            raise Failed("the upstream says in two ways where its answer ends")
        if answer.switched is not None:
            return self._tunnel(answer, kept)
        framing: list[Header] = []
        if answer.length is None:
            framing = [(b"transfer-encoding", b"chunked")]
        elif method == "HEAD":
            framing = [pair for pair in answer.headers if pair[0] == b"content-length"]
        elif answer.status not in (204, 304):
            framing = [(b"content-length", b"%d" % answer.length)]
        kept = tuple((name, masked(value, self._echoes)) for name, value in kept)
        pieces = answer.pieces
        if answer.status >= 300 and self._echoes:
            pieces = without(pieces, self._echoes)
        try:
            head = h11.Response(status_code=answer.status, headers=[*kept, *framing])
            first = self._http.send(head)
        except h11.LocalProtocolError as error:
            raise Failed(f"the upstream's answer is no HTTP: {error}"[:200]) from None
        limit = self._gateway.response_bytes
        for piece in pieces:
            self.received += len(piece)
            if self.received > limit:
                self._send(first)
                raise TooMuch("response")
            self._send(first, *self._framed(piece))
            first = b""
        self._send(first + self._http.send(h11.EndOfMessage()))
        return answer.status

    def _framed(self, piece: Any) -> list[Any]:
        try:
            return self._http.send_with_data_passthrough(h11.Data(data=piece)) or []
        except h11.LocalProtocolError as error:
            raise Failed(f"the upstream's answer is longer than it says: {error}"[:200]) from None

    def _send(self, *pieces: Any) -> None:
        """Send pieces to the client. Raises Gone."""
        try:
            send_all(self._client, pieces)
        except OSError:
            raise Gone from None

    def _tunnel(self, answer: Answer, kept: tuple[Header, ...]) -> int:
        """Carry a websocket's bytes both ways until one side ends it."""
        assert answer.switched is not None
        switch = h11.InformationalResponse(status_code=101, headers=[*kept, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")])
        self._send(self._http.send(switch), answer.rest)
        first, _ = self._http.trailing_data
        gateway = self._gateway
        limits = (gateway.request_bytes - len(first), gateway.response_bytes - len(answer.rest))
        self.sent, self.received, over = carry(self._client, answer.switched, first, most=limits)
        self.received += len(answer.rest)
        if over:
            self._ways.refuse(self._too_large("websocket"))
            raise _Refused("the websocket carried too much")
        return 101

    def _body(self) -> Iterator[bytes]:
        """Yield the request's body as it comes. Raises TooMuch, Gone."""
        try:
            if self._http.they_are_waiting_for_100_continue:
                self._client.sendall(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            while True:
                self._ways.waits(self._client, for_client=True)
                found = self._http.next_event()
                if found is h11.NEED_DATA:
                    self._http.receive_data(self._client.recv(READ))
                    continue
                self._ways.waits(self._client, for_client=False)
                if not isinstance(found, h11.Data):
                    return
                self.sent += len(found.data)
                if self.sent > self._most:
                    raise TooMuch("request")
                yield found.data
        except h11.RemoteProtocolError as error:
            self.answer(error.error_status_hint, "bad_request", str(error)[:200])
            raise _Refused(f"the request's body is no HTTP: {error}"[:200]) from None
        except OSError:
            raise Gone from None

    def _too_large(self, which: str) -> Deny:
        gateway = self._gateway
        limit = gateway.response_bytes if which == "response" else self._most
        return refused(
            f"a {which} over {limit} bytes through {gateway.name}", "gateway.size",
            f"Gateway {gateway.name} lets {limit} bytes of a {which} through.",
        )  # fmt: skip

    def _refuse(self, status: int, denial: Deny, headers: tuple[Header, ...] = ()) -> None:
        self._ways.refuse(denial)
        self.answer(status, denial.rule, f"{denial.reason} Instead: {denial.hint}", headers)

    def answer(self, status: int, kind: str, message: str, headers: tuple[Header, ...] = (), *, retry: int = 0) -> None:
        """Answer in the gateway's own name, if nothing was answered yet, in a form that the clients of models show."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = json.dumps({"type": "error", "error": {"type": f"broker.{kind}", "message": f"broker: {message}"}}).encode()
        common = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        common += [(b"retry-after", b"%d" % retry)] if retry else []
        with contextlib.suppress(OSError, h11.ProtocolError):
            head = self._http.send(h11.Response(status_code=status, headers=[*common, *headers]))
            self._client.sendall(head + self._http.send(h11.Data(data=body)) + self._http.send(h11.EndOfMessage()))


class _Refused(Exception):
    """Refused, and answered."""
