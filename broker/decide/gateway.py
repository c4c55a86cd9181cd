"""Step 3: a way out that an operator opened: one upstream, and what of it. Settings only; egress.py judges by them."""

from __future__ import annotations

from dataclasses import field, replace

from broker.values import dataclass

MIB = 1 << 20
# On the sandbox's own loopback. The same all the way down the tree, because each ancestor judges what a sub-task starts,
# its environment included.
PROXY_PORT, FIRST_PORT = 47_099, 47_100
MOST_GATEWAYS = 15


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
    `inside` is the port that it listens on; two gateways that differ only in that are the same.
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
    inside: int = field(default=FIRST_PORT, compare=False)


def added_to(gateways: tuple[Gateway, ...], one: Gateway) -> tuple[Gateway, ...]:
    """Return gateways with one more, on the next port that none of them has."""
    return (*gateways, replace(one, inside=max((gateway.inside for gateway in gateways), default=FIRST_PORT - 1) + 1))


def port_of(gateways: tuple[Gateway, ...], name: str) -> int:
    """Return where a gateway listens inside."""
    return next(gateway.inside for gateway in gateways if gateway.name == name)


def ports_for(gateways: tuple[Gateway, ...], hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return where something listens inside."""
    return (*(gateway.inside for gateway in gateways), *((PROXY_PORT,) if hosts else ()))


def environment_for(gateways: tuple[Gateway, ...], hosts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the variables that tell programs inside where their ways out are. They are the operator's, as env.set is."""
    values: dict[str, str] = {}
    for gateway in gateways:
        url = f"http://127.0.0.1:{gateway.inside}"
        values |= {name: text.replace("{url}", url) for name, text in gateway.env}
    if hosts:
        values |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), f"http://127.0.0.1:{PROXY_PORT}")
    if values:
        values |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1")
    return tuple(values.items())
