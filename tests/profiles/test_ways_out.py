"""Gateways and hosts in a profile: what can be written, what is remarked on, and what is said about them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from broker.decide.gateway import FIRST_PORT
from broker.decide.narrowing import below
from broker.decide.profile import Profile
from broker.profiles.check import findings
from broker.profiles.compare import Direction, compare
from broker.profiles.errors import ProfileInvalid
from broker.profiles.explain import sections
from broker.profiles.exposure import exposures, score
from broker.profiles.load import load_profile

GOOD = {
    "upstream": "https://api.anthropic.com", "env": {"ANTHROPIC_BASE_URL": "{url}"}, "methods": ["POST"], "paths": ["/v1/messages"],
    "headers": {"x-api-key": {"env": "ANTHROPIC_API_KEY"}}, "models": ["claude-sonnet-5"], "per_minute": 60,
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Any) -> Any:
    import json

    def make(gateways: dict[str, Any] | None = None, hosts: tuple[str, ...] = (), **keys: Any) -> Profile:
        table = {"description": "x", "max_risk": "local_write", **keys, "gateways": gateways or {}, "network": {"hosts": list(hosts)}}
        path = tmp_path / "p.json"
        path.write_text(json.dumps({"profiles": {"p": table}}))
        path.chmod(0o644)
        return load_profile("p", profile_dirs=(str(tmp_path),))

    return make


def test_a_gateway_is_what_is_written(made: Any) -> None:
    [gateway] = made({"model": GOOD}).gateways
    assert (gateway.scheme, gateway.host, gateway.port, gateway.prefix) == ("https", "api.anthropic.com", 443, "")
    assert (gateway.methods, gateway.paths, gateway.models, gateway.per_minute) == (("POST",), ("/v1/messages",), ("claude-sonnet-5",), 60)
    assert gateway.headers[0][1].source == ("ANTHROPIC_API_KEY",)


@pytest.mark.parametrize(("change", "problem"), [
    ({"upstream": "http://api.anthropic.com"}, "anybody on the way could read the credential"),
    ({"upstream": "api.anthropic.com"}, "must be a URL"),
    ({"upstream": "https://user:pw@host/"}, "must be a URL"),
    ({"upstream": "https://host/?x=1"}, "must be a URL"),
    ({"upstream": "https://host:0/"}, "no such port"),
    ({"upstream": "https://host/../x"}, "no such port or path"),
    ({"methods": ["CONNECT"]}, "is none of"),
    ({"paths": ["v1"]}, "must be the beginning of a path"),
    ({"paths": ["/v1/../x"]}, "must be the beginning of a path"),
    ({"headers": {"Host": "x"}}, "cannot be set"),
    ({"headers": {"X": {"env": "A", "file": "/b"}}}, "exactly one of"),
    ({"headers": {"X": {}}}, "exactly one of"),
    ({"headers": {"X": {"env": "A", "form": "Bearer"}}}, "must hold {}"),
    ({"headers": {"X": "a\nb"}}, "printable ASCII"),
    ({"headers": {"X": {"file": "key"}}}, "with its whole path"),
    ({"headers": {"X": {"command": ["./key"]}}}, "with its whole path"),
    ({"headers": {"X": {"command": ["pass", "show", "key"]}}}, "with its whole path"),
    ({"env": {"A B": "{url}"}}, "is not a variable's name"),
    ({"addresses": ["10.0.0.1/8"]}, "Write a network"),
    ({"request_bytes": "many"}, "request_bytes"),
    ({"per_minute": 0}, "at least 1"),
])  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(made: Any, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProfileInvalid) as caught:
        made({"model": GOOD | change})
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_gateways_than_there_are_ports_are_refused(made: Any) -> None:
    many = {f"g{number}": GOOD for number in range(15)}
    assert [gateway.inside for gateway in made(many).gateways] == list(range(FIRST_PORT, FIRST_PORT + 15))
    with pytest.raises(ProfileInvalid, match="at most 15"):
        made(many | {"one-more": GOOD})


@pytest.mark.parametrize("host", ["https://pypi.org", "*.org", "*", "pypi.org:0", "pypi.org:99999", "pypi org", "a..b", "*.*.org", ""])
def test_a_host_is_a_name_and_a_port(made: Any, host: str) -> None:
    with pytest.raises(ProfileInvalid):
        made(hosts=(host,))


@pytest.mark.parametrize(("change", "rule"), [
    ({"paths": []}, "gateway.every-path"), ({"models": []}, "gateway.every-model"), ({"env": {}}, "gateway.untold"),
    ({"headers": {"Authorization": "Bearer x"}}, "gateway.secret"), ({"addresses": ["10.0.0.0/8"]}, "gateway.addresses"),
])  # fmt: skip
def test_what_is_probably_not_meant_is_remarked_on(made: Any, change: dict[str, Any], rule: str) -> None:
    def rules(profile: Profile) -> set[str]:
        return {finding.rule for finding in findings(profile) if finding.rule.startswith(("gateway.", "network."))}

    assert rules(made({"model": GOOD})) == set()
    assert rules(made({"model": GOOD | change})) == {rule}


def test_hosts_that_nothing_may_reach_and_wildcards_are_remarked_on(made: Any) -> None:
    def rules(**how: Any) -> set[str]:
        return {finding.rule for finding in findings(made(**how)) if finding.rule.startswith("network.")}

    assert rules(hosts=("pypi.org",)) == {"network.idle"}
    assert rules(hosts=("*.pythonhosted.org",), max_risk="network_egress") == {"network.wildcard"}
    entry = {"command": "pip install -r requirements.txt", "effects": ["network_egress"]}
    assert rules(hosts=("pypi.org",), allowlist=[entry]) == set()


def test_an_open_gateway_is_more_open_than_a_narrow_one(made: Any) -> None:
    marks = [score(exposures(made(gateways))) for gateways in ({}, {"m": GOOD}, {"m": GOOD | {"paths": [], "models": []}})]
    assert marks == sorted(set(marks))
    assert score(exposures(made(hosts=("*.a.org",), max_risk="network_egress"))) > score(exposures(made(hosts=("x.a.org",), max_risk="network_egress")))


@pytest.mark.parametrize(("change", "direction"), [
    ({"per_minute": 10}, Direction.NARROWER), ({"methods": []}, Direction.NARROWER), ({"request_bytes": "1M"}, Direction.NARROWER),
    ({"per_minute": 90}, Direction.WIDER), ({"methods": ["POST", "GET"]}, Direction.WIDER), ({"paths": []}, Direction.WIDER),
    ({"models": []}, Direction.WIDER), ({"upstream": "https://elsewhere.example"}, Direction.WIDER), ({"headers": {}}, Direction.WIDER),
    ({"paths": ["/v1/messages/batches"]}, Direction.WIDER), ({"addresses": ["10.0.0.0/24"]}, Direction.WIDER),
])  # fmt: skip
def test_a_difference_of_gateways_has_a_direction_and_doubt_is_wider(made: Any, change: dict[str, Any], direction: Direction) -> None:
    [found] = compare(made({"model": GOOD}), made({"model": GOOD | change}))
    assert (found.direction, found.key) == (direction, "gateways.model")


def test_what_is_shown_names_each_way_out_and_no_credential(made: Any) -> None:
    profile = made({"model": GOOD, "own": GOOD | {"headers": {"X-Key": "s3cret"}}}, hosts=("pypi.org",))
    shown = dict(sections(profile))
    [(name, text), *_, (host, _)] = shown["ways out"]
    assert (name, host) == ("model", "pypi.org:443")
    assert "https://api.anthropic.com:443 at http://127.0.0.1:47100; POST of /v1/messages" in text
    assert "x-api-key is added outside, from the variable ANTHROPIC_API_KEY" in text
    assert "s3cret" not in str(shown)


def test_a_child_has_its_parents_gateway_at_its_parents_port(made: Any) -> None:
    parent, child = made({"a": GOOD, "b": GOOD}), made({"b": GOOD, "c": GOOD})
    [left] = below(child, parent).gateways
    assert (left.name, left.inside) == ("b", FIRST_PORT + 1)
    assert below(replace(child, gateways=()), parent).gateways == ()


def test_the_example_in_the_documentation_is_a_profile(made: Any) -> None:
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```toml\n")[1:]]
    assert len(blocks) >= 5
    for block in blocks:
        table = tomllib.loads(block)
        profile = made(table.get("gateways"), tuple(table.get("network", {}).get("hosts", ())), **{key: table[key] for key in ("max_risk",) if key in table})
        assert not [finding for finding in findings(profile) if finding.rule.startswith("gateway.") and finding.severity > 0]
