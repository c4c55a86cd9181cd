"""The ways out of a profile: gateways and hosts, from tables to settings.

In: tables of the right shape. Out: Gateway values and `host:port` texts, or ProfileInvalid. What would send a credential
in the clear, or anywhere but to one named host, is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from broker.decide.gateway import FIRST_PORT, MOST_GATEWAYS, Gateway, Secret
from broker.profiles.errors import ProfileInvalid
from broker.profiles.quantity import parse_size
from broker.profiles.schema import NAME, GatewayTable, SecretTable

Wrong = Callable[..., ProfileInvalid]

_UPSTREAM = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::([0-9]{1,5}))?(/[A-Za-z0-9._~/-]*)?")
_HOST = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?(?::([0-9]{1,5}))?")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a token (RFC 9110 §5.6.2)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_HERE = ("localhost", "127.0.0.1", "::1")
_NOT_OURS = ("host", "content-length", "transfer-encoding", "connection", "upgrade")


def gateways_from(wrong: Wrong, tables: Mapping[str, GatewayTable]) -> tuple[Gateway, ...]:
    """Return the gateways that tables mean. `wrong` makes the error for a place in the profile."""
    if len(tables) > MOST_GATEWAYS:
        raise wrong(f"gateways: at most {MOST_GATEWAYS} fit into a profile", "gateways")
    return tuple(gateway_from(wrong, name, table, FIRST_PORT + number) for number, (name, table) in enumerate(tables.items()))


def gateway_from(wrong: Wrong, name: str, table: GatewayTable, inside: int) -> Gateway:
    """Return the gateway that a table means, which listens on the port `inside`."""

    def bad(problem: str, *keys: str) -> ProfileInvalid:
        return wrong(f"gateways.{name}: {problem}", "gateways", name, *keys)

    if not NAME.fullmatch(name):
        raise bad("its name may have lower-case letters, digits, '.', '_' and '-'")
    found = _UPSTREAM.fullmatch(table.upstream)
    if found is None:
        raise bad(f"upstream {table.upstream!r} must be a URL: https://host, without a query", "upstream")
    scheme, host, port, prefix = found[1], found[2].strip("[]").lower(), found[3], (found[4] or "").rstrip("/")
    if scheme == "http" and host not in _HERE:
        raise bad("http:// is for this machine only: anybody on the way could read the credential. Write https://", "upstream")
    number = int(port or (443 if scheme == "https" else 80))
    if not 0 < number < 65536 or ".." in prefix or "//" in prefix:
        raise bad(f"upstream {table.upstream!r} has no such port or path", "upstream")
    for variable in table.env:
        if not _VARIABLE.fullmatch(variable):
            raise bad(f"env: {variable!r} is not a variable's name", "env")
    for method in table.methods or ():
        if method not in _METHODS:
            raise bad(f"methods: {method!r} is none of {', '.join(_METHODS)}", "methods")
    for path in table.paths:
        if not path.startswith("/") or ".." in path or "//" in path or "?" in path:
            raise bad(f"paths: {path!r} must be the beginning of a path, as /v1/messages", "paths")
    if table.per_minute is not None and table.per_minute < 1:
        raise bad("per_minute must be at least 1", "per_minute")
    sizes = {}
    for key in ("request_bytes", "response_bytes"):
        if (value := getattr(table, key)) is not None:
            try:
                sizes[key] = parse_size(value)
            except (ValueError, OverflowError) as error:
                raise bad(f"{key}: {error}", key) from None
    return Gateway(
        name=name, scheme=scheme, host=host, port=number, prefix=prefix, env=tuple(sorted(table.env.items())),
        headers=tuple((header, _secret(bad, header, secret)) for header, secret in table.headers.items()),
        methods=table.methods if table.methods is not None else ("GET", "POST"), paths=table.paths, models=table.models,
        addresses=tuple(_network(bad, text) for text in table.addresses), per_minute=table.per_minute, inside=inside, **sizes,
    )  # fmt: skip


def _secret(bad: Wrong, header: str, table: str | SecretTable) -> Secret:
    if not _HEADER.fullmatch(header) or header.lower() in _NOT_OURS:
        raise bad(f"headers: {header!r} cannot be set", "headers", header)
    if isinstance(table, str):
        if not table.isprintable() or not table.isascii():
            raise bad(f"headers.{header}: its value must be printable ASCII", "headers", header)
        return Secret(kind="text", source=(table,))
    given = [(kind, value) for kind, value in (("env", table.env), ("file", table.file), ("command", table.command)) if value]
    if len(given) != 1:
        raise bad(f"headers.{header}: say exactly one of env, file and command", "headers", header)
    kind, value = given[0]
    if "{}" not in table.form or not table.form.isprintable() or not table.form.isascii():
        raise bad(f"headers.{header}.form must hold {{}}, the place of the value", "headers", header, "form")
    where = value[0] if isinstance(value, tuple) else str(value)
    if kind != "env" and not where.startswith(("/", "~/")):
        what = "file" if kind == "file" else "program"
        raise bad(f"headers.{header}.{kind}: {where!r}: write the {what} with its whole path, so that nobody puts another in its place",
                  "headers", header, kind)  # fmt: skip
    if kind == "env" and not _VARIABLE.fullmatch(str(value)):
        raise bad(f"headers.{header}.env: {value!r} is not a variable's name", "headers", header, "env")
    return Secret(kind=kind, source=value if isinstance(value, tuple) else (str(value),), form=table.form)


def _network(bad: Wrong, text: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise bad(f"addresses: {error}. Write a network, as 10.0.0.0/8", "addresses") from None


def host_from(wrong: Wrong, text: str) -> str:
    """Return a listed host as `name:port`."""
    found = _HOST.fullmatch(text)
    if found is None or (found[1] and text.count(".") < 2):
        raise wrong(f"network.hosts: {text!r} must be a host, as pypi.org:443 or *.example.com:443", "network", "hosts")
    name, _, port = text.partition(":")
    if not 0 < int(port or 443) < 65536:
        raise wrong(f"network.hosts: {text!r} has no such port", "network", "hosts")
    return f"{name}:{port or 443}"
