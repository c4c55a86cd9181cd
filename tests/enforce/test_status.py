"""Which layers are effective: a missing proof is a failed one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.decide.profile import Profile
from broker.enforce import wire
from broker.enforce.network import NetworkFacts
from broker.enforce.status import PROOFS, judge_layers
from broker.errors import HostCannotEnforce

HELLO = wire.Hello(protocol=1, landlock_abi=7, features=0, machine="x86_64")
QUIET = NetworkFacts(links=("lo",), routes=(), witnessed_links=("lo",))
ALL = tuple(
    wire.Proof(name=name, result=wire.ProofResult.REFUSED, evidence="EPERM") for names in PROOFS.values() for name in names
)
PROFILE = Profile(name="p")


def test_all_proofs_make_all_layers_effective() -> None:
    assert all(layer.effective for layer in judge_layers(PROFILE, HELLO, ALL, QUIET, "cgroup"))


@pytest.mark.parametrize("missing", [name for names in PROOFS.values() for name in names])
def test_a_task_does_not_start_when_one_attempt_succeeded_or_is_missing(missing: str) -> None:
    without = tuple(proof for proof in ALL if proof.name != missing)
    with pytest.raises(HostCannotEnforce):
        judge_layers(PROFILE, HELLO, without, QUIET, "cgroup")
    succeeded = (*without, wire.Proof(name=missing, result=wire.ProofResult.ALLOWED, evidence=""))
    with pytest.raises(HostCannotEnforce):
        judge_layers(PROFILE, HELLO, succeeded, QUIET, "cgroup")


@pytest.mark.parametrize(
    "facts",
    [
        replace(QUIET, links=("eth0", "lo")),
        replace(QUIET, witnessed_links=("eth0", "lo")),
        replace(QUIET, routes=("default table 254",)),
    ],
)
def test_a_task_does_not_start_with_a_network(facts: NetworkFacts) -> None:
    with pytest.raises(HostCannotEnforce):
        judge_layers(PROFILE, HELLO, ALL, facts, "cgroup")


def test_a_share_of_the_processors_is_held_by_control_groups_or_not_at_all() -> None:
    profile = replace(PROFILE, sandbox=replace(PROFILE.sandbox, cpus=1.5))
    assert judge_layers(profile, HELLO, ALL, QUIET, "cgroup")[-1].effective
    with pytest.raises(HostCannotEnforce, match="cpus is not held"):
        judge_layers(profile, HELLO, ALL, QUIET, "")
    without = replace(profile, requires=("network",))
    assert not judge_layers(without, HELLO, ALL, QUIET, "")[-1].effective


def test_an_operator_can_do_without_a_layer_and_the_layer_says_so() -> None:
    profile = replace(PROFILE, requires=("network", "seccomp", "exec_gate"))
    layers = judge_layers(profile, replace(HELLO, landlock_abi=0), ALL, QUIET, "")
    assert [layer.name for layer in layers if not layer.effective] == ["landlock"]
