"""`broker doctor`: what it says of a real sandbox, and that it fails where its two readers of the network disagree."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.cli.main import main
from broker.enforce import network_cross_check
from broker.enforce.network import NetworkFacts

pytestmark = pytest.mark.needs_bubblewrap


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    report = json.loads(capsys.readouterr().out)
    return {finding["name"]: finding for finding in report["engines"]["bubblewrap"]}


def test_every_layer_holds_and_both_readers_see_the_same_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "bubblewrap", "--json"]) == 0

    findings = found(capsys)
    assert all(finding["effective"] for finding in findings.values())
    assert findings["network"]["evidence"] == "links=['lo'] routes=[] /proc links=['lo']"
    assert findings["cross_check"]["evidence"] == "pyroute2 reads the same links and routes"


def test_a_link_that_only_the_second_reader_sees_fails_the_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = network_cross_check.read_with_pyroute2

    def sees_more(*asked: object) -> NetworkFacts:  # no kernel shows two readers two networks
        return replace(really(*asked), links=("leak0", "lo"))

    monkeypatch.setattr(network_cross_check, "read_with_pyroute2", sees_more)
    assert main(["doctor", "--engine", "bubblewrap", "--json"]) == 78

    findings = found(capsys)
    assert findings["network"]["effective"]
    assert not findings["cross_check"]["effective"]
    assert findings["cross_check"]["evidence"] == "broker reads the links ['lo'], pyroute2 ['leak0', 'lo']"
