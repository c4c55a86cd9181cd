"""The proof of no network, on real namespaces."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest

from broker.enforce.network import RTA_DST, RTA_TABLE, _attributes, inspect_network, links_by_proc


def route_socket() -> socket.socket:
    """A NETLINK_ROUTE socket of this process's own namespace."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


@pytest.mark.needs_root
def test_a_namespace_with_lo_alone_is_isolated() -> None:
    script = (
        "import os; from tests.enforce.test_network import route_socket; from broker.enforce.network import inspect_network;"
        "f = inspect_network(os.getpid(), route_socket()); print(f, f.isolated)"
    )
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh", *_python(), "-c", script],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip().endswith("True"), done.stdout


@pytest.mark.needs_root
def test_a_second_link_is_seen_by_both_witnesses() -> None:
    script = (
        "import os; from tests.enforce.test_network import route_socket; from broker.enforce.network import inspect_network;"
        "f = inspect_network(os.getpid(), route_socket()); print(f.links, f.witnessed_links, f.isolated)"
    )
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", 'ip link add dummy7 type veth peer name dummy8 && exec "$@"', "sh", *_python(), "-c", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "veth" in done.stderr or "not found" in done.stderr:
        pytest.skip(f"this kernel or host cannot make a second link: {done.stderr.strip()}")
    assert done.stdout.count("dummy7") == 2
    assert done.stdout.strip().endswith("False")


def test_our_own_namespace_is_read_alike_by_both_witnesses() -> None:
    with route_socket() as asked:
        facts = inspect_network(os.getpid(), asked)
    assert facts.links == facts.witnessed_links == links_by_proc(os.getpid())


@contextlib.contextmanager
def lied_to() -> Iterator[socket.socket]:
    """A socket on which a process, and not the kernel, has said that there is nothing."""
    users = 2  # NETLINK_USERSOCK, where processes may send to one another
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, users) as asked,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, users) as liar,
    ):
        asked.bind((0, 0))
        liar.bind((0, 0))
        asked.connect(liar.getsockname())
        liar.sendto(struct.pack("=IHHII", 16, 3, 0, 0, 0), asked.getsockname())  # "that was all"
        yield asked


def test_an_answer_that_is_not_the_kernels_is_refused() -> None:
    with lied_to() as asked, pytest.raises(OSError, match="refused to list"):
        inspect_network(os.getpid(), asked)


def test_attributes_that_break_off_are_no_answer() -> None:
    whole = struct.pack("=HH4s", 8, RTA_DST, b"\x0a\0\0\1") + struct.pack("=HHI", 8, RTA_TABLE, 254)
    assert _attributes(whole, 0) == {RTA_DST: b"\x0a\0\0\1", RTA_TABLE: b"\xfe\0\0\0"}
    for end in set(range(len(whole))) - {0, 8}:
        with pytest.raises(OSError, match="breaks off"):
            _attributes(whole[:end], 0)
    with pytest.raises(OSError, match="breaks off"):  # and it ends
        _attributes(bytes(8), 0)


def _python() -> list[str]:
    import sys

    return [sys.executable]
