"""What is left of a profile in a child task: below its parents, with its trust.

In: an Envelope, own level first, and the profile as it was written. Out: what every level permits, and for what is lost, to
whom. There is no rule of its own here: what is left of settings is `below`'s, and each answer is `decide`'s, asked of the whole
envelope and of each level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from broker.classify.risk import Risk
from broker.decide.envelope import GRANTED, Envelope
from broker.decide.narrowing import below
from broker.decide.profile import AllowEntry, Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny
from broker.decide.wording import classes, command_line
from broker.profiles.explain import MEANINGS, Section
from broker.profiles.judge import context_in, judge, start_of
from broker.profiles.quantity import show_size, show_time
from broker.values import dataclass


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
    environment: tuple[str, ...]
    read_only: tuple[str, ...]
    shown: tuple[str, ...]
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
            "environment": list(self.environment),
            "read_only": list(self.read_only),
            "show": list(self.shown),
            "limits": {limit.name: limit.value for limit in self.limits},
            "lost": [{"what": each.what, "to": each.to, "reason": each.reason} for each in self.lost],
        }


def chain(profile: Profile, parents: Sequence[Profile], trust: Trust = Trust.TRUSTED) -> Envelope:
    """Return the envelope of a task with this profile below these parents, nearest first."""
    envelope: Envelope | None = None
    for each in (*reversed(parents), profile):
        level = Trust.TRUSTED if each is not profile else trust
        left = each if envelope is None else below(each, envelope.profile)
        envelope = Envelope(profile=left, trust=level, parent=envelope)
    assert envelope is not None
    return envelope


def effective(envelope: Envelope, written: Profile) -> Effective:
    """Return what is left of the profile that was `written`, as the envelope's own."""
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
    box = own.sandbox
    lost = [
        *(_lost_class(risk, envelope, levels) for risk in sorted(own.effects - envelope.effects)),
        *lost_entries,
        *(_lost_landing(rule, envelope, levels) for rule in sorted(written.lands - lands)),
        *_lost_settings(written, levels),
    ]
    return Effective(
        profile=own.name, parents=tuple(level.profile.name for level in levels[1:]), trust=envelope.effective_trust,
        effects=envelope.effects | {Risk.SAFE}, entries=entries, lands=lands, disabled_tools=envelope.disabled_tools,
        denied=tuple(dict.fromkeys(prefix for level in levels for prefix in level.profile.denylist)),
        workspace=box.workspace, environment=_names(own), read_only=box.read_only, shown=box.show,
        limits=_limits(levels), lost=tuple(lost),
    )  # fmt: skip


def _names(profile: Profile) -> tuple[str, ...]:
    return (*profile.env.passed, *(name for name, _ in profile.env.set))


def _lost_settings(written: Profile, levels: Sequence[Envelope]) -> Iterator[Lost]:
    """Yield what is not left of the container and the environment."""
    own = levels[0].profile
    mode = own.sandbox.workspace
    if mode != written.sandbox.workspace:
        to = [level for level in levels if level.profile.sandbox.workspace == mode][-1]
        yield Lost(what=f"a workspace that is {written.sandbox.workspace}", to=_who(to, levels), reason=f"it is {mode}")
    for name in _names(written):
        if name not in _names(own):
            yield Lost(what=f"the variable {name}", to=_taken_by(name, levels, _names))
    for path in written.sandbox.read_only:
        if path not in own.sandbox.read_only:
            yield Lost(what=f"reading {path}", to=_taken_by(path, levels, lambda profile: profile.sandbox.read_only))
    for name in written.sandbox.show:
        if name not in own.sandbox.show:
            yield Lost(what=f"seeing {name}", to=_taken_by(name, levels, lambda profile: profile.sandbox.show))


def _taken_by(word: str, levels: Sequence[Envelope], has: Callable[[Profile], tuple[str, ...]]) -> str:
    """Return who took it: the highest level that does not have it. Those below it lost it with it."""
    return _who([level for level in levels if word not in has(level.profile)][-1], levels)


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
    level = [level for level in levels if rule not in level.lands][-1]
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
        value = getattr(levels[0].profile.sandbox, name)
        if value is not None:
            # What is left below a parent is the lesser of the two: who has it too, has had it first.
            whose = [level.profile.name for level in levels if getattr(level.profile.sandbox, name) == value][-1]
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
        ("environment", tuple((name, "") for name in left.environment)),
        (
            "sandbox",
            (
                ("workspace", left.workspace),
                *((path, "also shown, read-only") for path in left.read_only),
                *((name, "not masked") for name in left.shown),
                *((limit.name, f"{limit.shown} (profile {limit.whose})") for limit in left.limits),
            ),
        ),
        (
            "lost",
            tuple((each.what, f"to {each.to}" + (f": {each.reason}" if each.reason else "")) for each in left.lost),
        ),
    ]
    return tuple((title, lines) for title, lines in found if lines)
