"""What there is to say about a profile's ways out: what they are, what of them is probably not meant, and how open they are.

In: a profile. Out: lines for people, findings, and exposures as (id, weight, text, remedy).
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from broker.classify.risk import Risk
from broker.decide.gateway import PROXY_PORT, Gateway
from broker.decide.profile import Profile
from broker.decide.wording import listed
from broker.profiles.finding import Finding, note, warning
from broker.profiles.quantity import show_size

_KINDS = {"env": "variable", "file": "file", "command": "command"}
_CREDENTIALS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"})


def ways_out_lines(profile: Profile) -> tuple[tuple[str, str], ...]:
    """Return each way out, and what of it is open."""
    lines = [(gateway.name, _gateway(gateway)) for gateway in profile.gateways]
    lines += [(host, f"through the proxy at http://127.0.0.1:{PROXY_PORT}, for what may be network_egress") for host in profile.hosts]
    return tuple(lines)


def _gateway(gateway: Gateway) -> str:
    told = [
        f"{origin(gateway)}{gateway.prefix} at http://127.0.0.1:{gateway.inside}",
        f"{', '.join(gateway.methods) or 'no method'} of {listed(gateway.paths) if gateway.paths else 'every path'}",
        f"models {listed(gateway.models)}" if gateway.models else "any model",
    ]
    for header, secret in gateway.headers:
        told.append(f"{header} is added outside" + ("" if secret.kind == "text" else f", from the {_KINDS[secret.kind]} {secret.source[0]}"))
    if gateway.env:
        told.append(f"told in {listed(name for name, _ in gateway.env)}")
    if gateway.addresses:
        told.append(f"also in {listed(gateway.addresses)}")
    told.append(f"at most {show_size(gateway.request_bytes)} out and {show_size(gateway.response_bytes)} back a request")
    if gateway.per_minute is not None:
        told.append(f"{gateway.per_minute} requests a minute")
    return "; ".join(told)


def origin(gateway: Gateway) -> str:
    """Return an upstream's scheme, host and port."""
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    return f"{gateway.scheme}://{host}:{gateway.port}"


def ways_out_findings(profile: Profile) -> Iterator[Finding]:
    """Yield what is probably not meant about the ways out."""
    told: dict[str, str] = {}
    for gateway in profile.gateways:
        name, keys = gateway.name, ("gateways", gateway.name)
        if not gateway.paths:
            yield (warning if gateway.headers else note)(
                "gateway.every-path", f"gateway {name} lets every path of {gateway.host} through" + (", with your credential" if gateway.headers else ""),
                'Name those that are needed, as paths = ["/v1/messages"]', *keys,
            )  # fmt: skip
        if not gateway.models:
            yield note("gateway.every-model", f"gateway {name} lets any model be used, whatever it costs", "Name them: models = [...]", *keys)
        if not gateway.env:
            yield note("gateway.untold", f"nothing tells programs inside where gateway {name} is", 'Set env = { NAME = "{url}" }', *keys)
        for header, secret in gateway.headers:
            if secret.kind == "text" and header.lower() in _CREDENTIALS:
                yield warning(
                    "gateway.secret", f"the credential of gateway {name} stands in the profile", "Take it from env, file or command", *keys, "headers", header
                )
        for variable, _ in gateway.env:
            if variable in told:
                yield warning("gateway.env-twice", f"gateways {told[variable]} and {name} both set {variable}: the second one counts", "Set it once", *keys, "env")
            told[variable] = name
        for network in gateway.addresses:
            if ip_network(network).num_addresses > 256:
                yield warning(
                    "gateway.addresses", f"gateway {name} may be led anywhere in {network} by whoever answers for {gateway.host}",
                    'Name the one address: addresses = ["10.0.0.7/32"]', *keys, "addresses",
                )  # fmt: skip
    for host in profile.hosts:
        if host.startswith("*."):
            yield warning(
                "network.wildcard", f"network.hosts lists {host}: whoever has a name below it can be sent anything",
                "List the hosts that are needed", "network", "hosts",
            )  # fmt: skip
    if profile.hosts and not _may_reach_out(profile):
        yield warning(
            "network.idle", "network.hosts has no effect: nothing here may be network_egress, so the proxy refuses",
            'Give an entry effects = ["network_egress"], or raise the ceiling', "network", "hosts",
        )  # fmt: skip


def _may_reach_out(profile: Profile) -> bool:
    return Risk.NETWORK_EGRESS in profile.effects or any(Risk.NETWORK_EGRESS in entry.effects for entry in profile.allowlist)


def ways_out_exposures(profile: Profile) -> Iterator[tuple[str, float, str, str]]:
    """Yield what the ways out give away: id, weight, text, remedy."""
    for gateway in profile.gateways:
        weight = 0.08 + (0.0 if gateway.paths else 0.08) + (0.0 if gateway.models else 0.02) + (0.05 if gateway.addresses else 0.0)
        open_too = [what for what, is_open in (("every path", not gateway.paths), ("any model", not gateway.models)) if is_open]
        more = f", {listed(open_too)}" if open_too else ""
        yield (
            f"gateway.{gateway.name}", weight, f"what the task knows can be sent to {gateway.host}{more}",
            "Name its paths and models" if open_too else "",
        )  # fmt: skip
    if profile.hosts and _may_reach_out(profile):
        wild = [host for host in profile.hosts if host.startswith("*.")]
        yield (
            "network.hosts", min(0.15 + 0.02 * len(profile.hosts) + 0.15 * bool(wild), 0.5),
            f"what the task knows can be sent to {listed(profile.hosts)}", "List single hosts" if wild else "Do without, or use a gateway",
        )  # fmt: skip


def is_narrower(new: Gateway, old: Gateway) -> bool:
    """Whether everything that goes through one gateway goes through the other, to the same place, with the same credential."""
    same = all(getattr(new, name) == getattr(old, name) for name in ("scheme", "host", "port", "prefix", "env", "headers"))
    sizes = new.request_bytes <= old.request_bytes and new.response_bytes <= old.response_bytes
    rate = old.per_minute is None or (new.per_minute is not None and new.per_minute <= old.per_minute)
    models = not old.models or (bool(new.models) and set(new.models) <= set(old.models))
    paths = not old.paths or (bool(new.paths) and set(new.paths) <= set(old.paths))
    return same and sizes and rate and models and paths and set(new.methods) <= set(old.methods) and set(new.addresses) <= set(old.addresses)
