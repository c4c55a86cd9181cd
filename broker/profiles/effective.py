"""What is left of a profile in a child task: below its parents, with its trust.

In: an Envelope, own level first. Out: what every level permits, and for what is lost, to whom. There is no rule of its own
here: each answer is `decide`'s, asked of the whole envelope and of each level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.classify.risk import Risk
from broker.decide.envelope import GRANTED, Envelope
from broker.decide.profile import AllowEntry, Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny
from broker.decide.wording import classes, command_line
from broker.profiles.explain import MEANINGS, Section
from broker.profiles.judge import context_in, judge, start_of
from broker.profiles.quantity import show_size, show_time

_OPENNESS = {"read-only": 0, "overlay": 1, "direct": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Something that the profile says and the envelope does not permit. `to` names who does not."""

    what: str
    to: str
    reason: str = ""


class Limit(NamedTuple):
    """The tightest limit of one kind: the value, as people write it, and whose profile says so."""

    name: str
    value: float
    shown: str
    whose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What counts. `entries` holds, with each entry that still counts, the classes that what it starts may have."""

    profile: str
    parents: tuple[str, ...]
    trust: Trust
    effects: frozenset[Risk]
    entries: tuple[tuple[AllowEntry, frozenset[Risk]], ...]
    lands: frozenset[str]
    disabled_tools: frozenset[str]
    denied: tuple[tuple[str, ...], ...]
    workspace: str
    limits: tuple[Limit, ...]
    lost: tuple[Lost, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "profile": self.profile,
            "parents": list(self.parents),
            "trust": self.trust.label,
            "effects": [risk.label for risk in sorted(self.effects)],
            "allowlist": [
                {"argv": list(entry.argv), "cwd": entry.cwd, "sha256": entry.sha256, "grant": [risk.label for risk in sorted(grant)]}
                for entry, grant in self.entries
            ],
            "denylist": [list(prefix) for prefix in self.denied],
            "lands": sorted(self.lands),
            "disabled_tools": sorted(self.disabled_tools),
            "workspace": self.workspace,
            "limits": {limit.name: limit.value for limit in self.limits},
            "lost": [{"what": each.what, "to": each.to, "reason": each.reason} for each in self.lost],
        }


def chain(profile: Profile, parents: Sequence[Profile], trust: Trust = Trust.TRUSTED) -> Envelope:
    """Return the envelope of a task with this profile below these parents, nearest first."""
    if not parents:
        return Envelope(profile=profile, trust=trust)
    above = Envelope(profile=parents[-1], trust=Trust.TRUSTED)
    for parent in reversed(parents[:-1]):
        above = above.narrow(parent, Trust.TRUSTED)
    return above.narrow(profile, trust)


def effective(envelope: Envelope) -> Effective:
    """Return what is left of the envelope's own profile."""
    own = envelope.profile
    levels = tuple(envelope.levels())
    entries, lost_entries = _entries(envelope, levels)
    lands = frozenset.intersection(
        envelope.lands,
        *(
            level.lands if Risk.PERSISTENCE not in level.own_effects else envelope.lands
            for level in levels[1:]
        ),
    )
    workspace = min((level.profile.sandbox.workspace for level in levels), key=_OPENNESS.__getitem__)
    lost = [
        *(_lost_class(risk, envelope, levels) for risk in sorted(own.effects - envelope.effects)),
        *lost_entries,
        *(_lost_landing(rule, envelope, levels) for rule in sorted(own.lands - lands)),
    ]
    if workspace != own.sandbox.workspace:
        lost.append(
            Lost(what=f"a workspace that is {own.sandbox.workspace}", to=_who(
                next(level for level in levels if level.profile.sandbox.workspace == workspace), levels), reason=f"it is {workspace}")
        )  # fmt: skip
    return Effective(
        profile=own.name, parents=tuple(level.profile.name for level in levels[1:]), trust=envelope.effective_trust,
        effects=envelope.effects | {Risk.SAFE}, entries=entries, lands=lands, disabled_tools=envelope.disabled_tools,
        denied=tuple(dict.fromkeys(prefix for level in levels for prefix in level.profile.denylist)),
        workspace=workspace, limits=_limits(levels), lost=tuple(lost),
    )  # fmt: skip


