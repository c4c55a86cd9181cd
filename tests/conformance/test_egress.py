"""Ways out of a sandbox without a network: each attempt fails as it always did, and is a denial that says who wanted to go where."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from conformance.driver import Broker

# Runs each line of `attempts`, and prints how it went.
TRY = """
import errno, socket
from socket import *

def tcp(family=AF_INET): return socket(family, SOCK_STREAM)
def udp(family=AF_INET): return socket(family, SOCK_DGRAM)

def says(attempt):
    try:
        eval(attempt)
        return "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))

for attempt in attempts:
    print(says(attempt))
"""
NODE = """
const socket = require("net").connect(443, "192.0.2.7")
socket.on("error", (error) => console.log(error.code))
"""


def attempts(broker: Broker, *lines: str, profile: str = "any") -> tuple[list[str], list[dict[str, Any]]]:
    """Try lines of Python inside, and return how each went, and the denials."""
    broker.file("try.py", f"attempts = {lines!r}\n{TRY}")
    done = broker.run("python3", "try.py", profile=profile)
    assert done.code == 0, done.err
    return done.out.decode().split(), done["denials"]


# What is tried, and how a denial names where it wanted to go.
WAYS = {
    "tcp().connect(('192.0.2.1', 443))": "192.0.2.1:443",
    "udp().connect(('192.0.2.2', 53))": "192.0.2.2:53",
    "udp().sendto(b'x', ('192.0.2.3', 53))": "192.0.2.3:53",
    "tcp().sendto(b'x', MSG_FASTOPEN, ('192.0.2.4', 80))": "192.0.2.4:80",
    "(lambda s: (s.setblocking(False), s.connect(('192.0.2.5', 443))))(tcp())": "192.0.2.5:443",
    "tcp(AF_INET6).connect(('2001:db8::1', 443))": "[2001:db8::1]:443",
    "udp(AF_INET6).sendto(b'x', ('2001:db8::2', 53))": "[2001:db8::2]:53",
    "tcp(AF_INET6).connect(('fe80::1', 443, 0, 1))": "[fe80::1]:443",
    "tcp(AF_INET6).connect(('::ffff:192.0.2.6', 443))": "192.0.2.6:443",
    "tcp().connect(('128.0.0.1', 1))": "128.0.0.1:1",
    "tcp().connect(('0.0.0.1', 1))": "0.0.0.1:1",
    "tcp().connect(('10.0.0.1', 65535))": "10.0.0.1:65535",
    "tcp().connect(('169.254.169.254', 80))": "169.254.169.254:80",
    "udp().sendto(b'x', ('224.0.0.251', 5353))": "224.0.0.251:5353",
}


def test_an_attempt_to_get_out_is_a_denial_with_the_program_and_the_address(broker: Broker) -> None:
    said, rows = attempts(broker, *WAYS)

    assert said == ["ENETUNREACH"] * len(WAYS)
    assert [row["what"].split()[:3] for row in rows] == [["connect", "to", address] for address in WAYS.values()]
    for row in rows:
        assert row["what"].split()[3].startswith("(/usr/")
        assert "python3" in row["what"]
        assert (row["tool"], row["class"], row["layer"], row["rule"]) == ("connect", "network_egress", "kernel", "net.refused")
        assert "gateways, network.hosts" in row["hint"]
    events = [event for event in broker.events() if event["type"] == "task.denied"]
    assert [event["what"] for event in events] == [row["what"] for row in rows]


def test_the_loopback_and_sockets_of_files_are_nobodys_business(broker: Broker) -> None:
    served = "(lambda s: (s.bind({0}), s.listen(), create_connection(s.getsockname()[:2]).sendall(b'x'), s.accept()[0].recv(1)))"
    told = "(lambda s: (s.bind({0}), {1}.sendto(b'x', s.getsockname()), s.recv(1)))"
    said, rows = attempts(
        broker,
        served.format("('127.0.0.1', 0)") + "(tcp())",
        served.format("('127.8.9.10', 0)") + "(tcp())",
        served.format("('::1', 0)") + "(tcp(AF_INET6))",
        "(lambda s: (s.bind(('', 0)), s.listen(), tcp().connect(('0.0.0.0', s.getsockname()[1]))))(tcp())",
        "(lambda s: (s.bind(('::', 0)), s.listen(), tcp(AF_INET6).connect(('::', s.getsockname()[1]))))(tcp(AF_INET6))",
        "(lambda s: (s.bind(('127.0.0.1', 0)), s.listen(), tcp(AF_INET6).connect(('::ffff:127.0.0.1', s.getsockname()[1]))))(tcp())",
        told.format("('127.0.0.1', 0)", "udp()") + "(udp())",
        told.format("('::1', 0)", "udp(AF_INET6)") + "(udp(AF_INET6))",
        "(lambda s: (s.bind('/tmp/s'), s.listen(), socket(AF_UNIX).connect('/tmp/s'), s.accept()))(socket(AF_UNIX))",
        told.format("'/tmp/d'", "socket(AF_UNIX, SOCK_DGRAM)") + "(socket(AF_UNIX, SOCK_DGRAM))",
        "(lambda a, b: (a.send(bytes(1)), b.recv(1)))(*socketpair())",
        "(lambda s: (s.connect(('127.0.0.1', 9)), s.send(b'x')))(udp())",
        "socket(AF_UNIX).connect('/tmp/nobody')",
        "tcp().connect(('127.0.0.1', 9))",
    )

    assert said == ["ok"] * 12 + ["ENOENT", "ECONNREFUSED"]
    assert rows == []


def test_a_loop_of_attempts_is_one_denial_that_counts(broker: Broker) -> None:
    said, rows = attempts(broker, *["tcp().connect(('192.0.2.1', 443))"] * 2_000, "tcp().connect(('192.0.2.1', 444))")

    assert set(said) == {"ENETUNREACH"}
    assert [row["what"].split()[2] for row in rows] == ["192.0.2.1:443", "192.0.2.1:444"]
    assert rows[0]["count"] < 200  # once a second, however long the machine takes for it
    assert len([event for event in broker.events() if event["type"] == "task.denied"]) == 2


@pytest.fixture
def reaching(broker: Broker) -> Broker:
    """A profile under which programs that reach out start, and find no way."""
    broker.profile("reaching", max_risk="network_egress")
    return broker


def test_curl_is_told_what_it_always_was(reaching: Broker) -> None:
    done = reaching.run("bash", "-c", "curl -sS http://192.0.2.1/; echo $?", profile="reaching")

    assert done.out == b"7\n"
    [row] = done["denials"]
    assert row["what"] == "connect to 192.0.2.1:80 (/usr/bin/curl)"


def test_a_name_that_is_looked_up_is_not_found(reaching: Broker) -> None:
    # Where the sandbox names a server for names (Docker's engine writes the host's), asking it is an attempt of its own.
    reaching.file("ask.py", "import socket\ntry: socket.getaddrinfo('example.com', 443)\nexcept socket.gaierror: print('unknown')\n")
    done = reaching.run("bash", "-c", "python3 ask.py; grep -h ^nameserver /etc/resolv.conf", profile="reaching")

    said, *servers = done.out.decode().splitlines()
    assert said == "unknown"
    outside = {line.split()[1] for line in servers if not line.split()[1].startswith("127.")}
    asked = {row["what"].split()[2].removesuffix(":53").strip("[]") for row in done["denials"]}
    assert asked == outside


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("bubblewrap", marks=[
            pytest.mark.needs_bubblewrap, pytest.mark.skipif(not shutil.which("node", path="/usr/bin"), reason="needs /usr/bin/node"),
        ]),
        pytest.param("docker", marks=pytest.mark.needs_docker(image="node")),
    ],
)  # fmt: skip
def test_node_is_told_what_it_always_was(broker: Broker, engine: str) -> None:
    broker.profile("with-node", sandbox={"image": "node"})
    broker.file("out.js", NODE)

    done = broker.run("node", "out.js", profile="with-node")

    assert done.out == b"ENETUNREACH\n"
    [row] = done["denials"]
    assert row["what"].startswith("connect to 192.0.2.7:443 (/")
    assert row["what"].endswith("/node)")
