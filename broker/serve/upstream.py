"""The way from the broker to an upstream: names are resolved once, looked at, and pinned.

In: a gateway's settings. Out: a pool of connections that goes to that host and nowhere else: not where a redirect or a
changed name leads, and not into the operator's own network unless the operator said so.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import subprocess
import threading
import typing
from collections.abc import Iterable

import httpcore2

from broker.decide.egress import address_refused
from broker.decide.gateway import Gateway, Secret
from broker.errors import BrokerError

CONNECT_SECONDS = 15.0
COMMAND_SECONDS = 10.0
MOST_SECRET = 64 * 1024


class Unreachable(BrokerError):
    """The upstream cannot, or may not, be reached."""


def resolve(host: str, port: int, allowed: Iterable[str]) -> list[str]:
    """Return the addresses of a host that may be used. Raises Unreachable when none may."""
    try:
        ipaddress.ip_address(host)
        return [host]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host} cannot be resolved: {error}") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    refusals = [address_refused(address, allowed, literal=host == "localhost") for address in addresses]
    # All of them, not any: a name with a public and a private address is a name that somebody plays with.
    if why := next((why for why in refusals if why), ""):
        raise Unreachable(f"{host}: {why}. List its network in the gateway's `addresses` if that is meant")
    return addresses


class _Pinned(httpcore2.NetworkBackend):
    """Connects to the addresses that were looked at, whatever the name leads to later."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._inner = httpcore2.SyncBackend()
        self._addresses: list[str] = []
        self._lock = threading.Lock()

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[typing.Any] | None = None,
    ) -> httpcore2.NetworkStream:  # fmt: skip
        with self._lock:
            if not self._addresses:
                self._addresses = resolve(self._gateway.host, self._gateway.port, self._gateway.addresses)
            addresses = list(self._addresses)
        error: Exception | None = None
        for address in addresses:
            try:
                return self._inner.connect_tcp(address, self._gateway.port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as failed:
                error = failed
        assert error is not None
        raise error


def pool_for(gateway: Gateway, context: ssl.SSLContext | None = None) -> httpcore2.ConnectionPool:
    """Return the connections of a gateway. No proxy of the environment is used, no redirect followed, no cookie kept."""
    secure = gateway.scheme == "https"
    return httpcore2.ConnectionPool(
        ssl_context=(context or httpcore2.default_ssl_context()) if secure else None, http1=True, http2=secure,
        max_connections=64, max_keepalive_connections=8, keepalive_expiry=30.0, network_backend=_Pinned(gateway),
    )  # fmt: skip


def value_of(secret: Secret) -> str:
    """Return a header's value. Raises Unreachable, which never holds it."""
    match secret.kind:
        case "text":
            value = secret.source[0]
        case "env":
            value = os.environ.get(secret.source[0], "")
            if not value:
                raise Unreachable(f"the environment variable {secret.source[0]} of the broker is not set")
        case "file":
            value = _read(secret.source[0])
        case _:
            value = _run(secret.source)
    value = value.strip()
    if not value or any(not 32 <= ord(char) < 127 for char in value):
        raise Unreachable("the credential is empty, or holds what no header can")
    return secret.form.replace("{}", value)


def _read(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read(MOST_SECRET)
    except (OSError, UnicodeDecodeError) as error:
        raise Unreachable(f"the credential's file {path} cannot be read: {type(error).__name__}") from None


def _run(argv: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"the credential's command {argv[0]} failed: {type(error).__name__}") from None
    if done.returncode:
        raise Unreachable(f"the credential's command {argv[0]} ended with {done.returncode}")
    return done.stdout[:MOST_SECRET].decode("utf-8", "replace")
