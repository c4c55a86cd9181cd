"""The way from the broker to a host: its name is resolved once, every address is looked at, and only those are used.

In: a host that an operator named. Out: a connected socket. Nothing leads into the operator's own network unless the
operator said so: not a name that leads there, not a name that leads there later, not an address in an address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from broker.decide.egress import address_refused
from broker.errors import BrokerError

CONNECT_SECONDS = 15.0
MOST_TRIED = 4  # addresses of one name
_HERE = ("127.0.0.0/8", "::1/128")


class Unreachable(BrokerError):
    """The upstream cannot, or may not, be reached. Its text goes to the agent, and never holds a credential."""


def resolve(host: str, port: int, allowed: Iterable[str]) -> list[str]:
    """Return the addresses of a host that may be used. Raises Unreachable when one may not, or there is none.

    An address that the operator wrote in the place of a name is used as it is.
    """
    try:
        ipaddress.ip_address(host)
        return [host]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host} cannot be resolved: {error}") from None
    allowed = (*allowed, *_HERE) if host == "localhost" else tuple(allowed)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    # All of them, not any: a name with a public and a private address is a name that somebody plays with.
    if why := next((why for why in (address_refused(address, allowed) for address in addresses) if why), ""):
        raise Unreachable(f"{host}: {why}. List its network in the gateway's `addresses` if that is meant")
    return addresses


def connect(addresses: Iterable[str], port: int) -> socket.socket:
    """Connect to the first that answers. Raises Unreachable."""
    problem = "it has no address"
    for address in list(addresses)[:MOST_TRIED]:
        try:
            found = socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            problem = f"{address}:{port}: {error.strerror or error}"
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
    raise Unreachable(problem)
