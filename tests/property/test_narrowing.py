"""Narrowing is conjunction: no chain of delegation, and no further step, permits anything more."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.decide import AllowEntry, Envelope, Profile, Trust
from broker.decide.decide import decide
from broker.decide.unrecognised import UNRECOGNISED
from broker.decide.verdict import Allow, Ask, Deny, Grant, Verdict
from broker.request.operation import Connection, Exec, FileAction, FileChange, Operation, ShellText

CONTEXT = Context(cwd="/w", home="/h", workspace="/w")
COMMANDS = (("go", "test"), ("make",), ("sh", "-c", "x"), ("curl", "u"), ("git", "push", "o"))
SEVERITY = {Allow: 0, Ask: 1, Deny: 2}

risks = st.sets(st.sampled_from(Risk), max_size=4).map(frozenset)
commands = st.sampled_from(COMMANDS)
# What the schema lets an entry have; what it refuses is tried too, since decide() is not to rely on it.
entries = st.builds(
    AllowEntry,
    argv=commands,
    cwd=st.sampled_from([None, None, ".", "elsewhere"]),
    sha256=st.sampled_from([None, None, "a" * 64]),
    effects=risks,
)
profiles = st.builds(
    Profile,
    name=st.sampled_from(["a", "b", "c"]),
    effects=risks,
    allowlist=st.lists(entries, max_size=3).map(tuple),
    denylist=st.lists(commands.map(lambda argv: argv[:2]), max_size=2).map(tuple),
    disabled_tools=st.sampled_from([frozenset(), frozenset(), frozenset({"shell"})]),
    lands=st.sampled_from([frozenset(), frozenset({"other"})]),
)
steps = st.tuples(profiles, st.sampled_from(Trust))
chains = st.lists(steps, min_size=1, max_size=4)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Part, ...]:
    made: list[Part] = []
    for index in range(draw(st.integers(0, 3))):
        effects = draw(risks)
        rule = draw(st.sampled_from([UNRECOGNISED, "other"]))
        made.append(
            Part(
                kind=draw(st.sampled_from([PartKind.COMMAND, PartKind.COMMAND, PartKind.REDIRECT])),
                argv=draw(commands),
                static=draw(st.booleans()),
                effects=effects,
                reasons=tuple(Reason(rule=rule, risk=risk, text="because") for risk in sorted(effects)),
                within=draw(st.sampled_from([None, *range(index)])),
            )
        )
    return tuple(made)


assessments = st.builds(Assessment, parts=parts(), classifier=st.just("1"), tables=st.just("0"))


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    argv = draw(commands)
    path = draw(st.sampled_from([f"/usr/bin/{argv[0]}", "", "/tmp/x", "/usr/bin/other"]))
    return draw(
        st.sampled_from(
            [
                Exec(argv=argv, path=path, program=path, cwd="/w"),
                Exec(argv=argv, path=path, program=path, cwd="/w"),
                ShellText(text="x"),
                FileChange(action=FileAction.WRITE, path="/w/a"),
                Connection(address="a"),
            ]
        )
    )


questions = st.tuples(operations(), assessments, st.sampled_from([None, "a" * 64]))
trails = st.lists(questions, min_size=1, max_size=5)
grants = st.none() | st.builds(Grant, entry=st.just("e"), effects=risks, unrecognised=st.booleans())


def envelope(chain: list[tuple[Profile, Trust]]) -> Envelope:
    (profile, trust), *rest = chain
    made = Envelope(profile=profile, trust=trust)
    for profile, trust in rest:
        made = made.narrow(profile, trust)
    return made


def answer(
    task: Envelope,
    question: tuple[Operation, Assessment, str | None],
    scope: Grant | None,
    *,
    interactive: bool = False,
) -> Verdict:
    operation, assessment, digest = question
    return decide(operation, assessment, task, CONTEXT, scope=scope, digest=digest, interactive=interactive)


def walk(task: Envelope, trail: list[tuple[Operation, Assessment, str | None]]) -> list[bool]:
    """Follow one process that starts one program after the other, and tell what was allowed."""
    scope: Grant | None = None
    allowed = []
    for question in trail:
        verdict = answer(task, question, scope)
        allowed.append(isinstance(verdict, Allow))
        if isinstance(verdict, Allow) and verdict.grant is not None:
            scope = verdict.grant
    return allowed


@given(chains, profiles, st.sampled_from(Trust), trails)
@settings(max_examples=400)
def test_what_a_child_may_do_its_parent_may_do(
    chain: list[tuple[Profile, Trust]], profile: Profile, trust: Trust, trail: list[tuple]
) -> None:
    """Process by process: both walk as far as the child gets, each collecting the grants that it is given."""
    parent = envelope(chain)
    child = parent.narrow(profile, trust)
    child_scope = parent_scope = None
    for question in trail:
        verdict = answer(child, question, child_scope)
        if not isinstance(verdict, Allow):
            continue
        above = answer(parent, question, parent_scope)
        assert isinstance(above, Allow), (question, verdict, above)
        child_scope = verdict.grant or child_scope
        parent_scope = above.grant or parent_scope


@given(chains, steps, questions, grants, st.booleans())
@settings(max_examples=400)
def test_adding_a_step_never_makes_an_answer_milder(
    chain: list[tuple[Profile, Trust]],
    step: tuple[Profile, Trust],
    question: tuple,
    scope: Grant | None,
    interactive: bool,
) -> None:
    before = answer(envelope(chain), question, scope, interactive=interactive)
    for longer in ([*chain, step], [step, *chain]):
        after = answer(envelope(longer), question, scope, interactive=interactive)
        assert SEVERITY[type(after)] >= SEVERITY[type(before)], (before, after)


@given(
    st.lists(steps, min_size=2, max_size=4).flatmap(lambda c: st.tuples(st.just(c), st.permutations(c))),
    trails,
)
def test_the_order_of_a_chain_does_not_matter_to_what_is_permitted(
    chains: tuple[list[tuple[Profile, Trust]], list[tuple[Profile, Trust]]], trail: list[tuple]
) -> None:
    """Commutative: and, since a chain is a conjunction over its steps, associative."""
    one, other = (envelope(chain) for chain in same_trust(chains))
    assert walk(one, trail) == walk(other, trail)
    assert one.effects == other.effects


def same_trust(chains: tuple[list[tuple[Profile, Trust]], ...]) -> list[list[tuple[Profile, Trust]]]:
    """Stamp the least trust of a chain on each step: a step's trust binds itself and what is below it."""
    least = min(trust for _, trust in chains[0])
    return [[(profile, least) for profile, _ in chain] for chain in chains]


