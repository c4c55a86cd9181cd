"""Say in words what one profile permits that another does not. In: two profiles. Out: changes, each with a direction.

INVARIANT: when no change is `wider`, the second profile permits nothing that the first does not
(tests/profiles/test_compare.py). What cannot be told is taken for wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from broker.classify.risk import Risk
from broker.decide.envelope import GRANTED
from broker.decide.profile import LAYERS, AllowEntry, Profile
from broker.decide.verdict import Allow
from broker.decide.wording import classes, command_line
from broker.profiles.explain import MEANINGS
from broker.profiles.judge import Judged, judge, start_of
from broker.profiles.quantity import show_size, show_time
from broker.profiles.ways_out_told import is_narrower, origin
from broker.values import dataclass


class Direction(IntEnum):
    """Which way a change goes. The order is that of concern."""

    DIFFERENT = 0
    NARROWER = 1
    WIDER = 2

    @property
    def label(self) -> str:
        """The word people read."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference, as a sentence about the second profile."""

    direction: Direction
    key: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"direction": self.direction.label, "key": self.key, "text": self.text}


def compare(before: Profile, after: Profile) -> tuple[Change, ...]:
    """Return what changes from the first profile to the second, wider first."""
    found = [
        *_classes(before, after), *_entries(before, after), *_denials(before, after), *_sets(before, after),
        *_environment(before, after), *_sandbox(before, after), *_delegation(before, after),
        *_ways_out(before, after), *_approvals(before, after),
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda change: -change.direction))


def _wider(key: str, text: str) -> Change:
    return Change(direction=Direction.WIDER, key=key, text=text)


def _narrower(key: str, text: str) -> Change:
    return Change(direction=Direction.NARROWER, key=key, text=text)


def _different(key: str, text: str) -> Change:
    return Change(direction=Direction.DIFFERENT, key=key, text=text)


def _classes(before: Profile, after: Profile) -> Iterator[Change]:
    for risk in sorted(after.effects - before.effects):
        yield _wider("effects", f"may now do what is {risk.label} ({MEANINGS[risk]}) without asking")
    for risk in sorted(before.effects - after.effects):
        yield _narrower("effects", f"may no longer do what is {risk.label} ({MEANINGS[risk]}), unless it is listed")


def _entries(before: Profile, after: Profile) -> Iterator[Change]:
    old, new = set(before.allowlist), set(after.allowlist)
    for entry in after.allowlist:
        answer, had = _start(entry, after), _start(entry, before)
        if entry in old and _opened(answer) <= _opened(had):
            continue  # of two entries for one command the first counts: the order can matter
        if _grant(had, before) >= _grant(answer, after) and had.allowed:
            yield _different("allowlist", f"lists {_shown(entry)}, which was permitted before")
        elif had.allowed:
            more = classes(_grant(answer, after) - _grant(had, before))
            yield _wider("allowlist", f"what {_shown(entry)} starts may now be {more}")
        else:
            what = classes(answer.assessment.effects - {Risk.SAFE}) if answer.assessment.risk else "safe"
            yield _wider("allowlist", f"may now run {_shown(entry)} ({what}) without asking")
    for entry in before.allowlist:
        if entry in new:
            continue
        answer, has = _start(entry, before), _start(entry, after)
        if not has.allowed:
            yield _narrower("allowlist", f"may no longer run {_shown(entry)}")
        elif _grant(has, after) >= _grant(answer, before):
            yield _different("allowlist", f"no longer lists {_shown(entry)}, which is permitted all the same")
        else:
            less = classes(_grant(answer, before) - _grant(has, after))
            yield _narrower("allowlist", f"what {_shown(entry)} starts may no longer be {less}")


def _start(entry: AllowEntry, profile: Profile) -> Judged:
    return judge(start_of(entry), profile, digest=entry.sha256)


def _grant(judged: Judged, profile: Profile) -> frozenset[Risk]:
    """What the processes below may have: the grant's classes and the profile's."""
    return _opened(judged) | profile.effects


