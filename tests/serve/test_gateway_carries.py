"""What goes through a gateway comes out as it went in, at once, and is recorded; what may not, does not."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
import websockets.sync.client
import websockets.sync.server
from serve.ways import PATIENCE, House, all_of, gateway_to, head_of, house, says, until

from broker.decide.gateway import Secret
from broker.serve import gateway as product
from broker.serve import upstream as outward

MIB = 1 << 20


@pytest.fixture(name="house")
def a_house(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


class Echo(BaseHTTPRequestHandler):
    """Answers with what came: method, path, headers, and the body's digest. HTTP/1.1, keeps connections."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = hashlib.sha256()
        size = 0
        if self.headers.get("transfer-encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                body.update(self.rfile.read(length))
                size += length
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = int(self.headers.get("content-length", 0))
            for left in range(size, 0, -MIB):
                body.update(self.rfile.read(min(left, MIB)))
        text = json.dumps({
            "method": self.command, "path": self.path, "headers": [(name.lower(), value) for name, value in self.headers.items()],
            "size": size, "sha256": body.hexdigest(),
        }).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = answer  # noqa: N815 - the names that are looked for

    def log_message(self, *words: Any) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@pytest.fixture
def echo() -> Iterator[int]:
    with serving(Echo) as port:
        yield port


def asked(connection: http.client.HTTPConnection, method: str, path: str, **how: Any) -> tuple[http.client.HTTPResponse, Any]:
    connection.request(method, path, **how)
    response = connection.getresponse()
    body = response.read()
    return response, json.loads(body) if body else None


# As it went in


def test_an_event_arrives_before_the_next_one_is_sent(house: House) -> None:
    read_by_client = threading.Semaphore(0)

    def stream(client: socket.socket) -> None:
        head_of(client)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            event = b"data: %d\n\n" % number
            client.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            assert read_by_client.acquire(timeout=PATIENCE)
        client.sendall(b"0\r\n\r\n")

    door = house.to(stream)
    connection = door.client()
    connection.request("POST", "/v1/messages", b"{}")
    response = connection.getresponse()
    seen = []
    for _ in range(5):
        seen.append(response.readline() + response.readline())
        read_by_client.release()
    assert seen == [b"data: %d\n\n" % number for number in range(5)]
    assert response.read() == b""


@pytest.mark.parametrize("size", [0, 1, 3 * MIB + 17])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_arrives_whole_sized_or_in_chunks(house: House, echo: int, size: int, chunked: bool) -> None:
    door = house.door(gateway_to(echo))
    body = os.urandom(size)
    pieces = iter([body[at : at + 70_001] for at in range(0, size, 70_001)]) if chunked else body
    connection = door.client()
    _, said = asked(connection, "POST", "/v1/x?q=1", body=pieces, encode_chunked=chunked, headers={"Transfer-Encoding": "chunked"} if chunked else {})
    assert (said["size"], said["sha256"], said["path"]) == (size, hashlib.sha256(body).hexdigest(), "/v1/x?q=1")
    assert door.answered()[0]["sent"] == size


@pytest.mark.parametrize("way", ["sized", "chunked", "until the end"])
def test_an_answer_arrives_whole_whatever_says_where_it_ends(house: House, way: str) -> None:
    body = os.urandom(2 * MIB + 3)

    def serve(client: socket.socket) -> None:
        head_of(client)
        if way == "sized":
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif way == "chunked":
            client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 60_000):
                piece = body[at : at + 60_000]
                client.sendall(b"%X;ext=1\r\n%s\r\n" % (len(piece), piece))
            client.sendall(b"0\r\nX-Trailer: 1\r\n\r\n")
        else:
            client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)

    door = house.to(serve)
    connection = door.client()
    connection.request("GET", "/v1/x")
    assert connection.getresponse().read() == body
    assert door.answered()[0]["received"] == len(body)


def test_connections_are_kept_on_both_sides(house: House) -> None:
    def serve(client: socket.socket) -> None:
        while head_of(client):
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    upstream = house.upstream(serve)
    door = house.to(upstream)
    connection = door.client()
    for _ in range(20):
        connection.request("GET", "/v1/x")
        assert connection.getresponse().read() == b"ok"
    assert upstream.connections == 1


