"""Delegation over random trees: what a child may do each ancestor may do, whatever was asked for, in whatever order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide import AllowEntry, Envelope, Profile, Trust
from broker.decide.decide import decide
from broker.decide.narrowing import (
    Tally,
    Wish,
    below,
    child_of,
    led_by_agent,
    narrowed,
    narrowed_environment,
    narrowed_settings,
    refuse_child,
    widening,
)
from broker.decide.profile import TOOLS, ApprovalSettings, DelegationSettings, Environment, SandboxSettings
from broker.decide.verdict import Allow
from broker.request.operation import Exec, FileAction, FileChange, Operation, ShellText

CONTEXT = Context(cwd="/w", home="/home/agent", workspace="/w", scratch=("/tmp",), writable=("/w", "/tmp", "/home/agent"))
COMMANDS = (
    "ls", "touch x", "make", "npm install", "curl http://x", "git push", "rm -rf build", "python3 -c 1", "no-such-program x",
    "echo x > ~/.bashrc", "cat .env", "go test ./...", "sh -c 'ls'", "ls | tee ~/.profile",
)  # fmt: skip
NAMES = ("HOME_TOKEN", "PATHS", "A", "B")

sizes = st.sampled_from([None, 1, 5, 100])
sure = st.sampled_from([1, 5, 100])
settings_of = st.builds(
    SandboxSettings, engine=st.sampled_from(["auto", "docker", "bubblewrap"]), image=st.sampled_from(["", "go"]),
    workspace=st.sampled_from(["overlay", "direct", "read-only"]),
    read_only=st.lists(st.sampled_from(["/opt/a", "/opt/a/b", "/opt/c", "/data"]), max_size=3, unique=True).map(tuple),
    show=st.lists(st.sampled_from([".env", "key.pem"]), max_size=2, unique=True).map(tuple),
    memory=sizes, cpus=sizes, pids=sizes, time=sizes, output=sizes, tmp_size=sure, shm_size=sure, layer_size=sure,
)  # fmt: skip
environments = st.builds(
    lambda passed, given: Environment(passed=tuple(passed), set=tuple((name, "x") for name in given if name not in passed)),
    st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
    st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
)
entries = st.builds(
    AllowEntry,
    argv=st.sampled_from([("make",), ("go", "test", "./..."), ("npm", "install"), ("curl", "http://x")]),
    effects=st.sets(st.sampled_from(Risk), max_size=2).map(frozenset),
)
delegations = st.builds(
    DelegationSettings,
    profiles=st.sampled_from([None, None, ("a",), ()]),
    agents=st.lists(st.sampled_from(["/usr/bin/agent", "/opt/a/agent"]), max_size=2, unique=True).map(tuple),
    depth=st.integers(0, 3), breadth=st.integers(0, 3), tasks=st.integers(0, 5), cpu_time=sizes, time=sizes, memory=sizes,
)  # fmt: skip
approvals = st.builds(
    ApprovalSettings, ask=st.booleans(), timeout=st.floats(1, 100), approver=st.sampled_from(["operator", "client"])
)
profiles = st.builds(
    Profile, name=st.sampled_from(["a", "b", "c"]), max_risk=st.sampled_from(Risk),
    effects=st.sets(st.sampled_from(Risk), max_size=5).map(frozenset), allowlist=st.lists(entries, max_size=2).map(tuple),
    denylist=st.lists(st.sampled_from([("make",), ("ls",), ("curl",)]), max_size=1).map(tuple),
    disabled_tools=st.sets(st.sampled_from(TOOLS), max_size=2).map(frozenset), env=environments, sandbox=settings_of,
    delegate=delegations, approvals=approvals, requires=st.sampled_from([("network",), ("network", "landlock"), ()]),
)  # fmt: skip
wishes = st.builds(
    Wish, trust=st.sampled_from(Trust), max_risk=st.sampled_from([None, *Risk]), memory=sizes, cpus=sizes, pids=sizes,
    time=sizes, output=sizes, tools_disabled=st.sets(st.sampled_from(TOOLS), max_size=1).map(frozenset),
)  # fmt: skip
steps = st.lists(st.tuples(profiles, wishes), min_size=1, max_size=4)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.sampled_from(COMMANDS).map(lambda text: ShellText(text=text)),
    st.sampled_from([("make",), ("curl", "http://x"), ("npm", "install"), ("go", "test", "./...")]).map(
        lambda argv: Exec(argv=argv, path=f"/usr/bin/{argv[0]}", program=f"/usr/bin/{argv[0]}", cwd="/w")
    ),
    st.sampled_from(["/w/x", "/w/.git/hooks/pre-commit", "/w/Makefile", "/etc/passwd"]).map(
        lambda path: FileChange(action=FileAction.WRITE, path=path)
    ),
)


def tree(root: Profile, trust: Trust, chain: list[tuple[Profile, Wish]]) -> list[Envelope]:
    """The envelopes of a chain of delegations, the operator's own first."""
    found = [Envelope(profile=root, trust=trust)]
    for profile, wish in chain:
        found.append(child_of(found[-1], profile, wish))
    return found