@given(chains, trails)
def test_narrowing_to_what_one_already_has_changes_nothing(
    chain: list[tuple[Profile, Trust]], trail: list[tuple]
) -> None:
    task = envelope(chain)
    again = task.narrow(task.profile, task.trust)
    assert walk(task, trail) == walk(again, trail)
    assert task.effects == again.effects


@given(chains, chains, chains, trails)
def test_narrowing_step_by_step_is_narrowing_at_once(
    first: list[tuple[Profile, Trust]],
    second: list[tuple[Profile, Trust]],
    third: list[tuple[Profile, Trust]],
    trail: list[tuple],
) -> None:
    """Associative: what a chain permits is the conjunction of what its pieces permit, however it is cut."""
    whole = envelope([*first, *second, *third])
    assert whole.effects == (
        envelope([*first, *second]).effects
        & envelope(under_trust(third, min_trust([*first, *second]))).effects
    )
    assert whole.effects == (
        envelope(first).effects & envelope(under_trust([*second, *third], min_trust(first))).effects
    )


def min_trust(chain: list[tuple[Profile, Trust]]) -> Trust:
    return min(trust for _, trust in chain)


def under_trust(chain: list[tuple[Profile, Trust]], least: Trust) -> list[tuple[Profile, Trust]]:
    return [(profile, min(trust, least)) for profile, trust in chain]


@given(chains, questions, grants, st.booleans())
def test_blocked_is_always_denied(
    chain: list[tuple[Profile, Trust]], question: tuple, scope: Grant | None, interactive: bool
) -> None:
    verdict = answer(envelope(chain), question, scope, interactive=interactive)
    assert not isinstance(verdict, Ask) or interactive
    if Risk.BLOCKED in question[1].effects:
        assert isinstance(verdict, Deny)


@given(chains, questions, grants)
def test_an_answer_is_the_same_whenever_it_is_asked_for(
    chain: list[tuple[Profile, Trust]], question: tuple, scope: Grant | None
) -> None:
    assert answer(envelope(chain), question, scope) == answer(envelope(chain), question, scope)


@given(chains, questions, grants)
def test_no_grant_ever_holds_what_outlives_it(
    chain: list[tuple[Profile, Trust]], question: tuple, scope: Grant | None
) -> None:
    verdict = answer(envelope(chain), question, None)
    if isinstance(verdict, Allow) and verdict.grant is not None:
        assert not verdict.grant.effects & {Risk.PERSISTENCE, Risk.UNKNOWN, Risk.BLOCKED}
