"""Step 3: what may go out through a gateway: one upstream that the operator named, and what of it.

In: a gateway's settings and the head of a request. Out: what is sent on, or a Deny. Pure: nothing is resolved, opened or
sent here. The default is the least: the paths and methods that are listed, on the host that is named.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from broker.classify.risk import Risk
from broker.decide.gateway import Gateway
from broker.decide.model_name import Unclear, models_beside
from broker.decide.verdict import Deny, Layer
from broker.decide.wording import shorten
from broker.values import dataclass

Header = tuple[bytes, bytes]
# Of one connection and not of a request: never passed on (RFC 9110 §7.6.1), and what a proxy would act upon. Where a body
# ends is said anew.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"content-length", b"upgrade", b"host", b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host",
})  # fmt: skip
# What some servers take for the real path, method, host or client: it would be judged by one, and served by the other.
_IN_PLACE_OF = (b"x-forwarded-", b"x-original-", b"x-rewrite-", b"x-envoy-", b"x-http-", b"x-method-override", b"x-host", b"x-real-ip")
# Another one's account at the same upstream is a way to carry things off.
_CREDENTIALS = frozenset({
    b"authorization", b"authentication", b"x-authorization", b"x-api-key", b"x-goog-api-key", b"x-goog-iam-authorization-token", b"api-key",
    b"apikey", b"x-apikey", b"x-auth-key", b"x-auth-token", b"x-access-token", b"x-amz-security-token", b"ocp-apim-subscription-key",
    b"subscription-key", b"private-token", b"cookie", b"set-cookie",
})  # fmt: skip
_QUERY_CREDENTIALS = frozenset({b"key", b"api-key", b"apikey", b"x-api-key", b"access-token", b"auth-token", b"oauth-token", b"subscription-key"})
_PUBLIC = ipaddress.ip_network("2000::/3")  # all that is given out of IPv6 (RFC 4291 §2.4)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# In the public ranges, and no public hosts: protocol assignments, 6to4 relays, Azure's own services, documentation.
_NOBODYS = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20")))
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
    upgrade = verb == "GET" and _wants_websocket(headers)  # RFC 6455 §4.1
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
    length = None if chunked else next(iter(lengths), 0)
    if gateway.models and (denial := may_use(gateway, *models_beside(path if _acts(verb, length) else b"", query))):
        return denial
    own = {_folded(name.encode("latin-1")) for name, _ in gateway.headers}
    adds_credential = bool(own & _CREDENTIALS) or any(secret.kind != "text" for _, secret in gateway.headers)
    dropped = HOP_BY_HOP | own | _named_by_connection(headers) | (_CREDENTIALS if adds_credential else frozenset())
    kept = tuple((name, value) for name, value in headers if (key := _folded(name)) not in dropped and not key.startswith(_IN_PLACE_OF))
    if adds_credential:
        kept = tuple(_without_protocols_of_credentials(pair) for pair in kept)
        query = b"&".join(pair for pair in query.split(b"&") if not _is_credential(pair))
    return Outgoing(
        method=verb, target=gateway.prefix.encode("latin-1") + path + question + query, headers=kept, upgrade=upgrade, length=length
    )


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


def _acts(verb: str, length: int | None) -> bool:
    """Whether a request has something done, and does not only look something up."""
    return length != 0 or verb not in ("GET", "HEAD", "OPTIONS")


def may_use(gateway: Gateway, *models: str | Unclear) -> Deny | None:
    """Decide about the models that a request names."""
    model = next((model for model in models if model not in gateway.models), None)
    if not gateway.models or model is None:
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
    if all(_is_public(one) for one in (ip, inner) if one is not None):
        return ""
    return f"{ip} is not an address of the public network"


def _is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is one of the public network. What of IPv6 was never given out is not: some networks use it inside."""
    if ip.version == 6 and ip not in _PUBLIC and ip not in _NAT64:
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOBODYS if network.version == ip.version)


def _carried_in(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets to an IPv6 address end at: mapped, compatible, or by RFC 6052, 6to4, Teredo, ISATAP."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64 or int(ip) >> 32 == 0 or (int(ip) >> 32) & 0xFDFFFFFF == 0x5EFE:
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
    try:
        # Some servers take `％` for `%` and `․․` for `..`; overlong UTF-8, which others decode to dots and slashes, is none.
        plain = unicodedata.normalize("NFKC", unquote_to_bytes(path).decode("utf-8"))
    except UnicodeDecodeError:
        return False
    if b"//" in path or "\\" in plain or "%" in plain or plain.count("/") != path.count(b"/") or not plain.isprintable():
        return False
    # `..;` is `..` to some servers, `.. ` to others.
    return not any(part.partition(";")[0].strip() in (".", "..") for part in plain.split("/"))


def _folded(name: bytes) -> bytes:
    """Return a header's name as many servers compare it: to them `x_api_key` is `x-api-key`."""
    return name.lower().replace(b"_", b"-")


def _without_protocols_of_credentials(header: Header) -> Header:
    """Return a header without the credentials that browsers, who cannot set others, put into a websocket's protocols."""
    name, value = header
    if name != b"sec-websocket-protocol":
        return header
    words = [word.strip() for word in value.split(b",")]
    return name, b", ".join(word for word in words if not any(part in word.lower() for part in (b"key", b"auth", b"bearer", b"token")))


def _is_credential(pair: bytes) -> bool:
    return _folded(unquote_to_bytes(pair.partition(b"=")[0])).lstrip(b"$") in _QUERY_CREDENTIALS


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix.rstrip("/") + "/") or (prefix.endswith("*") and path.startswith(prefix[:-1]))


def _wants_websocket(headers: Iterable[Header]) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)


def _named_by_connection(headers: Iterable[Header]) -> set[bytes]:
    return {
        _folded(word.strip()) for name, value in headers if name == b"connection" for word in value.split(b",")
    }
