"""Rate how open a profile is, as `systemd-analyze security` rates a service. In: a profile. Out: exposures and a mark.

Each exposure has a weight between 0 and 1: how much of what a sandbox is for it gives away. The mark is 10 x (1 - the
product of what each leaves closed), so one wide-open door outweighs any number of closed ones, and many small ones
add up. It is a guide for reading, not a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from broker.classify.risk import Risk
from broker.decide.envelope import GRANTED
from broker.decide.profile import LAYERS, Profile
from broker.decide.wording import listed, shorten
from broker.profiles.check import names_a_secret
from broker.profiles.doors import open_door
from broker.profiles.judge import judge, start_of
from broker.profiles.ways_out_told import ways_out_exposures
from broker.values import dataclass

_CLASSES = {
    Risk.LOCAL_WRITE: (0.08, "files of the workspace can be changed; what lands is judged again"),
    Risk.CODE_EXECUTION: (0.20, "any code may run, not only what is listed; the sandbox confines it"),
    Risk.INSTALL: (0.15, "packages may be brought in, and their scripts run"),
    Risk.NETWORK_EGRESS: (0.10, "programs that reach out may start; there is no network to reach"),
    Risk.SYSTEM_WRITE: (0.35, "what belongs to the system or holds secrets may be touched, as far as it is shown"),
    Risk.PERSISTENCE: (0.60, "what runs later may be planted: hooks, CI, editor and agent configuration"),
    Risk.DESTRUCTIVE: (0.40, "work may be destroyed beyond the task's own files"),
    Risk.UNKNOWN: (0.90, "what nobody understands may run, so every other rule can be walked around"),
}
_LAYER_WEIGHTS = {"network": 0.5, "seccomp": 0.4, "landlock": 0.3, "exec_gate": 0.6, "file_labels": 0.15, "limits": 0.03}
_WORDS = ((2.0, "tight"), (4.0, "moderate"), (7.0, "exposed"), (10.0, "open"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One open door. `weight` is between 0 and 1."""

    id: str
    weight: float
    text: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"id": self.id, "weight": self.weight, "text": self.text, "remedy": self.remedy}


def exposures(profile: Profile) -> tuple[Exposure, ...]:
    """Return what is open, the widest first."""
    ways = (Exposure(id=name, weight=weight, text=text, remedy=remedy) for name, weight, text, remedy in ways_out_exposures(profile))
    found = (*_reach(profile), *_entries(profile), *_shown(profile), *ways, *_holding(profile))
    return tuple(sorted(found, key=lambda exposure: -exposure.weight))


def score(found: tuple[Exposure, ...]) -> float:
    """Return the mark: 0.0, nothing is open, to 10.0."""
    return round(10 * (1 - prod(1 - exposure.weight for exposure in found)), 1)


def word_for(mark: float) -> str:
    """Return the mark in a word: tight, moderate, exposed, open."""
    return next(word for top, word in _WORDS if mark <= top)


def _reach(profile: Profile) -> Iterator[Exposure]:
    writes = profile.sandbox.workspace != "read-only"
    for risk in sorted(profile.effects - {Risk.SAFE, Risk.BLOCKED}):
        weight, text = _CLASSES[risk]
        if risk is Risk.LOCAL_WRITE and not writes:
            continue
        yield Exposure(id=f"class.{risk.label}", weight=weight, text=text, remedy="Lower max_risk, or use effects.remove")
    if profile.lands and Risk.PERSISTENCE not in profile.effects and profile.sandbox.workspace == "overlay":
        yield Exposure(
            id="land.allow", weight=min(0.15 + 0.05 * len(profile.lands), 0.5),
            text=f"protected places may be changed for real: {listed(sorted(profile.lands))}",
            remedy="Land them by hand: broker diff, broker land",
        )  # fmt: skip