def _opened(judged: Judged) -> frozenset[Risk]:
    verdict = judged.verdict
    return verdict.grant.effects if isinstance(verdict, Allow) and verdict.grant else frozenset()


def _shown(entry: AllowEntry) -> str:
    where = f" in {entry.cwd}" if entry.cwd is not None else ""
    pinned = f" with SHA-256 {entry.sha256[:12]}…" if entry.sha256 is not None else ""
    extra = f" (what it starts: also {classes(entry.effects - GRANTED)})" if entry.effects - GRANTED else ""
    return f"`{command_line(entry.argv)}`{where}{pinned}{extra}"


def _denials(before: Profile, after: Profile) -> Iterator[Change]:
    for prefix in dict.fromkeys(before.denylist):
        if not any(prefix[: len(other)] == other for other in after.denylist):
            yield _wider("denylist", f"no longer denies every command that starts with `{command_line(prefix)}`")
    for prefix in dict.fromkeys(after.denylist):
        if prefix not in before.denylist:
            yield _narrower("denylist", f"denies every command that starts with `{command_line(prefix)}`")


def _sets(before: Profile, after: Profile) -> Iterator[Change]:
    for tool in sorted(before.disabled_tools - after.disabled_tools):
        yield _wider("tools.disabled", f"has the tool {tool} again")
    for tool in sorted(after.disabled_tools - before.disabled_tools):
        yield _narrower("tools.disabled", f"has the tool {tool} no longer")
    for rule in sorted(after.lands - before.lands):
        yield _wider("land.allow", f"may now land what is {rule}")
    for rule in sorted(before.lands - after.lands):
        yield _narrower("land.allow", f"may no longer land what is {rule}")
    for layer in (layer for layer in LAYERS if (layer in before.requires) is not (layer in after.requires)):
        if layer in before.requires:
            yield _wider("requires", f"starts even where the layer {layer} has no effect")
        else:
            yield _narrower("requires", f"starts only where the layer {layer} is effective")


def _environment(before: Profile, after: Profile) -> Iterator[Change]:
    for name in after.env.passed:
        if name not in before.env.passed:
            yield _wider("env.pass", f"reads {name} of your environment")
    for name in before.env.passed:
        if name not in after.env.passed:
            yield _narrower("env.pass", f"no longer reads {name} of your environment")
    old, new = dict(before.env.set), dict(after.env.set)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        text = f"has {name} set to {new[name]!r}" if name in new else f"has {name} no longer set"
        # What programs run can hang on it, and an entry matches a start in the profile's own environment.
        from broker.classify.environment import changes_what_runs
        from broker.profiles.judge import context_in

        pairs = ((name, new.get(name, "")),)
        risky = changes_what_runs(pairs, context_in()) is not None and name in new
        yield (_wider if risky else _different)("env.set", text)


_OPEN = {"read-only": 0, "overlay": 1, "direct": 2}
_HOW_MUCH = {
    "memory": ("memory", show_size), "time": ("time", show_time), "output": ("output", show_size),
    "tmp_size": ("temporary space", show_size), "shm_size": ("shared memory", show_size),
    "layer_size": ("space for changes", show_size), "cpus": ("processors", "{:g}".format), "pids": ("processes", str),
}  # fmt: skip


def _sandbox(before: Profile, after: Profile) -> Iterator[Change]:
    old, new = before.sandbox, after.sandbox
    if old.workspace != new.workspace:
        wider = _OPEN[new.workspace] > _OPEN[old.workspace]
        yield (_wider if wider else _narrower)("sandbox.workspace", f"has a workspace that is {new.workspace}, not {old.workspace}")
    for path in new.read_only:
        if path not in old.read_only:
            yield _wider("sandbox.read_only", f"reads {path} of the host")
    for path in old.read_only:
        if path not in new.read_only:
            yield _narrower("sandbox.read_only", f"no longer reads {path} of the host")
    for name in new.show:
        if name not in old.show:
            yield _wider("sandbox.show", f"reads {name}, which looks like a secret")
    for name in old.show:
        if name not in new.show:
            yield _narrower("sandbox.show", f"no longer reads {name}, which looks like a secret")
    for key, (what, show) in _HOW_MUCH.items():
        yield from _amount(f"sandbox.{key}", what, getattr(old, key), getattr(new, key), show)
    for key in ("engine", "image"):
        first, second = getattr(old, key), getattr(new, key)
        if first != second:
            yield _different(f"sandbox.{key}", f"uses the {key} {second or 'of the engine'}, not {first or 'that of the engine'}")


