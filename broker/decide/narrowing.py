"""Step 3: what is left of a profile below another one, and whether a task may have a child at all.

In: the profile that somebody selected, what they narrow it to, the parent's envelope. Out: the child's profile, or a
Deny. What is decided by classes and entries is decided level by level (Envelope); this is for everything else that a
profile says: each setting of the child is the lesser of the two. The lesser of two is associative, commutative and
idempotent, so no order of steps, and no further step, makes more of it.

INVARIANT: nothing that a child has is more than its parent has (tests/property/test_delegation_narrows.py).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import LAYERS, ApprovalSettings, Environment, Profile, SandboxSettings, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Deny, Layer
from broker.values import dataclass

N = TypeVar("N", int, float)

_EFFECTS = frozenset({Risk.CODE_EXECUTION})  # what a new task is, as a class: code that this command does not show
_MODES = ("read-only", "overlay", "direct")  # from least to most


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request narrows its profile to. None and empty: nothing. Bytes, counts, seconds."""

    trust: Trust = Trust.UNTRUSTED
    max_risk: Risk | None = None
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    time: float | None = None
    output: int | None = None
    tools_disabled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a task's descendants have used so far: tasks in all, seconds, bytes. `children`: at once, now.

    `below` is how many levels below this task the new one would be.
    """

    below: int = 1
    children: int = 0
    tasks: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    memory: int = 0


def least(one: N | None, other: N | None) -> N | None:
    """Return the lesser of two limits, where None is no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def narrowed_settings(child: SandboxSettings, parent: SandboxSettings) -> SandboxSettings:
    """Return what is left of a child's sandbox below its parent's."""
    return SandboxSettings(
        engine=child.engine if parent.engine == "auto" else parent.engine,
        image=child.image or parent.image,
        workspace=min(child.workspace, parent.workspace, key=_MODES.index),
        read_only=_common(child.read_only, parent.read_only),
        show=tuple(name for name in child.show if name in parent.show),
        memory=least(child.memory, parent.memory),
        cpus=least(child.cpus, parent.cpus),
        pids=least(child.pids, parent.pids),
        time=least(child.time, parent.time),
        output=least(child.output, parent.output),
        tmp_size=min(child.tmp_size, parent.tmp_size),
        shm_size=min(child.shm_size, parent.shm_size),
        layer_size=min(child.layer_size, parent.layer_size),
    )