def _entries(profile: Profile) -> Iterator[Exposure]:
    running = []
    for entry in profile.allowlist:
        shown = f"`{shorten(entry.text, 60)}`"
        door = open_door(entry.argv)
        if door is not None:
            yield Exposure(id="entry.open-door", weight=0.30, text=f"{shown} {door}", remedy="List the exact command that is needed")
        else:
            running.append(shown)
        if extra := entry.effects - GRANTED:
            weight = max(_CLASSES[risk][0] for risk in extra)
            yield Exposure(
                id="entry.effects", weight=weight, text=f"what {shown} starts may also be {listed(risk.label for risk in sorted(extra))}",
                remedy="Take the effects from the entry",
            )  # fmt: skip
        effects = judge(start_of(entry), profile).assessment.effects
        if worse := effects - GRANTED - profile.effects - {Risk.UNKNOWN, Risk.BLOCKED}:
            yield Exposure(
                id="entry.class", weight=max(_CLASSES[risk][0] for risk in worse) / 2,
                text=f"{shown} is {listed(risk.label for risk in sorted(worse))}", remedy="Do without it",
            )  # fmt: skip
    if running and Risk.CODE_EXECUTION not in profile.effects:
        yield Exposure(
            id="entries", weight=min(0.05 + 0.005 * len(running), 0.15),
            text=f"{len(running)} listed commands may run code of the workspace, {running[0]} for instance",
        )  # fmt: skip
    if "shell" not in profile.disabled_tools:
        yield Exposure(id="tools.shell", weight=0.02, text="shells may start; each command in them is judged", remedy='Add "shell" to tools.disabled')


def _shown(profile: Profile) -> Iterator[Exposure]:
    secrets = [name for name in (*profile.env.passed, *(name for name, value in profile.env.set if value)) if names_a_secret(name)]
    if secrets:
        yield Exposure(id="env.secret", weight=0.30, text=f"the task can read {listed(secrets)}", remedy="Leave it out of env")
    plain = [name for name in profile.env.passed if name not in secrets]
    if plain:
        yield Exposure(id="env.pass", weight=0.02, text=f"the task can read {listed(plain)} of your environment", remedy="Use env.set")
    box = profile.sandbox
    if box.show:
        yield Exposure(id="sandbox.show", weight=0.25, text=f"files that look like secrets are shown: {listed(box.show)}", remedy="Mask them")
    if box.read_only:
        yield Exposure(id="sandbox.read_only", weight=min(0.03 * len(box.read_only), 0.2), text=f"the host's {listed(box.read_only)} is shown")
    if box.workspace == "direct":
        yield Exposure(
            id="sandbox.workspace", weight=0.35, text="the real files are changed at once, and nothing is reviewed",
            remedy='Set sandbox.workspace = "overlay"',
        )  # fmt: skip


def _holding(profile: Profile) -> Iterator[Exposure]:
    for layer in LAYERS:
        if layer not in profile.requires:
            unlimited = layer == "limits" and profile.sandbox.memory is None
            weight = 0.06 if unlimited else _LAYER_WEIGHTS[layer]
            yield Exposure(id=f"requires.{layer}", weight=weight, text=f"a task starts where {layer} has no effect", remedy="Require it")
    if profile.sandbox.memory is None:
        yield Exposure(id="sandbox.memory", weight=0.03, text="memory is not limited", remedy="Set sandbox.memory")
    if profile.sandbox.time is None:
        yield Exposure(id="sandbox.time", weight=0.02, text="time is not limited", remedy="Set sandbox.time")
    if profile.approvals.approver == "client":
        yield Exposure(
            id="approvals.approver", weight=0.30, text="what is refused can be approved by the client of its tools, in your place",
            remedy='Set approvals.approver = "operator"',
        )  # fmt: skip
    if "delegate" not in profile.disabled_tools and profile.delegate.depth and profile.delegate.profiles is None:
        yield Exposure(
            id="delegate.profiles", weight=0.01, text="work may be handed to any profile, each held to this one",
            remedy="List them in delegate.profiles",
        )  # fmt: skip
