"""Step 4: the proof, from outside, that a task has no network.

The guard opens a NETLINK_ROUTE socket in its namespace before anything else runs, and hands it over; the
kernel answers on it for that namespace, whoever asks. pyroute2 makes the questions and reads the answers.
/proc/PID/net/dev, read from the host, is the second witness: it needs no help from inside at all.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RTM_GETLINK, RTM_GETROUTE = 18, 26
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
LOCAL_TABLE = 255  # the kernel's own routes to its own addresses (127.0.0.0/8, ::1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """What was seen: names of links, routes in any table but the local one."""

    links: tuple[str, ...]
    routes: tuple[str, ...]
    witnessed_links: tuple[str, ...]

    @property
    def isolated(self) -> bool:
        """One link, `lo`, by both witnesses, and no route."""
        return self.links == ("lo",) == self.witnessed_links and not self.routes

    def __str__(self) -> str:
        return f"links={list(self.links)} routes={list(self.routes)} /proc links={list(self.witnessed_links)}"


def inspect_network(init_pid: int, route_socket: socket.socket) -> NetworkFacts:
    """Look into the network namespace of `init_pid`. Raises OSError when the kernel does not answer."""
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    route_socket.settimeout(5.0)
    links = [message.get_attr("IFLA_IFNAME") for message in _dump(route_socket, ifinfmsg, RTM_GETLINK)]
    routes = [
        f"{message.get_attr('RTA_DST') or 'default'} table {message.get_attr('RTA_TABLE') or message['table']}"
        for message in _dump(route_socket, rtmsg, RTM_GETROUTE)
        if (message.get_attr("RTA_TABLE") or message["table"]) != LOCAL_TABLE and not _loopback(message)
    ]
    return NetworkFacts(
        links=tuple(sorted(links)), routes=tuple(routes), witnessed_links=links_by_proc(init_pid)
    )


def _loopback(message: Any) -> bool:
    """The kernel adds ::1 to the main table of IPv6; it leads nowhere else."""
    return bool(message.get_attr("RTA_DST") == "::1")


def links_by_proc(init_pid: int) -> tuple[str, ...]:
    """Return the links that /proc/PID/net/dev lists for the namespace of that process."""
    lines = Path(f"/proc/{init_pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return tuple(sorted(line.partition(":")[0].strip() for line in lines))


def _dump(route_socket: socket.socket, kind: type, request: int) -> list[Any]:
    question = kind()
    question["header"]["type"] = request
    question["header"]["flags"] = NLM_F_REQUEST | NLM_F_DUMP
    question["header"]["sequence_number"] = request
    question.encode()
    route_socket.send(bytes(question.data))
    found: list[Any] = []
    while True:
        data = route_socket.recv(65536)
        offset = 0
        while offset < len(data):
            length = int.from_bytes(data[offset : offset + 4], "little")
            message_type = int.from_bytes(data[offset + 4 : offset + 6], "little")
            if message_type == NLMSG_DONE:
                return found
            if message_type == NLMSG_ERROR or length < 16:
                raise OSError("the kernel refused to list the task's network")
            message = kind(data[offset : offset + length])
            message.decode()
            found.append(message)
            offset += (length + 3) & ~3