def test_a_kept_connection_that_the_upstream_has_ended_is_not_used(house: House) -> None:
    upstream = house.upstream(says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))  # ends without saying so
    door = house.to(upstream)
    for number in range(1, 4):
        assert door.get().endswith(b"ok")
        assert upstream.ended.acquire(timeout=PATIENCE)
        assert upstream.connections == number


def test_head_has_the_headers_of_get_and_no_body(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo, methods=("HEAD", "GET")))
    connection = door.client()
    response, said = asked(connection, "HEAD", "/v1/x")
    assert (response.status, said) == (200, None)
    assert int(response.headers["content-length"]) > 10
    assert asked(connection, "GET", "/v1/x")[1]["method"] == "GET"


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_is_followed_by_the_next(house: House, status: int) -> None:
    def serve(client: socket.socket) -> None:
        while head_of(client):
            client.sendall(b"HTTP/1.1 %d X\r\nETag: a\r\n\r\n" % status)

    door = house.to(serve)
    connection = door.client()
    for _ in range(2):
        connection.request("GET", "/v1/x")
        response = connection.getresponse()
        assert (response.status, response.read(), response.headers["etag"]) == (status, b"", "a")


def test_who_waits_for_100_continue_gets_it_once_the_request_is_admitted(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo, paths=("/v1",)))
    with door.connect() as client:
        client.sendall(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n")
        assert head_of(client) == b"HTTP/1.1 100 \r\n\r\n"
        client.sendall(b"abc")
        assert b'"size": 3' in all_of(client)
    refused = door.ask(b"POST /v2 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 403 ")


def test_requests_that_come_at_once_are_answered_in_their_order(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo))
    many = b"".join(b"GET /v1/%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(30))
    said = door.ask(many + b"GET /v1/last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    places = [said.index(b'"path": "/v1/%d"' % number) for number in range(30)]
    assert places == sorted(places)
    assert len(door.answered(31)) == 31


def test_a_large_upload_goes_through_without_being_held(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo, request_bytes=200 * MIB))
    piece = os.urandom(MIB)
    connection = door.client()
    before = peak_memory()
    _, said = asked(connection, "POST", "/v1/x", body=iter([piece] * 100), headers={"Content-Length": str(100 * MIB)})
    assert said["size"] == 100 * MIB
    assert peak_memory() - before < 40 * MIB


def peak_memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_many_at_once(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo))
    bodies = [os.urandom(50_000 + number) for number in range(48)]
    said: list[Any] = [None] * len(bodies)

    def one(number: int) -> None:
        connection = door.client()
        for _ in range(3):
            said[number] = asked(connection, "POST", f"/v1/{number}", body=bodies[number])[1]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, body in enumerate(bodies):
        assert said[number]["path"] == f"/v1/{number}"
        assert said[number]["sha256"] == hashlib.sha256(body).hexdigest()
    assert len(door.answered(3 * len(bodies))) == 3 * len(bodies)


# Websockets


@contextlib.contextmanager
def websocket_server(context: ssl.SSLContext | None = None) -> Iterator[int]:
    def echo(connection: websockets.sync.server.ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with websockets.sync.server.serve(echo, "127.0.0.1", 0, ssl=context, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("secure", [False, True])
def test_a_websocket_carries_messages_both_ways(house: House, authority: Authority, secure: bool) -> None:
    with websocket_server(authority.server() if secure else None) as port:
        how = {"scheme": "https", "host": "localhost"} if secure else {}
        door = house.door(gateway_to(port, **how))
        with websockets.sync.client.connect(f"ws://127.0.0.1:{door.port()}/v1/live", max_size=None, proxy=None) as client:
            for message in ("hello", b"\0\xff", "x" * 3 * MIB, os.urandom(5 * MIB)):
                client.send(message)
                assert client.recv(timeout=PATIENCE) == message
        [row] = door.answered()
    assert row["status"] == 101
    assert min(row["sent"], row["received"]) > 5 * MIB


def test_a_websocket_ends_at_the_gateways_size_and_says_so(house: House) -> None:
    with websocket_server() as port:
        door = house.door(gateway_to(port, request_bytes=MIB))
        live = websockets.sync.client.connect(f"ws://127.0.0.1:{door.port()}/v1/live", max_size=None, proxy=None)
        with live as client, pytest.raises(websockets.ConnectionClosed):
            for _ in range(100):
                client.send(os.urandom(100_000))
                client.recv(timeout=PATIENCE)
        assert door.rules() == ["gateway.size"]


def test_a_websocket_that_the_upstream_declines_is_an_ordinary_answer(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo))
    with pytest.raises(websockets.InvalidStatus):
        websockets.sync.client.connect(f"ws://127.0.0.1:{door.port()}/v1/live", proxy=None)
    assert door.answered()[0]["status"] == 200


# HTTPS and HTTP/2


class Authority:
    """A certificate authority of the tests' own."""

    def __init__(self, place: Path) -> None:
        self.ca = trustme.CA()
        self.file = place / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.file))

    def server(self, name: str = "localhost") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(name).configure_cert(context)
        return context


