"""Two profiles in words: each change has its direction, and what is called no wider permits no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.classify.risk import Risk
from broker.decide.profile import AllowEntry, Profile
from broker.decide.verdict import Allow
from broker.profiles.compare import Direction, compare
from broker.profiles.judge import judge, start_of

Made = Callable[..., Profile]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", 'max_risk = "local_write"', "may now do what is local_write ("),
        ("", 'allowlist = ["npm ci"]', "may now run `npm ci` (install) without asking"),
        ("", 'allowlist = ["ls"]', "what `ls` starts may now be local_write and code_execution"),
        ('allowlist = [{ command = "make", cwd = "a" }]', 'allowlist = ["make"]', "may now run `make` (code_execution)"),
        ('allowlist = ["make"]', 'allowlist = [{ command = "make", effects = ["install"] }]', "what `make` (what it starts: also install) starts may now be install"),
        ('denylist = ["git push"]', "", "no longer denies every command that starts with `git push`"),
        ('denylist = ["git"]', 'denylist = ["git push"]', "no longer denies every command that starts with `git`"),
        ('tools.disabled = ["shell"]', "", "has the tool shell again"),
        ("", 'land.allow = ["contents.package-script"]', "may now land what is contents.package-script"),
        ("", "requires = []", "starts even where the layer network has no effect"),
        ("", 'env.pass = ["LANG"]', "reads LANG of your environment"),
        ("", 'env.set = { LD_PRELOAD = "/x" }', "has LD_PRELOAD set to '/x'"),
        ('sandbox.workspace = "read-only"', "", "has a workspace that is overlay, not read-only"),
        ("", 'sandbox.read_only = ["/opt/sdk"]', "reads /opt/sdk of the host"),
        ("", 'sandbox.show = [".env"]', "reads .env, which looks like a secret"),
        ('sandbox.memory = "1G"', 'sandbox.memory = "2G"', "may use 2G of memory, not 1G"),
        ('sandbox.memory = "1G"', "", "has no limit of memory"),
        ("", 'approvals = { ask = true }', "asks you on a terminal about what it does not permit"),
        ('approvals.approver = "operator"', 'approvals.approver = "client"', "lets the client of its tools approve in your place"),
        ('approvals.timeout = "1m"', 'approvals.timeout = "2m"', "waits 2m for an answer, not 1m"),
        ('delegate.profiles = ["a"]', 'delegate.profiles = ["a", "b"]', "may hand work to the profile b"),
        ("delegate.depth = 1", "delegate.depth = 2", "may use 2 of levels of child tasks, not 1"),
    ],
)  # fmt: skip
def test_a_wider_profile_is_called_wider_and_the_way_back_is_not(made: Made, before: str, after: str, said: str) -> None:
    there = compare(made(before), made(after))
    assert any(change.direction is Direction.WIDER and change.text.startswith(said) for change in there), there
    back = compare(made(after), made(before))
    assert back
    if "cwd" not in before and 'denylist = ["git' not in after:  # those say both ways what they add
        assert all(change.direction is not Direction.WIDER for change in back), back


def test_what_changes_no_permission_is_the_same_or_merely_different(made: Made) -> None:
    assert compare(made('description = "a"'), made('description = "b"')) == ()
    other = compare(made('sandbox.image = "a"'), made('sandbox.image = "b"'))
    assert [change.direction for change in other] == [Direction.DIFFERENT]
    listed = compare(made('max_risk = "code_execution"'), made('max_risk = "code_execution"\nallowlist = ["make"]'))
    assert [change.direction for change in listed] == [Direction.DIFFERENT]


def test_the_order_of_two_entries_for_one_command_matters(made: Made) -> None:
    plain, more = '"make"', '{ command = "make", effects = ["install"] }'
    narrow, wide = made(f"allowlist = [{plain}, {more}]"), made(f"allowlist = [{more}, {plain}]")
    assert [change.direction for change in compare(narrow, wide)][:1] == [Direction.WIDER]


COMMANDS = (
    "ls", "git status", "touch x", "make", "npm test", "npm ci", "pip install x", "curl https://x.example", "git push",
    "cat ~/.ssh/id_rsa", "touch .git/hooks/x", "rm -rf /", "nobody-knows", "make | tee ~/.bashrc", "sh -c 'npm test'",
    "cd a && make && git push", "timeout 5 make",
)  # fmt: skip
WORDS = (("make",), ("npm", "test"), ("git", "push"), ("ls",), ("git",), ("npm", "ci"), ("timeout", "5", "make"))
risks = st.sets(st.sampled_from([risk for risk in Risk if risk is not Risk.BLOCKED]), max_size=5).map(lambda some: frozenset(some) | {Risk.SAFE})
entries = st.builds(
    AllowEntry, argv=st.sampled_from(WORDS), cwd=st.sampled_from([None, None, "a"]), sha256=st.sampled_from([None, None, "a" * 64]),
    effects=st.sampled_from([frozenset(), frozenset(), frozenset({Risk.INSTALL})]),
)  # fmt: skip
profiles = st.builds(
    Profile, name=st.just("p"), effects=risks, allowlist=st.lists(entries, max_size=3).map(tuple),
    denylist=st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
    disabled_tools=st.sampled_from([frozenset(), frozenset({"shell"})]),
)  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Profile, Profile]:
    """A profile, and one that was edited from it: mostly narrower, so that what is called so is tried often."""
    before, other = draw(profiles), draw(profiles)
    kept = draw(st.permutations(before.allowlist))[: draw(st.integers(0, 3))]
    after = replace(
        before,
        effects=before.effects - draw(risks) | {Risk.SAFE} if draw(st.booleans()) else before.effects,
        allowlist=(*kept, *draw(st.sampled_from([(), (), other.allowlist[:1]]))),
        denylist=(*before.denylist, *draw(st.sampled_from([(), other.denylist]))),
        disabled_tools=draw(st.sampled_from([before.disabled_tools, frozenset({"shell"})])),
    )
    return before, after


@settings(max_examples=200, deadline=None)
@given(pairs())
def test_a_profile_that_is_not_called_wider_permits_nothing_more(pair: tuple[Profile, Profile]) -> None:
    """INVARIANT of compare: no change is WIDER, so each command that the second permits, the first permits."""
    before, after = pair
    if any(change.direction is Direction.WIDER for change in compare(before, after)):
        return
    starts = [start_of(entry) for entry in (*after.allowlist, *before.allowlist)]
    for asked in (*COMMANDS, *starts):
        for digest in (None, "a" * 64):
            new = judge(asked, after, digest=digest).verdict
            old = judge(asked, before, digest=digest).verdict
            assert not isinstance(new, Allow) or isinstance(old, Allow), asked