def _common(paths: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths that lie in both sets of trees: of two, of which one holds the other, the inner one."""
    inner = [one for one in paths if any(_is_below(one, other) for other in others)]
    inner += [other for other in others if any(_is_below(other, one) for one in paths)]
    once = dict.fromkeys(inner)
    return tuple(path for path in once if not any(path != other and _is_below(path, other) for other in once))


def narrowed_environment(child: Environment, parent: Environment) -> Environment:
    """Return what is left of a child's environment: a name that its parent does not have, it does not have.

    A value of the operator's own environment reaches it only if it reaches its parent.
    """
    names = {*parent.passed, *(name for name, _ in parent.set)}
    return Environment(
        passed=tuple(name for name in child.passed if name in parent.passed),
        set=tuple((name, value) for name, value in child.set if name in names),
    )


def narrowed_approvals(child: ApprovalSettings, parent: ApprovalSettings) -> ApprovalSettings:
    """Return what is left of a child's approvals: who may be asked, and for how long. (A sub-task asks nobody, whatever it says.)"""
    both = child.approver == parent.approver == "client"
    return ApprovalSettings(
        ask=child.ask and parent.ask, timeout=min(child.timeout, parent.timeout), approver="client" if both else "operator"
    )


def below(profile: Profile, parent: Profile) -> Profile:
    """Return what is left of a profile as the child of a task with `parent`; classes and entries are the envelope's."""
    required = {*profile.requires, *parent.requires}
    return replace(
        profile,
        sandbox=narrowed_settings(profile.sandbox, parent.sandbox),
        env=narrowed_environment(profile.env, parent.env),
        approvals=narrowed_approvals(profile.approvals, parent.approvals),
        gateways=tuple(gateway for gateway in parent.gateways if gateway in profile.gateways),  # the parent's: at its ports
        hosts=tuple(host for host in profile.hosts if host in parent.hosts),
        disabled_tools=profile.disabled_tools | parent.disabled_tools,
        requires=tuple(layer for layer in LAYERS if layer in required),
    )


def narrowed(profile: Profile, wish: Wish) -> Profile:
    """Return a profile narrowed to what a request wants of it. Its exact entries stay: the operator wrote them."""
    sandbox = profile.sandbox
    effects, ceiling = profile.effects, profile.max_risk
    if wish.max_risk is not None:
        effects, ceiling = effects & up_to(wish.max_risk), min(ceiling, wish.max_risk)
    return replace(
        profile,
        max_risk=ceiling,
        effects=effects,
        disabled_tools=profile.disabled_tools | wish.tools_disabled,
        sandbox=replace(
            sandbox,
            memory=least(sandbox.memory, wish.memory), cpus=least(sandbox.cpus, wish.cpus), pids=least(sandbox.pids, wish.pids),
            time=least(sandbox.time, wish.time), output=least(sandbox.output, wish.output),
        ),
    )  # fmt: skip


def child_of(envelope: Envelope, profile: Profile, wish: Wish) -> Envelope:
    """Return the envelope of a child: the selected profile, narrowed, below everything that its ancestors are."""
    return envelope.narrow(narrowed(below(profile, envelope.profile), wish), min(wish.trust, envelope.effective_trust))


def widening(profile: Profile, wish: Wish) -> str:
    """Return what a request asks for beyond the profile that it selects, in words; '' if nothing."""
    sandbox = profile.sandbox
    if wish.max_risk is not None and wish.max_risk > profile.max_risk:
        return f"max_risk {wish.max_risk.label} is above the profile's {profile.max_risk.label}"
    for name in ("memory", "cpus", "pids", "time", "output"):
        asked, has = getattr(wish, name), getattr(sandbox, name)
        if asked is not None and has is not None and asked > has:
            return f"limits.{name} is above the profile's ({asked:g} > {has:g})"
    return ""


def refuse_child(name: str, envelope: Envelope, tallies: Sequence[Tally], what: str) -> Deny | None:
    """Return why a task may not have a child under the profile `name` now, or None.

    `tallies` are those of the task itself and of each ancestor, own first, as `envelope.levels()`. `what` is the
    request in words.
    """
    if "delegate" in envelope.disabled_tools:
        return refused(what, "tool.delegate.disabled", "This task may not delegate: its profile disables the tool delegate.",
                       "Do the work yourself, or report what should be delegated.")  # fmt: skip
    for level, tally in zip(envelope.levels(), tallies, strict=True):
        allowed = level.profile.delegate
        whose = "profile " + level.profile.name + (" of an ancestor task" if level is not envelope else "")
        if allowed.profiles is not None and name not in allowed.profiles:
            may = ", ".join(allowed.profiles) or "none"
            return refused(what, "delegate.profiles", f"{_capital(whose)} lets its sub-tasks have only these profiles: {may}.",
                           "Delegate under one of these, or do the work yourself.")  # fmt: skip
        for rule, spent, limit, sentence in (
            ("delegate.depth", tally.below, allowed.depth + 1, f"permits {_levels(allowed.depth)} below its task"),
            ("delegate.breadth", tally.children if level is envelope else 0, allowed.breadth,
             f"permits {allowed.breadth} sub-tasks at once"),
            ("delegate.tasks", tally.tasks, allowed.tasks, f"permits {allowed.tasks} sub-tasks in all"),
            ("delegate.cpu_time", tally.cpu_seconds, allowed.cpu_time, "its sub-tasks have used up their processor time"),
            ("delegate.time", tally.seconds, allowed.time, "its sub-tasks have used up their time"),
            ("delegate.memory", tally.memory, allowed.memory, "its sub-tasks use all of their memory"),
        ):  # fmt: skip
            if limit is not None and spent >= limit:
                hint = ("Wait until a sub-task has ended." if rule in ("delegate.breadth", "delegate.memory")
                        else "Do the work yourself, or report what is left to do.")  # fmt: skip
                return refused(what, rule, f"{_capital(whose)}: {sentence}.", hint)
    return None


def refused(what: str, rule: str, reason: str, hint: str) -> Deny:
    """Return the refusal of a delegation."""
    return Deny(what=what, effects=_EFFECTS, layer=Layer.PROFILE, rule=rule, reason=reason, hint=hint)


def is_budget(denial: Deny) -> bool:
    """Whether a refusal is one that comes from a budget that is used up."""
    return denial.rule in ("delegate.tasks", "delegate.cpu_time", "delegate.time", "delegate.memory", "delegate.breadth")


def led_by_agent(argv0: str, envelope: Envelope) -> str:
    """Return the program (an absolute path) that may lead a sub-task whatever its arguments, or ''.

    Each level must list it (`delegate.agents`): the operator wrote which programs are agents. A name without a slash
    means the listed program of that name.
    """
    listed = [level.profile.delegate.agents for level in envelope.levels()]
    for path in listed[0]:
        if argv0 in (path, posixpath.basename(path)) and all(path in agents for agents in listed):
            return path
    return ""


def _levels(count: int) -> str:
    return "no level of sub-tasks" if count == 0 else "one level of sub-tasks" if count == 1 else f"{count} levels of sub-tasks"


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