def _amount(key: str, what: str, old: Any, new: Any, show: Any) -> Iterator[Change]:
    if old == new:
        return
    if new is None:
        yield _wider(key, f"has no limit of {what}")
    elif old is None:
        yield _narrower(key, f"has {what} limited to {show(new)}")
    else:
        yield (_wider if new > old else _narrower)(key, f"may use {show(new)} of {what}, not {show(old)}")


def _ways_out(before: Profile, after: Profile) -> Iterator[Change]:
    old, new = ({gateway.name: gateway for gateway in profile.gateways} for profile in (before, after))
    for name, gateway in new.items():
        had = old.get(name)
        if had is not None and had != gateway and is_narrower(gateway, had):
            yield _narrower(f"gateways.{name}", f"may do less through gateway {name}")
        elif had != gateway:
            what = "may reach" if had is None else "may reach, otherwise than before,"
            yield _wider(f"gateways.{name}", f"{what} {origin(gateway)} through gateway {name}")
    for name in old:
        if name not in new:
            yield _narrower(f"gateways.{name}", f"has no gateway {name} any more")
    for host in after.hosts:
        if host not in before.hosts:
            yield _wider("network.hosts", f"may reach {host}")
    for host in before.hosts:
        if host not in after.hosts:
            yield _narrower("network.hosts", f"may no longer reach {host}")


def _approvals(before: Profile, after: Profile) -> Iterator[Change]:
    old, new = before.approvals, after.approvals
    if old.ask is not new.ask:
        yield _wider("approvals.ask", "asks you on a terminal about what it does not permit, in place of refusing it") if new.ask else _narrower(
            "approvals.ask", "refuses what it does not permit, and asks nobody unless it is told to"
        )
    if old.approver != new.approver:
        yield _wider("approvals.approver", "lets the client of its tools approve in your place") if new.approver == "client" else _narrower(
            "approvals.approver", "lets nobody but you approve"
        )
    if old.timeout != new.timeout:
        how = _wider if new.timeout > old.timeout else _narrower
        yield how("approvals.timeout", f"waits {show_time(new.timeout)} for an answer, not {show_time(old.timeout)}")


def _delegation(before: Profile, after: Profile) -> Iterator[Change]:
    old, new = before.delegate, after.delegate
    if old.profiles != new.profiles:
        if old.profiles is None:
            yield _narrower("delegate.profiles", f"may hand work only to {', '.join(new.profiles or ()) or 'nobody'}")
        elif new.profiles is None:
            yield _wider("delegate.profiles", "may hand work to any profile")
        else:
            for name in new.profiles:
                if name not in old.profiles:
                    yield _wider("delegate.profiles", f"may hand work to the profile {name}")
            for name in old.profiles:
                if name not in new.profiles:
                    yield _narrower("delegate.profiles", f"may no longer hand work to the profile {name}")
    for path in new.agents:
        if path not in old.agents:
            yield _wider("delegate.agents", f"may start tasks that {path} leads")
    for path in old.agents:
        if path not in new.agents:
            yield _narrower("delegate.agents", f"may no longer start tasks that {path} leads")
    for key, what, show in (
        ("depth", "levels of child tasks", str), ("breadth", "children at once", str), ("tasks", "child tasks", str),
        ("cpu_time", "processor time of child tasks", show_time), ("time", "time of child tasks", show_time),
        ("memory", "memory of child tasks", show_size),
    ):  # fmt: skip
        yield from _amount(f"delegate.{key}", what, getattr(old, key), getattr(new, key), show)
