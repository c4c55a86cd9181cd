"""Step 3: what may go out through a gateway: one upstream that the operator named, and what of it.

In: a gateway's settings and the head of a request. Out: what is sent on, or a Deny. Pure: nothing is resolved, opened or
sent here. The default is the least: the paths and methods that are listed, on the host that is named.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from broker.classify.risk import Risk
from broker.decide.gateway import Gateway
from broker.decide.model_name import Unclear
from broker.decide.verdict import Deny, Layer
from broker.decide.wording import shorten

Header = tuple[bytes, bytes]
# Of one connection and not of a request: never passed on (RFC 9110 §7.6.1), and what a proxy would act upon. Where a body
# ends is said anew.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"content-length", b"upgrade", b"host", b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host",
})  # fmt: skip
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key", b"cookie", b"set-cookie"})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """What is sent on: the target, and the headers of the task's that may go along, none of which says where a body ends.

    `length` is the body's in bytes, None when it comes in chunks; `upgrade`: it asks for a websocket.
    """

    method: str
    target: bytes
    headers: tuple[Header, ...]
    length: int | None = 0
    upgrade: bool = False


def admit(gateway: Gateway, method: bytes, target: bytes, headers: Iterable[Header]) -> Outgoing | Deny:
    """Decide about the head of a request. `headers` have lower-case names."""
    verb = method.decode("ascii", "replace")
    headers = tuple(headers)
    upgrade = _wants_websocket(headers)
    path, question, query = target.partition(b"?")  # a query is never shown: some put a key into it
    what = f"{shorten(verb, 20)} {shorten(path.decode('latin-1'), 120)} through {gateway.name}"
    if verb not in gateway.methods:
        return refused(what, "gateway.method", f"Gateway {gateway.name} lets only {', '.join(gateway.methods)} through.")
    restricted = bool(gateway.paths or gateway.prefix)  # else a path that others read otherwise leads nowhere else
    if not path.startswith(b"/") or not _is_visible(target) or (restricted and not _is_plain(path)):
        return refused(what, "gateway.target", "A request through a gateway names a plain path, without `..`, `//` or hidden slashes.")
    if gateway.paths and not any(_is_below(path.decode("latin-1"), prefix) for prefix in gateway.paths):
        return refused(what, "gateway.path", f"Gateway {gateway.name} lets only these paths through: {', '.join(gateway.paths)}.")
    lengths = {int(value) for name, value in headers if name == b"content-length"}
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    if len(lengths) + chunked > 1 or (upgrade and (chunked or lengths - {0})):
        return refused(what, "gateway.framing", "A request says in one way only where its body ends, and a websocket's has none.")
    own = {name.encode("latin-1").lower() for name, _ in gateway.headers}
    dropped = HOP_BY_HOP | own | (_CREDENTIALS if own & _CREDENTIALS else frozenset())
    named = _named_by_connection(headers)
    kept = tuple((name, value) for name, value in headers if name not in dropped and name not in named)
    return Outgoing(
        method=verb, target=gateway.prefix.encode("latin-1") + path + question + query, headers=kept, upgrade=upgrade,
        length=None if chunked else next(iter(lengths), 0),
    )  # fmt: skip


def passed_back(gateway: Gateway, headers: Iterable[Header]) -> tuple[Header, ...] | None:
    """Return what of an answer's headers the task gets. `headers` have lower-case names. None: its framing is ambiguous.

    A session that was opened with the gateway's credential stays outside with it. Where the body ends is for the caller to say.
    """
    headers = tuple(headers)
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        return None
    dropped = HOP_BY_HOP | {b"alt-svc", *_named_by_connection(headers)} | ({b"set-cookie"} if gateway.headers else set())
    return tuple((name, value) for name, value in headers if name not in dropped)


def may_use(gateway: Gateway, model: str | Unclear) -> Deny | None:
    """Decide about the model that a request's body names."""
    if not gateway.models or model in gateway.models:
        return None
    shown, why = ("no model", f", and {model.reason}") if isinstance(model, Unclear) else (shorten(model, 80), "")
    return refused(
        f"{shown} through {gateway.name}", "gateway.model",
        f"Gateway {gateway.name} lets only these models be used: {', '.join(gateway.models)}{why}.",
    )  # fmt: skip


def refused(what: str, rule: str, reason: str) -> Deny:
    """Return the refusal of something that wanted to go out."""
    return Deny(
        what=what, effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule=rule, reason=reason,
        hint="Do without it; only the operator can open a way out (gateways, network.hosts in the profile).",
    )  # fmt: skip


def address_refused(address: str, allowed: Iterable[str]) -> str:
    """Return why nothing may be sent to an address that a name leads to, or ''. `allowed`: networks, beside the public one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    inner = _carried_in(ip)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if any(ip in ipaddress.ip_network(network) for network in allowed if ipaddress.ip_network(network).version == ip.version):
        return ""
    if all(one.is_global and not one.is_multicast for one in (ip, inner) if one is not None):
        return ""
    return f"{ip} is not an address of the public network"


def _carried_in(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address end at: mapped, translated (RFC 6052), 6to4, Teredo, compatible."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64 or int(ip) >> 32 == 0:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)


def host_listed(host: str, port: int, hosts: Iterable[str]) -> bool:
    """Whether `host:port` is one of the listed: exactly, or below a listed `*.example.com:443`."""
    plain = host.lower().removesuffix(".")
    if not _HOST.fullmatch(plain):
        return False
    for listed in hosts:
        name, _, number = listed.rpartition(":")
        if int(number) != port:
            continue
        if name == plain or (name.startswith("*.") and plain.endswith(name[1:]) and plain != name[2:]):
            return True
    return False


def _is_visible(target: bytes) -> bool:
    return not any(byte <= 32 or byte >= 127 for byte in target) and b"#" not in target


def _is_plain(path: bytes) -> bool:
    """Whether a path means the same to everybody who reads it: no dot segment, no slash that is not one, decoded once or twice."""
    plain = unquote_to_bytes(path)
    if b"//" in path or b"\\" in plain or b"\0" in plain or b"%" in plain or plain.count(b"/") != path.count(b"/"):
        return False
    return not any(part.partition(b";")[0] in (b".", b"..") for part in plain.split(b"/"))  # `..;` is `..` to some servers


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix.rstrip("/") + "/") or (prefix.endswith("*") and path.startswith(prefix[:-1]))


def _wants_websocket(headers: Iterable[Header]) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)


def _named_by_connection(headers: Iterable[Header]) -> set[bytes]:
    return {
        word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")
    }