def _who(level: Envelope, levels: Sequence[Envelope]) -> str:
    depth = levels.index(level)
    if depth == 0:
        return f"profile {level.profile.name} itself"
    return f"profile {level.profile.name} of the {'parent task' if depth == 1 else 'task above'}"


def _lost_class(risk: Risk, envelope: Envelope, levels: Sequence[Envelope]) -> Lost:
    if envelope.effective_trust is Trust.UNTRUSTED and risk not in envelope.own_effects:
        return Lost(what=risk.label, to="trust", reason="an untrusted task is held to local_write")
    level = next(level for level in levels if risk not in level.own_effects)
    return Lost(what=risk.label, to=_who(level, levels))


def _lost_landing(rule: str, envelope: Envelope, levels: Sequence[Envelope]) -> Lost:
    if envelope.effective_trust is Trust.UNTRUSTED:
        return Lost(what=f"landing {rule}", to="trust", reason="nothing protected lands of an untrusted task")
    level = next(level for level in levels if rule not in level.lands)
    return Lost(what=f"landing {rule}", to=_who(level, levels))


def _entries(
    envelope: Envelope, levels: Sequence[Envelope]
) -> tuple[tuple[tuple[AllowEntry, frozenset[Risk]], ...], list[Lost]]:
    kept: list[tuple[AllowEntry, frozenset[Risk]]] = []
    lost: list[Lost] = []
    for entry in envelope.profile.allowlist:
        start = start_of(entry, context_in())
        verdict = judge(start, envelope, digest=entry.sha256).verdict
        wished = GRANTED | entry.effects
        if isinstance(verdict, Allow):
            grant = verdict.grant.effects if verdict.grant is not None else frozenset({Risk.SAFE})
            kept.append((entry, grant))
            if wished - grant:
                said = f"what `{entry.text}` starts may not be {classes(wished - grant)}"
                lost.append(Lost(what=said, to="trust" if envelope.effective_trust is Trust.UNTRUSTED else "the levels above"))
            continue
        for level in levels:
            alone = Envelope(profile=level.profile, trust=level.effective_trust)
            answer = judge(start, alone, digest=entry.sha256).verdict
            if isinstance(answer, Deny):
                lost.append(Lost(what=f"`{entry.text}`", to=_who(level, levels), reason=answer.reason))
                break
    return tuple(kept), lost


_SHOWN: dict[str, Callable[[Any], str]] = {
    "memory": show_size, "cpus": "{:g}".format, "pids": str, "time": show_time, "output": show_size,
}  # fmt: skip


def _limits(levels: Sequence[Envelope]) -> tuple[Limit, ...]:
    """The tightest of each limit, and whose it is."""
    found = []
    for name, show in _SHOWN.items():
        given = [
            (value, level.profile.name)
            for level in levels
            if (value := getattr(level.profile.sandbox, name)) is not None
        ]
        if given:
            value, whose = min(given, key=lambda each: each[0])
            found.append(Limit(name, value, show(value), whose))
    return tuple(found)


def effective_sections(left: Effective) -> tuple[Section, ...]:
    """Return it as labelled lines, for people."""
    found: list[Section] = [
        ("permits", tuple((risk.label, MEANINGS[risk]) for risk in sorted(left.effects))),
        (
            "runs exactly",
            tuple((command_line(entry.argv), f"what it starts: {classes(grant)}") for entry, grant in left.entries),
        ),
        ("denies, wherever it stands", tuple((f"{command_line(prefix)} …", "") for prefix in left.denied)),
        ("may land although it runs later", tuple((rule, "") for rule in sorted(left.lands))),
        ("tools taken away", tuple((tool, "") for tool in sorted(left.disabled_tools))),
        (
            "sandbox",
            (
                ("workspace", left.workspace),
                *((limit.name, f"{limit.shown} (profile {limit.whose})") for limit in left.limits),
            ),
        ),
        (
            "lost",
            tuple((each.what, f"to {each.to}" + (f": {each.reason}" if each.reason else "")) for each in left.lost),
        ),
    ]
    return tuple((title, lines) for title, lines in found if lines)
