"""Ports on the sandbox's loopback: whoever connects is handed over, and the guard keeps and waits for nothing."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from test_guard_protocol import is_gone

from broker.enforce import wire
from guard_harness import Result, Sandbox, setup

Start = Callable[..., AbstractContextManager[Sandbox]]
ONE, OTHER = 47100, 47101
CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "


@pytest.fixture
def box(start: Start) -> Iterator[Sandbox]:
    """A sandbox with two ports."""
    with start(ports=(ONE, OTHER)) as sandbox:
        yield sandbox


def python(box: Sandbox, text: str, *words: object) -> int:
    """Start a text of Python; what it says on stdout comes through the last of the box's pipes."""
    ours, theirs = os.pipe()
    box.pipes.append(ours)
    spawn = box.start(["/usr/bin/python3", "-c", text, *map(str, words)], stdout=theirs)
    os.close(theirs)
    return spawn


def connection(box: Sandbox, nth: int = 1) -> tuple[int, socket.socket]:
    """The first, second … connection: its port, and its end of it."""
    while len(box.connections) < nth:
        box.until(lambda m: isinstance(m, wire.Connected))
    return box.connections[nth - 1]


def guards_descriptors(box: Sandbox) -> list[str]:
    """What the guard has open."""
    folder = Path(f"/proc/{box.guard}/fd")
    return sorted(os.readlink(folder / name) for name in os.listdir(folder))


def waiting(box: Sandbox, port: int) -> int:
    """How many connections the guard has not accepted yet: a listener's receive queue (proc_net_tcp)."""
    for line in Path(f"/proc/{box.guard}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state == "0A" and int(local.partition(":")[2], 16) == port:
            return int(queues.partition(":")[2], 16)
    raise AssertionError(f"nobody listens on {port}")


def test_a_connection_is_handed_over_and_carries_both_ways(box: Sandbox) -> None:
    spawn = python(box, CONNECT + "s.sendall(b'ping'); print(s.recv(4).decode(), s.recv(1))", OTHER)
    port, end = connection(box)
    assert port == OTHER
    assert (end.family, end.type) == (socket.AF_INET, socket.SOCK_STREAM)
    assert os.get_blocking(end.fileno())
    assert end.getsockname() == ("127.0.0.1", OTHER)
    assert end.recv(4, socket.MSG_WAITALL) == b"ping"
    end.sendall(b"pong")
    end.close()
    assert box.exited(spawn).status == 0
    assert os.read(box.pipes[-1], 100) == b"pong b''\n"


def test_each_connection_says_its_port(box: Sandbox) -> None:
    for number, port in enumerate((ONE, OTHER, OTHER, ONE), start=1):
        python(box, CONNECT + "s.send(sys.argv[1].encode())", port)
        found, end = connection(box, number)
        assert (found, end.recv(5, socket.MSG_WAITALL)) == (port, str(port).encode())


def test_the_guard_keeps_nothing_of_a_connection(box: Sandbox) -> None:
    before = guards_descriptors(box)
    python(box, CONNECT + "print('here', flush=True); s.recv(1)", ONE)
    _, end = connection(box)
    assert guards_descriptors(box) == before
    end.close()  # else this would not be the end of it
    box.until(lambda m: isinstance(m, wire.Exited))


def test_only_the_sandbox_can_connect(box: Sandbox) -> None:
    with socket.socket() as one, pytest.raises(ConnectionRefusedError):
        one.connect(("127.0.0.1", ONE))
    assert box.run("/bin/true").code == 0
    assert box.connections == []


@pytest.mark.parametrize("where", ["127.0.0.1", "", "0.0.0.0"])
def test_nothing_inside_can_be_in_the_guards_place(box: Sandbox, where: str) -> None:
    text = (
        "import errno, sys; from socket import *; s = socket()\n"
        "for option in (SO_REUSEADDR, SO_REUSEPORT): s.setsockopt(SOL_SOCKET, option, 1)\n"
        "try: s.bind((sys.argv[1], int(sys.argv[2]))); s.listen()\n"
        "except OSError as error: sys.exit(error.errno)"
    )
    assert box.run("/usr/bin/python3", "-c", text, where, str(ONE)).code == errno.EADDRINUSE


def test_connections_wait_in_the_backlog_while_the_broker_does_not_read(box: Sandbox) -> None:
    # Each message of ours takes some 700 bytes of what may be under way, and then a good hundred fit into the backlog.
    many = int(Path("/proc/sys/net/core/wmem_default").read_text()) // 700 + 200
    text = (
        "import socket, sys; held = []\n"
        "for _ in range(int(sys.argv[2])): held.append(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))\n"
        "print('all', flush=True); [one.recv(1) for one in held]"
    )
    spawn = python(box, text, ONE, many)
    box.started(spawn)
    end = time.monotonic() + 30
    while waiting(box, ONE) < 32:  # nothing is read meanwhile
        assert time.monotonic() < end
        select.select([], [], [], 0.01)
    connection(box, many)
    for _, one in box.connections:
        one.close()
    assert box.exited(spawn).status == 0
    assert os.read(box.pipes[-1], 100) == b"all\n"
    assert len(box.connections) == many


def test_a_connection_that_the_kernel_lets_nobody_hand_over_is_closed_and_harms_nothing(box: Sandbox) -> None:
    # So many descriptors of this user are under way that the guard, without rights of its own, may send no further one.
    few = 32
    resource.prlimit(box.guard, resource.RLIMIT_NOFILE, (few, few))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [ours.fileno()] * (few + 8))
        refused = python(box, CONNECT + "print(s.recv(1))", ONE)
        assert box.exited(refused).status == 0
        assert os.read(box.pipes[-1], 100) == b"b''\n"
        assert box.connections == []
        _, descriptors, _, _ = socket.recv_fds(theirs, 1, few + 8)
        for descriptor in descriptors:
            os.close(descriptor)
    python(box, CONNECT, ONE)
    assert connection(box)[0] == ONE