@pytest.fixture
def authority(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Authority:
    made = Authority(tmp_path_factory.mktemp("ca"))
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


def test_https_is_spoken_outside_and_http_inside(house: House, authority: Authority) -> None:
    with serving(Echo, authority.server()) as port:
        door = house.door(gateway_to(port, scheme="https", host="localhost"))
        connection = door.client()
        body = os.urandom(MIB)
        for _ in range(3):
            _, said = asked(connection, "POST", "/v1/x", body=body)
            assert said["sha256"] == hashlib.sha256(body).hexdigest()
            assert dict(said["headers"])["host"] == f"localhost:{port}"


@pytest.mark.parametrize("how", ["another name", "an unknown authority"])
def test_a_certificate_that_is_not_good_is_one_sentence_and_nothing_is_sent(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    seen: list[bytes] = []
    context = authority.server("elsewhere.example" if how == "another name" else "localhost")
    if how == "an unknown authority":
        monkeypatch.delenv("SSL_CERT_FILE")
    upstream = house.upstream(says(b"HTTP/1.1 200 OK\r\n\r\n", seen), context)
    said = house.to(upstream, scheme="https", host="localhost").get()
    assert said.startswith(b"HTTP/1.1 502 ")
    assert b"the certificate of localhost is not good" in said
    assert seen == []


HYPERCORN = """
import asyncio, hashlib, json, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    digest, size, more = hashlib.sha256(), 0, True
    while more:
        message = await receive()
        digest.update(message.get("body", b"")); size += len(message.get("body", b""))
        more = message.get("more_body", False)
    if scope["path"] == "/v1/stream":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(50):
            await send({"type": "http.response.body", "body": b"data: %d\\n\\n" % number, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    text = json.dumps({"version": scope["http_version"], "method": scope["method"], "path": scope["path"], "size": size,
        "sha256": digest.hexdigest(), "headers": [[a.decode(), b.decode()] for a, b in scope["headers"]]}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text)), (b"x-a", b"b")]})
    await send({"type": "http.response.body", "body": text})

config = Config()
config.bind = ["fd://" + sys.argv[1]]
config.certfile, config.keyfile = sys.argv[2], sys.argv[3]
config.accesslog = config.errorlog = None
asyncio.run(serve(app, config))
"""


@pytest.fixture
def http2(authority: Authority, tmp_path: Path) -> Iterator[int]:
    """A server that offers HTTP/2, in a process of its own."""
    certificate = authority.ca.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [sys.executable, "-c", HYPERCORN, str(listener.fileno()), str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")]
        with subprocess.Popen(words, pass_fds=(listener.fileno(),)) as server:
            yield listener.getsockname()[1]
            server.kill()


def test_http2_is_spoken_where_it_is_offered(house: House, http2: int) -> None:
    key = Secret(kind="text", source=("k1",))
    door = house.door(gateway_to(http2, scheme="https", host="localhost", headers=(("X-Key", key),)))
    connection = door.client()
    body = os.urandom(MIB)
    for path in ("/v1/one", "/v1/two"):
        response, said = asked(connection, "POST", path, body=body)
        assert (said["version"], said["path"], said["sha256"]) == ("2", path, hashlib.sha256(body).hexdigest())
        assert ["x-key", "k1"] in said["headers"]
        assert response.headers["x-a"] == "b"
    connection.request("POST", "/v1/stream", body=iter([b"a", b"b"]))
    assert connection.getresponse().read() == b"".join(b"data: %d\n\n" % number for number in range(50))
    connection.request("GET", "/v1/none")
    assert json.loads(connection.getresponse().read())["method"] == "GET"


def test_http2_many_at_once(house: House, http2: int) -> None:
    door = house.door(gateway_to(http2, scheme="https", host="localhost"))
    said: dict[int, bytes] = {}

    def one(number: int) -> None:
        said[number] = door.get(f"/v1/{number}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f'"path": "/v1/{number}"'.encode() in text for number, text in said.items())
    assert len(said) == 16


# What may not


def test_the_tasks_own_credentials_and_the_connections_headers_stay_inside(house: House, echo: int) -> None:
    key = Secret(kind="text", source=("outside",), form="Bearer {}")
    door = house.door(gateway_to(echo, headers=(("Authorization", key),)))
    said = door.get(headers="authorization: Bearer inside\r\nX-API-Key: inside\r\nCookie: a=inside\r\nTE: trailers\r\nX-Forwarded-For: 1\r\n"
                            "X-Hop: inside\r\nAccept: text/plain\r\n")  # fmt: skip
    headers = json.loads(said.partition(b"\r\n\r\n")[2])["headers"]
    assert sorted(name for name, _ in headers) == ["accept", "authorization", "host", "x-hop"]
    assert ["authorization", "Bearer outside"] in headers
    assert not any("127.0.0.1:" + str(door.port()) in value for _, value in headers)


def test_only_listed_models_go_out_and_nothing_is_sent_before(house: House) -> None:
    seen: list[bytes] = []
    door = house.to(says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", seen), models=("small",))
    assert door.post(b'{"model": "small", "stream": true}').endswith(b"ok")
    for body in (b'{"model": "large"}', b'{"model": "small", "model": "large"}', b'{"Model": "large", "model": "small"}', b"", b"[]"):
        assert door.post(body).startswith(b"HTTP/1.1 403 ")
    chunked = b'POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n{"model": "large"}\r\n0\r\n\r\n'
    assert door.ask(chunked).startswith(b"HTTP/1.1 403 ")
    upgrade = b"GET /v1/x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert door.ask(upgrade).startswith(b"HTTP/1.1 403 ")
    assert len(seen) == 1
    assert set(door.rules()) == {"gateway.model"}
    assert door.get().endswith(b"ok")  # a question without a body names no model


def test_what_was_looked_into_as_json_is_json_to_the_upstream_too(house: House) -> None:
    seen: list[bytes] = []
    door = house.to(says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", seen), models=("small",))
    body = b'{"model": "small", "a": "&model=large&+ACIALAAi-model+ACIAOgAi-large"}'
    for kind in ("application/x-www-form-urlencoded", "application/json; charset=utf-7"):
        head = f"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\nContent_Type: a\r\nContent-Length: {len(body)}\r\n\r\n"
        assert door.ask(head.encode() + body).endswith(b"ok")
    for head_sent in seen:
        kinds = [line for line in head_sent.lower().split(b"\r\n") if b"type" in line]
        assert kinds == [b"content-type: application/json"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_is_too_large_is_refused_and_the_client_can_read_why(house: House, echo: int, chunked: bool) -> None:
    door = house.door(gateway_to(echo, request_bytes=MIB))
    body = os.urandom(3 * MIB)
    if chunked:
        head = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        head = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with door.connect() as client:
        sender = threading.Thread(target=lambda: contextlib.suppress(OSError).__enter__() or client.sendall(head + body), daemon=True)
        sender.start()
        assert b"1048576 bytes of a request" in all_of(client)
    assert door.rules() == ["gateway.size"]


def test_more_requests_than_a_minute_may_have_are_told_when_to_come_back(house: House, echo: int) -> None:
    door = house.door(gateway_to(echo, per_minute=3))
    assert [door.get()[9:12] for _ in range(5)] == [b"200", b"200", b"200", b"429", b"429"]
    assert 1 <= int(door.get().lower().partition(b"retry-after: ")[2].split()[0]) <= 61
    assert door.rules() == ["gateway.rate"]


@pytest.mark.parametrize(("request_line", "rule"), [
    ("DELETE /v1/x", "gateway.method"), ("GET /v2/x", "gateway.path"), ("GET /v1/%2e%2e/x", "gateway.target"),
    ("GET http://elsewhere.example/v1/x", "gateway.target"), ("CONNECT elsewhere.example:443", "gateway.method"),
    ("OPTIONS *", "gateway.method"),
])  # fmt: skip
def test_what_is_not_listed_is_a_denial_that_says_what_is(house: House, request_line: str, rule: str) -> None:
    seen: list[bytes] = []
    door = house.to(says(b"HTTP/1.1 200 OK\r\n\r\n", seen), paths=("/v1",))
    said = door.ask(f"{request_line}?key=s3cret HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 403 ")
    error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
    assert error["type"] == f"broker.{rule}"
    assert (door.rules(), seen) == ([rule], [])
    assert "s3cret" not in door.told[0].what


# What is recorded


def test_each_request_is_recorded_before_it_is_sent_without_its_query_or_bodies(house: House) -> None:
    recorded: list[int] = []

    def serve(client: socket.socket) -> None:
        head = head_of(client)
        recorded.append(len(door.events("gateway.requested")))
        client.recv(5)
        assert b"?key=s3cret" in head
        client.sendall(b"HTTP/1.1 201 OK\r\nContent-Length: 8\r\n\r\nb0dyback")

    door = house.to(serve)
    assert door.post(b"b0dy!", "/v1/x?key=s3cret").endswith(b"b0dyback")
    assert recorded == [1]
    [requested], [answered] = door.events("gateway.requested"), door.answered()
    assert (requested["gateway"], requested["method"], requested["path"], requested["host"]) == ("up", "POST", "/v1/x", "127.0.0.1")
    assert (answered["status"], answered["sent"], answered["received"], answered["error"]) == (201, 5, 8, "")
    text = door.journal.path.read_bytes()
    assert b"s3cret" not in text
    assert b"b0dy" not in text


def test_what_cannot_be_recorded_is_not_sent_and_ends_the_task(house: House) -> None:
    seen: list[bytes] = []
    door = house.to(says(b"HTTP/1.1 200 OK\r\n\r\n", seen))
    door.journal.close()
    assert door.get() == b""
    assert seen == []
    assert len(door.failed) == 1


# Bounds, and the end


def test_the_end_of_the_task_ends_everything_that_is_under_way(house: House) -> None:
    arrived = threading.Semaphore(0)

    def stall(client: socket.socket) -> None:
        head_of(client)
        arrived.release()
        client.recv(1)

    upstream = house.upstream(stall)
    door = house.to(upstream)
    clients = [door.connect() for _ in range(10)]
    for client in clients:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in clients:
        assert arrived.acquire(timeout=PATIENCE)
    idle = door.connect()
    door.ways.close()
    for client in [*clients, idle]:
        all_of(client)
        client.close()
    for _ in clients:
        assert upstream.ended.acquire(timeout=PATIENCE)
    assert len(door.answered(10)) == 10
    assert gateway_threads() == 0
    with door.connect() as late:
        assert late.recv(100).startswith(b"HTTP/1.1 503 ")


def gateway_threads() -> int:
    return sum(thread.name.startswith("gateway-") for thread in threading.enumerate())


def test_a_connection_that_is_still_being_opened_when_the_task_ends_is_not_recorded_afterwards(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def resolve(host: str, port: int, allowed: object) -> list[str]:
        opening.set()
        assert go_on.wait(PATIENCE)
        return [host]

    monkeypatch.setattr(outward, "resolve", resolve)
    monkeypatch.setattr(product, "CLOSE_SECONDS", 0.0)
    seen: list[bytes] = []
    door = house.to(says(b"HTTP/1.1 200 OK\r\n\r\n", seen))
    with door.connect() as client:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert opening.wait(PATIENCE)
        door.ways.close()
        before = door.journal.path.read_bytes()
        go_on.set()
        until(lambda: gateway_threads() == 0)
    assert door.journal.path.read_bytes() == before
    assert (seen, door.failed) == ([], [])


def test_a_client_that_leaves_ends_the_request_at_the_upstream(house: House) -> None:
    arrived = threading.Event()

    def think(client: socket.socket) -> None:
        head_of(client)
        client.recv(2)
        arrived.set()
        assert client.recv(1) == b""

    upstream = house.upstream(think)
    door = house.to(upstream)
    with door.connect() as client:
        client.sendall(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert arrived.wait(PATIENCE)
    assert upstream.ended.acquire(timeout=PATIENCE)
    assert door.answered()[0]["error"] == "the task did not wait for the answer"
