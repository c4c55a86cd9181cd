"""Upstreams that speak HTTP/2 and mean no good: what HTTP/1.1 inside could be misled by does not get there."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
import trustme
from serve.ways import PATIENCE, Door, House, Upstream, all_of, gateway_to, house

MIB = 1 << 20
Answer = Callable[[h2.connection.H2Connection, int, socket.socket], None]


@pytest.fixture(name="house")
def a_house(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


@pytest.fixture
def speaking(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Door, Upstream]]:
    """Makes a gateway to an upstream that answers each request's end as a test wants. Nothing that it sends is checked."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2"])

    def make(answer: Answer, **settings: object) -> tuple[Door, Upstream]:
        def serve(client: socket.socket) -> None:
            config = h2.config.H2Configuration(client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False)
            http = h2.connection.H2Connection(config)
            http.initiate_connection()
            client.sendall(http.data_to_send())
            with contextlib.suppress(h2.exceptions.ProtocolError):  # it has said goodbye, and is talked to
                while data := client.recv(65_536):
                    for found in http.receive_data(data):
                        if isinstance(found, h2.events.StreamEnded):
                            answer(http, found.stream_id, client)
                    client.sendall(http.data_to_send())

        upstream = house.upstream(serve, context)
        return house.door(gateway_to(upstream.port, scheme="https", host="localhost", **settings)), upstream

    return make


@pytest.mark.parametrize("headers", [
    [(b":status", b"200"), (b"x-a", b"b\r\nx-smuggled: 1")],
    [(b":status", b"200"), (b"x-a\r\nx-smuggled", b"1")],
    [(b":status", b"200"), (b"x-a", b"b\0smuggled")],
    [(b":status", b"200"), (b"x a", b"smuggled")],
    [(b":status", b"200"), (b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
    [(b":status", b"99999"), (b"x-a", b"smuggled")],
    [(b":status", b"ok"), (b"x-a", b"smuggled")],
])  # fmt: skip
def test_headers_that_would_be_something_else_in_http_1_1_are_an_error(speaking: Callable[..., tuple[Door, Upstream]], headers: list[tuple[bytes, bytes]]) -> None:
    def answer(http: h2.connection.H2Connection, stream: int, client: socket.socket) -> None:
        http.send_headers(stream, headers, end_stream=True)

    door, _ = speaking(answer)
    said = door.get()
    assert said.startswith(b"HTTP/1.1 502 ")
    assert b"smuggled" not in said.partition(b"\r\n\r\n")[0]


def test_a_stream_that_is_reset_is_an_error(speaking: Callable[..., tuple[Door, Upstream]]) -> None:
    door, _ = speaking(lambda http, stream, client: http.reset_stream(stream))
    assert door.get().startswith(b"HTTP/1.1 502 ")


def test_a_connection_that_goes_away_is_an_error(speaking: Callable[..., tuple[Door, Upstream]]) -> None:
    door, _ = speaking(lambda http, stream, client: http.close_connection())
    assert door.get().startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize("frame", [
    pytest.param(b"\0\0\x05\0\0\0\0\0\x63hello", id="a body nobody asked for"),
    pytest.param(b"\0\0\x04\x01\x04\0\0\0\x01\xff\xff\xff\xff", id="headers that cannot be unpacked"),
    pytest.param(b"\0\x80\0\0\0\0\0\0\x01" + bytes(0x8000), id="a frame that is too long"),
    pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(0x600_000), id="another protocol"),
])  # fmt: skip
def test_frames_that_are_none_are_an_error(speaking: Callable[..., tuple[Door, Upstream]], frame: bytes) -> None:
    door, _ = speaking(lambda http, stream, client: client.sendall(frame))
    assert door.get().startswith(b"HTTP/1.1 502 ")


def test_a_body_that_is_shorter_than_it_says_does_not_look_whole(speaking: Callable[..., tuple[Door, Upstream]]) -> None:
    def answer(http: h2.connection.H2Connection, stream: int, client: socket.socket) -> None:
        http.send_headers(stream, [(b":status", b"200"), (b"content-length", b"9")])
        http.send_data(stream, b"hello", end_stream=True)

    door, _ = speaking(answer)
    said = door.get()
    assert b"502" in said[:15] or (b"content-length: 9" in said.lower() and said.endswith(b"hello"))
    assert door.answered()[0]["error"]


def test_an_endless_answer_ends_at_the_gateways_size(speaking: Callable[..., tuple[Door, Upstream]]) -> None:
    def answer(http: h2.connection.H2Connection, stream: int, client: socket.socket) -> None:
        http.send_headers(stream, [(b":status", b"200")])
        while True:
            http.send_data(stream, bytes(16_000))
            client.sendall(http.data_to_send())
            while http.local_flow_control_window(stream) < 16_000:
                data = client.recv(65_536)
                if not data:
                    return
                http.receive_data(data)

    door, upstream = speaking(answer, response_bytes=MIB)
    said = door.get()
    assert len(said) < 2 * MIB
    assert not said.endswith(b"0\r\n\r\n")
    assert door.rules() == ["gateway.size"]
    assert upstream.ended.acquire(timeout=PATIENCE)


def test_a_client_that_leaves_ends_the_request(speaking: Callable[..., tuple[Door, Upstream]]) -> None:
    door, upstream = speaking(lambda http, stream, client: None)
    with door.connect() as client:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert all_of(client) == b""
    assert upstream.ended.acquire(timeout=PATIENCE)
    assert door.answered()[0]["error"] == "the task did not wait for the answer"