def may(envelope: Envelope, operation: Operation) -> bool:
    return isinstance(decide(operation, classify(operation, CONTEXT), envelope, CONTEXT), Allow)


@settings(max_examples=300, deadline=None)
@given(profiles, st.sampled_from(Trust), steps, operations)
def test_what_a_child_may_do_each_ancestor_may_do(
    root: Profile, trust: Trust, chain: list[tuple[Profile, Wish]], operation: Operation
) -> None:
    levels = tree(root, trust, chain)
    allowed = [may(level, operation) for level in levels]

    assert allowed == sorted(allowed, reverse=True)  # once refused on the way down, refused for ever
    for above, here in itertools.pairwise(levels):
        assert here.effects <= above.effects
        assert here.effective_trust <= above.effective_trust
        assert here.disabled_tools >= above.disabled_tools


@settings(max_examples=300, deadline=None)
@given(profiles, st.sampled_from(Trust), steps, st.tuples(profiles, wishes), st.data())
def test_a_further_step_of_delegation_never_adds_a_permission(
    root: Profile, trust: Trust, chain: list[tuple[Profile, Wish]], step: tuple[Profile, Wish], data: st.DataObject
) -> None:
    operation = data.draw(operations)
    at = data.draw(st.integers(0, len(chain)))
    longer = [*chain[:at], step, *chain[at:]]

    if may(tree(root, trust, longer)[-1], operation):
        assert may(tree(root, trust, chain)[-1], operation)


def everything(profile: Profile) -> dict[str, Any]:
    """What a task has besides its classes, each so that less is less."""
    sandbox = profile.sandbox
    limits = ("memory", "cpus", "pids", "time", "output", "tmp_size", "shm_size", "layer_size")
    return {
        **{name: float("inf") if getattr(sandbox, name) is None else getattr(sandbox, name) for name in limits},
        "workspace": ("read-only", "overlay", "direct").index(sandbox.workspace),
        "ask": profile.approvals.ask, "patience": profile.approvals.timeout, "approver": ("operator", "client").index(profile.approvals.approver),
    }


@settings(max_examples=300, deadline=None)
@given(profiles, st.sampled_from(Trust), steps)
def test_limits_paths_secrets_names_and_layers_narrow_too(root: Profile, trust: Trust, chain: list[tuple[Profile, Wish]]) -> None:
    levels = tree(root, trust, chain)
    for above, here in itertools.pairwise(levels):
        one, other = above.profile, here.profile
        assert all(everything(other)[key] <= limit for key, limit in everything(one).items())
        assert set(other.sandbox.show) <= set(one.sandbox.show)
        for path in other.sandbox.read_only:
            assert any(path == shown or path.startswith(shown + "/") for shown in one.sandbox.read_only)
        names = {*one.env.passed, *dict(one.env.set)}
        assert set(other.env.passed) <= set(one.env.passed)
        assert set(dict(other.env.set)) <= names
        assert set(other.requires) >= set(one.requires)


