"""Step 4: the proof, from outside, that a task has no network.

The guard opens a NETLINK_ROUTE socket in its namespace before anything else runs, and hands it over; the
kernel answers on it for that namespace, whoever asks. /proc/PID/net/dev, read from the host, is the second witness: it
needs no help from inside at all.

The two questions are asked and read here, and not by a netlink library: loading one took longer than all else that a start
does. `broker doctor` has pyroute2 ask and read them again (network_cross_check.py).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from broker.values import dataclass

RTM_GETLINK, RTM_GETROUTE = 18, 26
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
LOCAL_TABLE = 255  # the kernel's own routes to its own addresses (127.0.0.0/8, ::1)
IFLA_IFNAME, RTA_DST, RTA_TABLE = 3, 1, 15

_BREAKS_OFF = "the kernel's list of the task's network breaks off"
_MESSAGE = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port (netlink(7))
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg (rtnetlink(7))
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg: family, three more, table, protocol, scope, type, flags
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr: length, type


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
    """Look into the network namespace of `init_pid`. Raises OSError when the kernel does not answer, or not as it should."""
    route_socket.settimeout(5.0)
    links = [_link_name(body) for body in _dump(route_socket, RTM_GETLINK, _LINK)]
    routes = [route for body in _dump(route_socket, RTM_GETROUTE, _ROUTE) if (route := _way_out(body))]
    return NetworkFacts(
        links=tuple(sorted(links)), routes=tuple(routes), witnessed_links=links_by_proc(init_pid)
    )


def _link_name(body: bytes) -> str:
    name = _attributes(body, _LINK.size).get(IFLA_IFNAME)
    if name is None:
        raise OSError("the kernel listed a link without a name")
    return name.rstrip(b"\0").decode("utf-8", "backslashreplace")


def _way_out(body: bytes) -> str:
    """Return where a route leads, in words; '' if it leads nowhere else."""
    family, _, _, _, table, *_ = _ROUTE.unpack_from(body)
    attributes = _attributes(body, _ROUTE.size)
    if RTA_TABLE in attributes:  # the header has room for 256 of them only
        table = int.from_bytes(attributes[RTA_TABLE], "little")
    address = attributes.get(RTA_DST, b"")
    try:
        to = socket.inet_ntop(family, address) if address else "default"
    except (OSError, ValueError):
        to = address.hex()  # of a family that Python has no words for: a route all the same
    # The kernel adds ::1 to the main table of IPv6; it leads nowhere else.
    return "" if table == LOCAL_TABLE or to == "::1" else f"{to} table {table}"


def links_by_proc(init_pid: int) -> tuple[str, ...]:
    """Return the links that /proc/PID/net/dev lists for the namespace of that process."""
    lines = Path(f"/proc/{init_pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return tuple(sorted(line.partition(":")[0].strip() for line in lines))


def _dump(route_socket: socket.socket, request: int, header: struct.Struct) -> Iterator[bytes]:
    """Ask for a whole table; yield what follows the header of each message."""
    length = _MESSAGE.size + header.size
    route_socket.send(
        _MESSAGE.pack(length, request, NLM_F_REQUEST | NLM_F_DUMP, request, 0).ljust(length, b"\0")
    )
    while True:
        data, (sender, _) = route_socket.recvfrom(1 << 16)
        offset = 0
        while offset < len(data):
            if len(data) - offset < _MESSAGE.size:
                raise OSError(_BREAKS_OFF)
            length, kind, _, _, _ = _MESSAGE.unpack_from(data, offset)
            if sender or kind == NLMSG_ERROR:  # 0 is the kernel (netlink(7))
                raise OSError("the kernel refused to list the task's network")
            if kind == NLMSG_DONE:
                return
            if length < _MESSAGE.size + header.size or offset + length > len(data):
                raise OSError(_BREAKS_OFF)
            yield data[offset + _MESSAGE.size : offset + length]
            offset += (length + 3) & ~3


def _attributes(body: bytes, offset: int) -> dict[int, bytes]:
    found = {}
    while offset < len(body):
        length, kind = (
            _ATTRIBUTE.unpack_from(body, offset) if len(body) - offset >= _ATTRIBUTE.size else (0, 0)
        )
        if length < _ATTRIBUTE.size or offset + length > len(body):
            raise OSError(_BREAKS_OFF)
        found[kind & 0x3FFF] = body[offset + _ATTRIBUTE.size : offset + length]  # the two high bits are flags
        offset += (length + 3) & ~3
    return found
