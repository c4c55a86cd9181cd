"""Step 3: a way out that an operator opened: one upstream, and what of it. Settings only; egress.py judges by them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Where a header's value comes from, on the host: an environment variable, a file, or a command. `form` holds `{}`."""

    kind: str  # env, file, command, text
    source: tuple[str, ...]
    form: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One upstream. `origin` is scheme, host and port; `prefix` is put in front of each path.

    `env` are variables that the task gets, `{url}` in them is where the gateway listens inside. `headers` are set on each
    request, in the place of what the task sent. `paths` are prefixes, at a `/` (empty: every path). `per_minute`: requests. `models`: those
    that a JSON body may name (empty: any). `addresses` are private or local networks in which the host may lie. Sizes in bytes.
    """

    name: str
    scheme: str
    host: str
    port: int
    prefix: str = ""
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, Secret], ...] = ()
    methods: tuple[str, ...] = ("GET", "POST")
    paths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    request_bytes: int = 64 * MIB
    response_bytes: int = 1024 * MIB
    per_minute: int | None = None


FIRST_PORT = 47_100  # on the sandbox's own loopback: one for each gateway, in order, and the last one for the proxy


def port_of(gateways: tuple[Gateway, ...], name: str) -> int:
    """Return where a gateway listens inside."""
    return FIRST_PORT + [gateway.name for gateway in gateways].index(name)


def ports_for(gateways: tuple[Gateway, ...], hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return where something listens inside."""
    return tuple(range(FIRST_PORT, FIRST_PORT + len(gateways) + bool(hosts)))


def environment_for(gateways: tuple[Gateway, ...], hosts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the variables that tell programs inside where their ways out are."""
    values: dict[str, str] = {}
    for number, gateway in enumerate(gateways):
        url = f"http://127.0.0.1:{FIRST_PORT + number}"
        values |= {name: text.replace("{url}", url) for name, text in gateway.env}
    if hosts:
        proxy = f"http://127.0.0.1:{FIRST_PORT + len(gateways)}"
        values |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
    if values:
        values |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1")
    return tuple(values.items())