@settings(max_examples=200, deadline=None)
@given(settings_of, settings_of, settings_of)
def test_the_lesser_of_two_sandboxes_is_associative_commutative_and_idempotent(
    a: SandboxSettings, b: SandboxSettings, c: SandboxSettings
) -> None:
    def plain(found: SandboxSettings) -> SandboxSettings:
        # Where it runs, and from which image, is a choice and no permission; lists are sets.
        tops = [path for path in found.read_only if not any(path.startswith(other + "/") for other in found.read_only)]
        return replace(found, engine="", image="", read_only=tuple(sorted(tops)), show=tuple(sorted(found.show)))

    def meet(one: SandboxSettings, other: SandboxSettings) -> SandboxSettings:
        return plain(narrowed_settings(one, other))

    assert meet(meet(a, b), c) == meet(a, meet(b, c))
    assert meet(a, b) == meet(b, a)
    assert meet(a, a) == plain(a)


@given(environments, environments)
def test_the_order_of_two_environments_does_not_matter_for_the_names(one: Environment, other: Environment) -> None:
    assert set(narrowed_environment(one, other).passed) == set(narrowed_environment(other, one).passed)
    assert narrowed_environment(one, one) == one


@given(profiles, profiles, wishes)
def test_to_narrow_twice_is_to_narrow_once(child: Profile, parent: Profile, wish: Wish) -> None:
    once = narrowed(below(child, parent), wish)
    assert narrowed(below(once, parent), wish) == once


@given(profiles, wishes)
def test_what_is_not_called_widening_leaves_nothing_above_the_profile(profile: Profile, wish: Wish) -> None:
    after = narrowed(profile, wish)
    assert after.effects <= profile.effects
    assert all(everything(after)[key] <= limit for key, limit in everything(profile).items())
    if not widening(profile, wish) and wish.max_risk is not None:
        assert after.max_risk == wish.max_risk


@given(profiles, st.sampled_from(Trust), steps, st.sampled_from(["agent", "/usr/bin/agent", "/opt/a/agent", "/w/agent", "sh"]))
def test_only_a_program_that_each_level_lists_is_an_agent(
    root: Profile, trust: Trust, chain: list[tuple[Profile, Wish]], word: str
) -> None:
    levels = tree(root, trust, chain)
    path = led_by_agent(word, levels[-1])
    assert not path or all(path in level.profile.delegate.agents for level in levels)


tallies = st.builds(
    Tally, below=st.integers(1, 4), children=st.integers(0, 4), tasks=st.integers(0, 6), cpu_seconds=st.floats(0, 200),
    seconds=st.floats(0, 200), memory=st.integers(0, 200),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(profiles, st.sampled_from(Trust), steps, st.data())
def test_a_child_that_one_level_has_no_room_for_is_refused(
    root: Profile, trust: Trust, chain: list[tuple[Profile, Wish]], data: st.DataObject
) -> None:
    here = tree(root, trust, chain)[-1]
    levels = list(here.levels())
    counts = [data.draw(tallies) for _ in levels]

    denial = refuse_child("a", here, counts, "x")

    full = any(
        tally.below > level.profile.delegate.depth
        or tally.tasks >= level.profile.delegate.tasks
        or (level.profile.delegate.profiles is not None and "a" not in level.profile.delegate.profiles)
        or (level.profile.delegate.memory is not None and tally.memory >= level.profile.delegate.memory)
        for level, tally in zip(levels, counts, strict=True)
    )
    if full or "delegate" in here.disabled_tools or counts[0].children >= here.profile.delegate.breadth:
        assert denial is not None
    if denial is not None:
        assert denial.rule.startswith(("delegate.", "tool.delegate."))
        assert denial.reason.endswith(".")
        assert denial.hint
