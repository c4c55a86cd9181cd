"""Upstreams and clients that do not play by the rules: each ends in an error that says so, and takes nobody else with it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve.ways import PATIENCE, House, all_of, gateway_to, head_of, house, says, until

from broker.decide.gateway import Secret
from broker.serve import gateway as product
from broker.serve import shares, upstream_http1
from broker.serve import upstream as outward
from broker.serve import visit as inward

MIB = 1 << 20
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(name="house")
def a_house(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


def endless(first: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def serve(client: socket.socket) -> None:
        head_of(client)
        client.sendall(first)
        while True:
            client.sendall(piece)

    return serve


# Upstreams


@pytest.mark.parametrize("answer", [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\0\1\2\3garbage\r\n\r\n", id="garbage"),
    pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Len", id="half a head"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="sized and chunked"),
    pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok", id="chunked and sized"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", id="two sizes"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok!", id="a list of sizes"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n", id="below zero"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", id="a sign"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok", id="hexadecimal"),
    pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\nok", id="unknown coding"),
    pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="two codings"),
    pytest.param(b"HTTP/1.1 200 OK\r\nX : 1\r\n\r\n", id="space before the colon"),
    pytest.param(b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", id="NUL in a value"),
    pytest.param(b"HTTP/1.1 200 OK\r\n: a\r\n\r\n", id="a header without a name"),
    pytest.param(b"HTTP/2.0 200 OK\r\n\r\n", id="another version"),
    pytest.param(b"HTTP/1.1 999999 OK\r\n\r\n", id="no such status"),
    pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nsmuggled", id="101 that nobody asked for"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + OK, id="announcements"),
    pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 40_000 + b"\r\n", id="a huge head"),
    pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", id="a huge header"),
])  # fmt: skip
def test_an_answer_that_is_no_http_is_an_error_of_the_upstreams(house: House, answer: bytes) -> None:
    said = house.to(says(answer)).get()
    assert said.startswith(b"HTTP/1.1 502 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "broker.upstream"
    assert b"smuggled" not in said


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nffffffffffffffffffffff\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
])  # fmt: skip
def test_a_body_that_ends_too_early_or_has_no_form_does_not_look_whole(house: House, answer: bytes) -> None:
    door = house.to(says(answer))
    said = door.get()
    assert b"hello" in said
    assert not said.endswith(b"0\r\n\r\n")
    assert b"Content-Length: 5" not in said
    assert door.answered()[0]["error"]


def test_a_body_that_ends_too_early_does_not_look_whole_to_a_client_of_http_1_0(house: House) -> None:
    door = house.to(says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello"))
    with door.connect() as client:
        client.sendall(b"GET /v1/x HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while client.recv(4096):
                pass


def test_what_comes_after_an_answer_is_nobodys_answer(house: House) -> None:
    def serve(client: socket.socket) -> None:
        while head_of(client):
            client.sendall(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled")

    upstream = house.upstream(serve)
    door = house.to(upstream)
    connection = door.client()
    for _ in range(3):
        connection.request("GET", "/v1/x")
        assert connection.getresponse().read() == b"ok"
    assert upstream.connections == 3


def test_an_answer_that_comes_before_it_was_asked_for_is_thrown_away(house: House) -> None:
    late = threading.Event()

    def serve(client: socket.socket) -> None:
        head_of(client)
        client.sendall(OK)
        assert late.wait(PATIENCE)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled")
        sent.release()
        client.recv(1)

    sent = threading.Semaphore(0)
    upstream = house.upstream(serve)
    door = house.to(upstream)
    assert door.get().endswith(b"ok")
    late.set()
    assert sent.acquire(timeout=PATIENCE)
    assert door.get().endswith(b"ok")
    assert upstream.connections == 2


def test_an_endless_head_ends(house: House) -> None:
    assert house.to(endless(b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n" * 100)).get().startswith(b"HTTP/1.1 502 ")
    assert house.to(endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")).get().startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize("first", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
])  # fmt: skip
def test_an_endless_answer_ends_at_the_gateways_size(house: House, first: bytes) -> None:
    upstream = house.upstream(endless(first, bytes(60_000)))
    door = house.to(upstream, response_bytes=3 * MIB)
    said = door.get()
    assert 2 * MIB < len(said) < 4 * MIB
    assert not said.endswith(b"0\r\n\r\n")
    assert door.rules() == ["gateway.size"]
    assert upstream.ended.acquire(timeout=PATIENCE)


def test_an_upstream_that_does_not_answer_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outward, "IDLE_SECONDS", 0.2)

    def serve(client: socket.socket) -> None:
        head_of(client)
        client.recv(1)

    upstream = house.upstream(serve)
    assert house.to(upstream).get().startswith(b"HTTP/1.1 504 ")
    assert upstream.ended.acquire(timeout=PATIENCE)


def test_a_head_that_trickles_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_http1, "HEAD_SECONDS", 0.3)

    def serve(client: socket.socket) -> None:
        head_of(client)
        client.sendall(b"HTTP/1.1 200 OK\r\n")
        client.settimeout(0.05)
        while True:
            client.sendall(b"X: 1\r\n")
            with contextlib.suppress(TimeoutError):
                if not client.recv(1):
                    return

    assert house.to(serve).get().startswith(b"HTTP/1.1 504 ")


def test_an_upstream_that_is_not_there_is_one_sentence(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    door = house.door(gateway_to(port))
    said = door.get()
    assert said.startswith(b"HTTP/1.1 502 ")
    assert f"127.0.0.1:{port}: Connection refused".encode() in said
    assert "Connection refused" in door.answered()[0]["error"]


def test_a_redirect_is_passed_on_and_not_followed(house: House) -> None:
    visited: list[bytes] = []
    elsewhere = house.upstream(says(OK, visited))
    door = house.to(says(b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n" % elsewhere.port))
    said = door.get()
    assert said.startswith(b"HTTP/1.1 307 ")
    assert b"127.0.0.1:%d" % elsewhere.port in said
    assert visited == []


def test_cookies_of_a_session_with_the_gateways_credential_stay_outside(house: House) -> None:
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: session=s3cret\r\nX-A: b\r\nContent-Length: 0\r\n\r\n"
    key = Secret(kind="text", source=("k",))
    assert b"s3cret" not in house.to(says(answer), headers=(("X-Key", key),)).get()
    assert b"s3cret" in house.to(says(answer)).get()


def test_trailers_are_not_passed_on(house: House) -> None:
    said = house.to(says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n")).get()
    assert said.endswith(b"2\r\nok\r\n0\r\n\r\n")
    assert b"X-T" not in said


def test_folded_headers_become_one_line(house: House) -> None:
    said = house.to(says(b"HTTP/1.1 200 OK\r\nX-A: b\r\n Content-Length: 99\r\nContent-Length: 2\r\n\r\nok")).get()
    assert b"x-a: b Content-Length: 99\r\n" in said.lower().replace(b"content-length: 99", b"Content-Length: 99")
    assert said.endswith(b"ok")


def test_what_is_compressed_is_passed_as_it_is(house: House) -> None:
    bomb = gzip.compress(bytes(20 * MIB))
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
    door = house.to(says(answer), response_bytes=len(bomb))
    assert door.get(headers="Accept-Encoding: gzip\r\n").endswith(bomb)


def test_who_answers_before_all_was_sent_is_heard(house: House) -> None:
    def serve(client: socket.socket) -> None:
        head_of(client)
        client.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno")
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass

    door = house.to(serve)
    assert b" 401 " in door.post(os.urandom(5 * MIB))[:15]


# Clients


def smuggled(seen: list[bytes]) -> Callable[[socket.socket], None]:
    def serve(client: socket.socket) -> None:
        while head := head_of(client):
            seen.append(head)
            client.sendall(OK)

    return serve


@pytest.mark.parametrize("request_text", [
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX", id="CL.TE"),
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", id="TE.CL"),
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n", id="two sizes"),
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", id="TE.TE"),
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="unknown coding"),
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", id="space before the colon"),
    pytest.param(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", id="NUL"),
    pytest.param(b"GET /v1/x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", id="two hosts"),
    pytest.param(b"GET /v1/x HTTP/1.1\r\n\r\n", id="no host"),
    pytest.param(b"GET /v1/x HTTP/2.0\r\nHost: x\r\n\r\n", id="another version"),
    pytest.param(b"GET /v1/x\r\n\r\n", id="no version"),
    pytest.param(b"GET /v1/x y HTTP/1.1\r\nHost: x\r\n\r\n", id="a space in the path"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 from the start"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), id="TLS"),
    pytest.param(b"GET /v1/x HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", id="a huge header"),
    pytest.param(b"GET /v1/" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", id="a huge path"),
    pytest.param(b"GET http://elsewhere.example/v1/x HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", id="absolute form"),
    pytest.param(b"GET //elsewhere.example/v1/x HTTP/1.1\r\nHost: x\r\n\r\n", id="two slashes"),
    pytest.param(b"CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", id="CONNECT"),
    pytest.param(b"GET /v1/x HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nContent-Length: 30\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", id="a websocket with a body"),
    pytest.param(b"\r\n" * 100_000, id="empty lines"),
])  # fmt: skip
def test_a_request_that_is_no_http_or_could_be_two_is_not_sent(house: House, request_text: bytes) -> None:
    seen: list[bytes] = []
    said = house.to(smuggled(seen), paths=("/v1",)).ask(request_text)
    assert said[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5")
    assert seen == []


@pytest.mark.parametrize("body", [
    pytest.param(b"2\nok\r\n0\r\n\r\n", id="a line that ends with LF"),
    pytest.param(b"2;\nok\r\n0\r\n\r\n", id="an extension that ends with LF"),
    pytest.param(b"+2\r\nok\r\n0\r\n\r\n", id="a sign"),
    pytest.param(b"0x2\r\nok\r\n0\r\n\r\n", id="0x"),
    pytest.param(b" 2\r\nok\r\n0\r\n\r\n", id="a space"),
    pytest.param(b"\r\nok\r\n0\r\n\r\n", id="no size"),
    pytest.param(b"f" * 30 + b"\r\nok", id="more than anybody has"),
])  # fmt: skip
def test_chunks_that_servers_read_differently_are_not_sent_and_the_client_reads_why(house: House, body: bytes) -> None:
    seen: list[bytes] = []
    door = house.to(smuggled(seen))
    said = door.ask(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "broker.bad_request"
    assert seen == []


@pytest.mark.parametrize(("head", "sent"), [
    (b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings\r\n", b""),
    (b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n", b""),
    (b"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", b"websocket"),
])  # fmt: skip
def test_no_protocol_but_a_websocket_is_ever_asked_for(house: House, head: bytes, sent: bytes) -> None:
    seen: list[bytes] = []
    door = house.to(smuggled(seen))
    with door.connect() as client:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
    lines = [line for line in seen[0].lower().split(b"\r\n") if b"upgrade: " in line or b"h2c" in line or b"settings" in line]
    assert lines == ([b"upgrade: " + sent] if sent else [])


def test_a_request_in_the_body_of_another_stays_there(house: House) -> None:
    seen: list[bytes] = []

    def serve(client: socket.socket) -> None:
        while head := head_of(client):
            seen.append(head)
            client.recv(28, socket.MSG_WAITALL)
            client.sendall(OK)

    inner = b"GET /smuggled HTTP/1.1\r\n\r\n"
    door = house.to(serve)
    door.ask(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 28\r\n\r\n  " + inner)
    assert [head.split()[1] for head in seen] == [b"/v1/x"]


def test_the_host_that_a_client_names_is_not_the_one_that_is_asked(house: House) -> None:
    seen: list[bytes] = []
    upstream = house.upstream(smuggled(seen))
    house.to(upstream).ask(b"GET /v1/x HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: evil.example\r\nForwarded: host=evil.example\r\nConnection: close, host\r\n\r\n")
    [head] = seen
    assert head.lower().count(b"host:") == 1
    assert b"127.0.0.1:%d" % upstream.port in head
    assert b"evil" not in head


def test_a_body_that_ends_too_early_does_not_reach_the_upstream_as_a_whole(house: House) -> None:
    got: list[bytes] = []

    def serve(client: socket.socket) -> None:
        head_of(client)
        got.append(all_of(client))

    upstream = house.upstream(serve)
    door = house.to(upstream)
    with door.connect() as client:
        client.sendall(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    assert upstream.ended.acquire(timeout=PATIENCE)
    assert got == [b"5\r\nhello\r\n"]
    assert door.answered()[0]["error"]


def test_a_client_that_stops_sending_for_good_is_taken_for_gone(house: House) -> None:
    def think(client: socket.socket) -> None:
        head_of(client)
        client.recv(1)

    upstream = house.upstream(think)
    door = house.to(upstream)
    with door.connect() as client:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert all_of(client) == b""
    assert upstream.ended.acquire(timeout=PATIENCE)


def test_slow_heads_on_every_connection_keep_nobody_else_out(house: House) -> None:
    door = house.to(smuggled([]))
    slow = [door.connect() for _ in range(product.MOST_CONNECTIONS)]
    for client in slow:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: ")
    until(lambda: len(door.ways._clients) == product.MOST_CONNECTIONS)
    for _ in range(20):
        assert door.get().endswith(b"ok")
    assert gateway_threads() <= product.MOST_CONNECTIONS + 1
    for client in slow:
        client.close()


def test_tasks_that_hold_on_to_all_they_can_leave_places_for_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = shares.HERE.taken
    monkeypatch.setattr(shares, "MOST_HERE", taken + 3 * shares.FEW)
    monkeypatch.setattr(shares, "KEPT_FREE", 2 * shares.FEW)
    greedy, other = (house.to(smuggled([])) for _ in range(2))
    slow = [greedy.connect() for _ in range(3 * shares.FEW)]
    said = [client.recv(20) for client in slow[shares.FEW :]]  # refused as long as the first ones stay
    assert set(said) == {b"HTTP/1.1 503 Busy\r\nc"}
    held = [other.connect() for _ in range(shares.FEW - 1)]
    assert other.get().endswith(b"ok")
    for client in (*slow, *held):
        client.close()
    until(lambda: shares.HERE.taken == taken)
    assert greedy.get().endswith(b"ok")


def gateway_threads() -> int:
    return sum(thread.name.startswith("gateway-") for thread in threading.enumerate())


def test_slow_bodies_on_every_connection_keep_nobody_else_out(house: House) -> None:
    door = house.to(lambda client: (all_of(client), None)[1])
    other = house.to(smuggled([]))
    slow = [door.connect() for _ in range(product.MOST_CONNECTIONS)]
    for client in slow:
        client.sendall(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
    until(lambda: sum(since > 0 for since in door.ways._clients.values()) == product.MOST_CONNECTIONS)
    assert door.ask(b"garbage\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert other.get().endswith(b"ok")
    for client in slow:
        client.close()


def test_a_slow_head_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inward, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(inward, "NEXT_SECONDS", 0.2)
    door = house.to(smuggled([]))
    with door.connect() as client, door.connect() as silent:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: ")
        assert all_of(client) == b""
        assert all_of(silent) == b""


def test_with_every_connection_in_use_one_more_is_told_to_come_back(house: House) -> None:
    arrived = threading.Semaphore(0)

    def think(client: socket.socket) -> None:
        head_of(client)
        arrived.release()
        client.recv(1)

    door = house.to(think)
    busy = [door.connect() for _ in range(product.MOST_CONNECTIONS)]
    for client in busy:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in busy:
        assert arrived.acquire(timeout=PATIENCE)
    with door.connect() as client:
        assert all_of(client).startswith(b"HTTP/1.1 503 ")
    for client in busy:
        client.close()


def test_a_client_that_does_not_read_holds_only_its_own_connection(house: House) -> None:
    stuck = house.upstream(endless(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", bytes(60_000)))
    door = house.door(gateway_to(stuck.port), gateway_to(house.upstream(smuggled([])).port, name="other"))
    clients = [door.connect() for _ in range(8)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for client in clients:
        client.sendall(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
        client.recv(1)
    for _ in range(10):
        assert door.get(name="other").endswith(b"ok")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    for client in clients:
        client.close()


def test_bodies_that_are_looked_into_are_held_only_up_to_a_bound(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inward, "MOST_LOOKED_INTO", MIB)
    monkeypatch.setattr(product, "MOST_LOOKED_INTO", MIB)
    door = house.to(says(OK), models=("m",))
    with door.connect() as first:
        first.sendall(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        until(lambda: door.ways._held == 1_000_000)
        assert door.post(b'{"model":"m","a":"' + b"x" * 100_000 + b'"}').startswith(b"HTTP/1.1 503 ")
    until(lambda: door.ways._held == 0)
    assert door.post(b'{"model":"m","a":"' + b"x" * 100_000 + b'"}').endswith(b"ok")
    assert door.post(b'{"model":"m","a":"' + b"x" * MIB + b'"}').startswith(b"HTTP/1.1 413 ")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=200), st.integers(0, 60))
def test_garbage_is_answered_or_ended_and_the_next_one_is_served(shared: House, noise: bytes, at: int) -> None:
    door = shared.doors[0]
    whole = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok"
    with door.connect() as client:
        client.sendall(whole[:at] + noise + whole[at:])
        client.shutdown(socket.SHUT_WR)
        said = all_of(client)
    assert said == b"" or said.startswith(b"HTTP/1.1 ")
    assert door.get().endswith(b"ok")


@pytest.fixture
def shared(house: House) -> House:
    house.to(smuggled([]))
    return house
