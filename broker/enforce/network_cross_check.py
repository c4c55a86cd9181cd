"""Step 4: the task's network, read once more with a library that others wrote.

Goes in: the facts of `network.py`, and the socket that they were asked on. Comes out: what pyroute2 makes of the kernel's
answers to the same questions. `broker doctor` compares the two, so that a mistake in our own reader is seen on the host where
it matters. The start of a task does not wait for it: to load pyroute2 takes longer than all else that a start does.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from broker.enforce.network import (
    LOCAL_TABLE,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    RTM_GETLINK,
    RTM_GETROUTE,
    NetworkFacts,
    links_by_proc,
)


def read_with_pyroute2(init_pid: int, route_socket: socket.socket) -> NetworkFacts:
    """Look into the network namespace of `init_pid`. Raises OSError when the kernel does not answer, or not as it should."""
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    route_socket.settimeout(5.0)
    links = [str(link.get("ifname")) for link in _dump(route_socket, ifinfmsg, RTM_GETLINK)]
    routes = [
        f"{route.get('dst') or 'default'} table {route.get('table')}"
        for route in _dump(route_socket, rtmsg, RTM_GETROUTE)
        if route.get("table") != LOCAL_TABLE and route.get("dst") != "::1"
    ]
    return NetworkFacts(
        links=tuple(sorted(links)), routes=tuple(routes), witnessed_links=links_by_proc(init_pid)
    )


def differences(ours: NetworkFacts, theirs: NetworkFacts) -> str:
    """Return in words what only one of two readers saw; '' if they agree."""
    found = []
    for what, mine, other in (("links", ours.links, theirs.links), ("routes", ours.routes, theirs.routes)):
        if sorted(mine) != sorted(other):
            found.append(f"broker reads the {what} {list(mine)}, pyroute2 {list(other)}")
    return "; ".join(found)


def _dump(route_socket: socket.socket, kind: Any, request: int) -> Iterator[Any]:
    """Ask for a whole table, and yield each entry; the frames, too, are pyroute2's to find."""
    from pyroute2.netlink.rtnl.marshal import MarshalRtnl

    question = kind()
    question["header"]["type"] = request
    question["header"]["flags"] = NLM_F_REQUEST | NLM_F_DUMP
    question["header"]["sequence_number"] = request
    question["family"] = socket.AF_UNSPEC  # else pyroute2 asks for routes of IPv4 only
    question.encode()
    route_socket.send(bytes(question.data))
    while True:
        data, (sender, _) = route_socket.recvfrom(1 << 16)
        if sender:  # 0 is the kernel (netlink(7))
            raise OSError("somebody else than the kernel answered")
        for message in MarshalRtnl().parse(data, request):
            if error := message["header"].get("error"):
                raise OSError(f"the kernel refused to list the task's network: {error}")
            if message["header"]["type"] == NLMSG_DONE:
                return
            yield message