def test_a_flood_of_connections_leaves_the_gate_alone(box: Sandbox) -> None:
    text = CONNECT + "s.close()\nwhile True: socket.create_connection(('127.0.0.1', int(sys.argv[1]))).close()"
    flood = python(box, text, ONE)
    connection(box)
    assert [box.run("/bin/true").code for _ in range(20)] == [0] * 20
    box.send(wire.Kill(spawn=flood))
    box.exited(flood)
    while box.connections:
        box.connections.pop()[1].close()


def test_the_end_of_the_guard_ends_the_connections(start: Start) -> None:
    with start(ports=(ONE,)) as box:
        python(box, CONNECT + "s.recv(1)", ONE)
        _, end = connection(box)
        box.send(wire.Shutdown())
        assert is_gone(box)
        assert end.recv(1) == b""


def test_a_port_that_cannot_be_had_is_fatal(start: Start) -> None:
    with start(say_setup=False) as box:
        box.send(setup(ports=(ONE, 80)))
        assert box.receive() == wire.Fatal(step="port", error=errno.EACCES)
        assert is_gone(box)


def test_sixteen_ports_are_taken(start: Start) -> None:
    with start(ports=tuple(range(50_000, 50_016))) as box:
        results: list[Result] = [box.run("/usr/bin/python3", "-c", CONNECT, str(port)) for port in (50_000, 50_015)]
        assert [result.code for result in results] == [0, 0]
        assert [port for port, _ in box.connections] == [50_000, 50_015]


@pytest.mark.parametrize(
    "ports",
    [("0",), ("65536",), ("65537",), ("-1",), ("+80",), ("080",), (" 80",), ("80 ",), ("0x50",), ("x",), ("",), ("47100", "47100"),
     ("99999999999999999999",), tuple(map(str, range(50_000, 50_017)))],
    ids=lambda ports: ",".join(ports)[:24] or "empty",
)  # fmt: skip
def test_ports_that_make_no_sense_end_the_guard(start: Start, ports: tuple[str, ...]) -> None:
    whole = wire.encode(setup())[:-4]
    packed = b"".join(struct.pack("<I", len(port)) + port.encode() for port in ports)
    with start(say_setup=False) as box:
        box.link.send(whole + struct.pack("<I", len(ports)) + packed)
        assert is_gone(box)
        assert box.process.wait(10) == 70
