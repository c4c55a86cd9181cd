"""The proof of no network, on real namespaces."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from broker.enforce.network import inspect_network, links_by_proc


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


def _python() -> list[str]:
    import sys

    return [sys.executable]
