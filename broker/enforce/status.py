"""Step 4: which layers are effective, and what proved it. A task does not start on a hope."""

from __future__ import annotations

from collections.abc import Iterable

from broker.decide.profile import Profile
from broker.enforce import wire
from broker.enforce.network import NetworkFacts
from broker.errors import HostCannotEnforce
from broker.values import dataclass

# The guard's attempts, by the layer they prove. A missing one counts as failed.
PROOFS = {
    "exec_gate": ("exec.denied", "exec.untraced-enosys"),
    "landlock": ("write.denied",),
    "seccomp": ("socket.vsock", "socket.packet", "socket.alg", "socket.netlink", "ptrace", "unshare", "io_uring",
                "proc.write", "x32"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStatus:
    """One layer: whether it holds, and the evidence."""

    name: str
    effective: bool
    evidence: str
    remedy: str = ""


def judge_layers(
    profile: Profile, hello: wire.Hello, proofs: Iterable[wire.Proof], network: NetworkFacts, limits_by: str
) -> tuple[LayerStatus, ...]:
    """Return the state of every layer. Raises HostCannotEnforce if one that is required does not hold."""
    found = {proof.name: proof for proof in proofs}
    layers = [
        LayerStatus(
            name="network", effective=network.isolated, evidence=str(network), remedy="Another link exists: report this"
        )
    ]
    for name, attempts in PROOFS.items():
        layers.append(_by_attempts(name, attempts, found, hello))
    layers.append(LayerStatus(name="file_labels", effective=True, evidence="path-changing calls stop at the guard"))
    layers.append(_limits(profile, limits_by))
    for layer in layers:
        if not layer.effective and layer.name in profile.requires:
            raise HostCannotEnforce(layer.name, f"not effective: {layer.evidence}", layer.remedy)
    return tuple(layers)


def _limits(profile: Profile, limits_by: str) -> LayerStatus:
    """Without control groups, memory and processes are watched; nothing holds a share of the processors."""
    if limits_by:
        return LayerStatus(name="limits", effective=True, evidence=f"by {limits_by}")
    evidence = "memory watched by the broker, processes counted by the guard"
    if profile.sandbox.cpus is None:
        return LayerStatus(name="limits", effective=True, evidence=evidence)
    return LayerStatus(
        name="limits", effective=False, evidence=f"{evidence}; sandbox.cpus is not held",
        remedy="Take cpus out of the profile's sandbox, or limits out of its requires, or use Docker, or run as root",
    )  # fmt: skip


def _by_attempts(
    name: str, attempts: tuple[str, ...], found: dict[str, wire.Proof], hello: wire.Hello
) -> LayerStatus:
    missing = [attempt for attempt in attempts if attempt not in found]
    allowed = [attempt for attempt in attempts if attempt in found and found[attempt].result is wire.ProofResult.ALLOWED]
    refused = [attempt for attempt in attempts if attempt in found and found[attempt].result is wire.ProofResult.REFUSED]
    if name == "landlock":
        if hello.landlock_abi == 0:
            return LayerStatus(
                name=name, effective=False, evidence="the kernel has no Landlock",
                remedy="Boot a kernel ≥ 5.13 with lsm=landlock, or take landlock out of the profile's requires",
            )  # fmt: skip
        prefix = f"ABI {hello.landlock_abi}; "
    else:
        prefix = ""
    if missing or allowed or not refused:
        why = f"succeeded: {', '.join(allowed)}" if allowed else f"not proven: {', '.join(missing or attempts)}"
        return LayerStatus(name=name, effective=False, evidence=prefix + why, remedy="Run: broker doctor")
    return LayerStatus(name=name, effective=True, evidence=f"{prefix}refused: {', '.join(refused)}")
