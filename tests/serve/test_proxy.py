"""The proxy for listed hosts: what is listed is reached, once its addresses were looked at; everything else is a denial.

Names are resolved by a getaddrinfo of the tests' own, put in the place of the system's: it says what a test wants, and
counts. Connections are real ones, on loopback.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve.ways import PATIENCE, House, all_of, gateway_to, head_of, house, says

from broker.decide.gateway import Gateway
from broker.serve import addresses
from broker.serve.addresses import Unreachable, resolve

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(name="house")
def a_house(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


class Names:
    """What names lead to. A list of lists is one answer after the other."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: int, **how: Any) -> list[Any]:
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in one], socket.SOCK_STREAM, 6, "", (one, port)) for one in self.known[host]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()

    class Socket:
        """The module, but for the names."""

        getaddrinfo = staticmethod(made.getaddrinfo)

        def __getattr__(self, name: str) -> Any:
            return getattr(socket, name)

    monkeypatch.setattr(addresses, "socket", Socket())
    return made


# Addresses


@pytest.mark.parametrize("found", [
    ["10.0.0.1"], ["127.0.0.1"], ["169.254.169.254"], ["192.168.1.1"], ["172.16.0.1"], ["100.64.0.1"], ["0.0.0.0"],
    ["::1"], ["fe80::1%2"], ["fd00:ec2::254"], ["::ffff:10.0.0.1"], ["::ffff:169.254.169.254"], ["64:ff9b::a9fe:a9fe"],
    ["2002:7f00:1::"], ["224.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["2606:2800:220:1::1", "::1"],
])  # fmt: skip
def test_a_name_with_an_address_that_is_not_public_is_refused_whatever_else_it_has(house: House, names: Names, found: list[str]) -> None:
    names.known["model.example"] = found
    door = house.door(Gateway(name="up", scheme="https", host="model.example", port=443), hosts=("model.example:443",))
    said = door.get()
    assert said.startswith(b"HTTP/1.1 502 ")
    assert b"is not an address of the public network" in said
    said = door.ask(b"CONNECT model.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "")
    assert said.startswith(b"HTTP/1.1 502 ")
    assert all(row["error"] for row in door.answered(2))


def test_a_network_that_the_operator_listed_is_reached(house: House, names: Names) -> None:
    upstream = house.upstream(says(OK))
    names.known["model.internal"] = ["127.0.0.1"]
    door = house.door(gateway_to(upstream.port, host="model.internal", addresses=("127.0.0.0/8",)))
    assert door.get().endswith(b"ok")


def test_a_name_is_resolved_once_and_what_it_leads_to_later_changes_nothing(house: House, names: Names) -> None:
    first, second = house.upstream(says(OK)), house.upstream(says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
    names.known["model.internal"] = ["127.0.0.1"]
    door = house.door(gateway_to(first.port, host="model.internal", addresses=("127.0.0.1/32",)))
    assert door.get().endswith(b"ok")
    names.known["model.internal"] = ["127.0.0.2"]
    for _ in range(3):
        assert first.ended.acquire(timeout=PATIENCE)
        assert door.get().endswith(b"ok")
    assert names.asked == ["model.internal"]
    assert second.connections == 0


def test_a_name_that_has_moved_is_looked_at_as_it_was_the_first_time(house: House, names: Names) -> None:
    upstream = house.upstream(says(OK))
    names.known["model.internal"] = ["127.0.0.1"]
    door = house.door(gateway_to(upstream.port, host="model.internal", addresses=("127.0.0.1/32",)))
    assert door.get().endswith(b"ok")
    assert upstream.ended.acquire(timeout=PATIENCE)  # or the connection that was kept would be taken for a good one
    upstream.close()
    names.known["model.internal"] = ["127.0.0.2"]  # where nothing listed leads
    assert b"127.0.0.2 is not an address of the public network" in door.get()
    assert len(names.asked) == 2


def test_localhost_is_this_machine_and_nothing_else(names: Names) -> None:
    names.known["localhost"] = ["127.0.0.1", "::1"]
    assert resolve("localhost", 80, ()) == ["127.0.0.1", "::1"]
    names.known["localhost"] = ["10.0.0.1"]
    with pytest.raises(Unreachable):
        resolve("localhost", 80, ())


def test_a_name_that_does_not_exist_is_one_sentence(house: House, names: Names) -> None:
    said = house.door(Gateway(name="up", scheme="https", host="nowhere.example", port=443)).get()
    assert b"nowhere.example cannot be resolved" in said


# CONNECT


def echo(client: socket.socket) -> None:
    while data := client.recv(1 << 16):
        client.sendall(data)


@contextlib.contextmanager
def tunnel(door: Any, place: str) -> Iterator[socket.socket]:
    with door.connect("") as client:
        client.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        assert head_of(client).startswith(b"HTTP/1.1 200 ")
        yield client


def test_a_listed_host_is_reached_and_half_of_the_connection_can_end(house: House) -> None:
    upstream = house.upstream(echo)
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    body = os.urandom(3_000_000)
    with tunnel(door, f"localhost:{upstream.port}") as client:
        sender = threading.Thread(target=lambda: (client.sendall(body), client.shutdown(socket.SHUT_WR)))
        sender.start()
        assert all_of(client) == body
        sender.join()
    [row] = door.answered()
    assert (row["method"], row["path"], row["status"]) == ("CONNECT", f"localhost:{upstream.port}", 200)
    assert (row["sent"], row["received"]) == (len(body), len(body))
    assert [(row["operation"]["address"], row["verdict"]) for row in door.events("connection.decided")] == [("localhost", "allow")]


def test_a_side_that_does_not_read_does_not_stop_the_other_direction(house: House) -> None:
    stop = threading.Event()

    def serve(client: socket.socket) -> None:
        for _ in range(100):
            client.sendall(bytes(100_000))  # reads nothing meanwhile
        assert stop.wait(PATIENCE)

    upstream = house.upstream(serve)
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    with tunnel(door, f"localhost:{upstream.port}") as client:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(bytes(1 << 20))  # until nothing more is taken
        client.settimeout(PATIENCE)
        left = 10_000_000
        while left:
            left -= len(client.recv(left))
        stop.set()


@pytest.mark.parametrize("spelling", ["{}:{}", "LOCALHOST:{1}", "localhost.:{1}", "LocalHost.:{1}"])
def test_a_listed_host_may_be_spelled_as_names_are(house: House, spelling: str) -> None:
    upstream = house.upstream(echo)
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    with tunnel(door, spelling.format("localhost", upstream.port)) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"


@pytest.mark.parametrize("place", [
    "127.0.0.1:{0}", "[::1]:{0}", "2130706433:{0}", "0x7f000001:{0}", "127.1:{0}", "localhost:1", "localhost:0{0}9", "localhost",
    "localhost:", ":{0}", "localhost..:{0}", "a.localhost:{0}", "localhost:{0}@evil", "evil@localhost:{0}", "localhost%00:{0}",
    "localhost:{0}/x", "loc\xe4lhost:{0}", "*:{0}", "[localhost]:{0}",
])  # fmt: skip
def test_what_is_not_listed_is_refused_and_nobody_is_connected_to(house: House, place: str) -> None:
    upstream = house.upstream(echo)
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    said = door.ask(f"CONNECT {place.format(upstream.port)} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"), "")
    assert said[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 400")
    assert upstream.connections == 0
    if b" 403 " in said[:14]:
        assert door.rules() == ["network.hosts"]
        assert [row["verdict"] for row in door.events("connection.decided")] == ["deny"]


def test_a_loop_of_attempts_does_not_fill_the_record(house: House) -> None:
    door = house.door(hosts=("localhost:1",))
    for _ in range(50):
        door.ask(b"CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "")
    assert len(door.events("connection.decided")) == 1
    assert len(door.events("task.denied")) == 1


# Plain HTTP


def test_a_request_for_a_listed_host_is_sent_there_and_another_may_follow(house: House) -> None:
    seen: list[bytes] = []
    upstream = house.upstream(says(OK, seen))
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    connection = door.client("")
    for path in ("/a//b?q=1", "/"):
        connection.request("GET", f"http://localhost:{upstream.port}{path}", headers={"Authorization": "Basic x", "Proxy-Authorization": "y"})
        assert connection.getresponse().read() == b"ok"
    assert [head.split()[1] for head in seen] == [b"/a//b?q=1", b"/"]
    assert all(b"authorization: Basic x" in head.replace(b"Authorization", b"authorization") for head in seen)
    assert not any(b"roxy-" in head for head in seen)
    assert {row["path"] for row in door.events("gateway.requested")} == {"/a//b", "/"}


@pytest.mark.parametrize("target", [
    "http://elsewhere.example/", "http://localhost:1/", "https://localhost:{0}/", "http://localhost:{0}@elsewhere.example/",
    "http://elsewhere.example#@localhost:{0}/", "http://elsewhere.example?@localhost:{0}/", "http://elsewhere.example\\@localhost:{0}/",
    "ftp://localhost:{0}/", "/", "localhost:{0}", "http:///", "http://",
])  # fmt: skip
def test_a_request_for_anything_else_is_refused(house: House, target: str) -> None:
    upstream = house.upstream(says(OK))
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    said = door.ask(f"GET {target.format(upstream.port)} HTTP/1.1\r\nHost: localhost:{upstream.port}\r\n\r\n".encode(), "")
    assert said.startswith(b"HTTP/1.1 403 ")
    assert upstream.connections == 0
    assert door.rules() == ["network.hosts"]


def test_the_end_of_the_task_ends_tunnels(house: House) -> None:
    upstream = house.upstream(echo)
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    with tunnel(door, f"localhost:{upstream.port}") as client:
        door.ways.close()
        assert all_of(client) == b""
    assert upstream.ended.acquire(timeout=PATIENCE)
    assert len(door.answered()) == 1


# Real clients


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_through_the_proxy(house: House) -> None:
    upstream = house.upstream(says(OK))
    door = house.door(hosts=(f"localhost:{upstream.port}",))
    proxy = f"http://127.0.0.1:{door.port('')}"
    for how in ([], ["--proxytunnel"]):
        words = ["curl", "-sS", "--noproxy", "", "-x", proxy, *how, f"http://localhost:{upstream.port}/"]
        assert subprocess.run(words, capture_output=True, timeout=PATIENCE).stdout == b"ok"
    refused = subprocess.run(["curl", "-sS", "-x", proxy, "--noproxy", "", "-o", "/dev/null", "-w", "%{http_code}", "http://elsewhere.example/"], capture_output=True, timeout=PATIENCE)
    assert refused.stdout == b"403"
