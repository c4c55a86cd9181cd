"""The machine of a plan: what makes a step done, and that nothing else does. Times and digests are arguments."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.decide.plan import (
    Begun,
    Changed,
    CheckState,
    Completed,
    Created,
    Denied,
    Evidence,
    Happening,
    Observed,
    Plan,
    Revised,
    State,
    Unfounded,
    Waived,
    Waiver,
    after,
    transitions,
)
from broker.request.delegation import RequestRefused
from broker.request.plan import Check, Invocation, Owner, Step, as_data, read_steps, steps_of

TESTS = Invocation(words=("go", "test", "./..."))
VET = Invocation(words=("go", "vet", "./..."))
LINT = Invocation(words=("make lint | tee log",), tool="shell", cwd="src")
ONE, TWO = "1" * 64, "2" * 64
WAIVER = Waiver(who="ada", because="the registry is down", at=9.0)


def step(*invocations: Invocation, name: str = "a", owner: Owner = Owner.WORKER) -> Step:
    return Step(id=name, title=f"step {name}", checks=tuple(Check(invocation=one, owner=owner) for one in invocations))


def seen(invocation: Invocation, code: int = 0, before: str = ONE, now: str = ONE, started: float = 2.0, name: str = "a") -> Observed:
    evidence = Evidence(exit_code=code, before=before, after=now, started=started, at=started + 1)
    return Observed(step=name, invocation=invocation, evidence=evidence)


def plan_after(*happenings: Happening, plan: Plan | None = None) -> Plan:
    for one in happenings:
        found = after(plan, one)
        assert isinstance(found, Plan), found
        plan = found
    assert plan is not None
    return plan


def begun(*invocations: Invocation, owner: Owner = Owner.WORKER) -> Plan:
    return plan_after(Created(steps=(step(*invocations, owner=owner),), by=owner), Begun(step="a", at=1.0))


def state(plan: Plan, name: str = "a") -> State:
    found = plan.step(name)
    assert found is not None
    return found.state


COMPLETED = Completed(step="a", workspace=ONE)


def test_a_step_is_done_when_each_check_was_seen_succeeding_and_somebody_says_so() -> None:
    plan = plan_after(seen(TESTS), seen(VET), plan=begun(TESTS, VET))
    assert state(plan) is State.ACTIVE
    assert state(plan_after(COMPLETED, plan=plan)) is State.DONE


@pytest.mark.parametrize(
    ("happenings", "lacks"),
    [
        ((), "it was not seen succeeding"),
        ((seen(TESTS, code=1),), "it ended with 1"),
        ((seen(TESTS), seen(TESTS, code=137)), "it ended with 137"),
        ((seen(TESTS, before=ONE, now=TWO),), "the workspace changed while it ran"),
        ((seen(TESTS), Changed(workspace=TWO)), "the workspace changed after it was seen succeeding"),
        ((seen(TESTS), Changed(workspace=TWO), Changed(workspace=ONE)), "the workspace changed after it was seen succeeding"),
        ((seen(TESTS, before=TWO, now=TWO),), "the workspace changed after it was seen succeeding"),
        ((Denied(step="a", invocation=TESTS, reason="no go here"),), "it was denied: no go here"),
        ((seen(TESTS), Denied(step="a", invocation=TESTS, reason="no go here")), "it was denied: no go here"),
    ],
)
def test_to_say_that_a_step_is_done_is_refused_with_what_is_missing(happenings: tuple[Happening, ...], lacks: str) -> None:
    plan = plan_after(seen(VET), *happenings, seen(VET), plan=begun(TESTS, VET))
    found = after(plan, COMPLETED)
    assert isinstance(found, Unfounded)
    assert found.missing[0] == f"a.1 `go test ./...`: {lacks}"


def test_a_step_that_has_not_begun_is_not_done_whatever_was_seen() -> None:
    plan = plan_after(Created(steps=(step(TESTS),), by=Owner.WORKER))
    assert isinstance(after(plan, seen(TESTS)), Unfounded)
    assert isinstance(after(plan, COMPLETED), Unfounded)
    assert state(plan) is State.PENDING


def test_what_started_before_the_step_began_does_not_count() -> None:
    assert isinstance(after(begun(TESTS), seen(TESTS, started=0.5)), Unfounded)


def test_a_later_change_makes_a_done_step_stale_and_a_new_success_makes_it_done_again() -> None:
    plan = plan_after(seen(TESTS), COMPLETED, Changed(workspace=TWO), plan=begun(TESTS))
    assert state(plan) is State.STALE
    assert state(plan_after(seen(TESTS, before=TWO, now=TWO), plan=plan)) is State.DONE


def test_what_a_check_changes_makes_the_evidence_of_the_others_stale() -> None:
    plan = plan_after(seen(TESTS), seen(VET, before=ONE, now=TWO), plan=begun(TESTS, VET))
    assert [one.state for one in plan.steps[0].checks] == [CheckState.STALE, CheckState.MOVED]


def test_a_denied_check_blocks_its_step_until_it_is_seen_succeeding() -> None:
    plan = plan_after(Denied(step="a", invocation=TESTS, reason="no"), plan=begun(TESTS))
    assert state(plan) is State.BLOCKED
    assert state(plan_after(seen(TESTS), plan=plan)) is State.ACTIVE


@pytest.mark.parametrize("owner", [Owner.JUDGE, Owner.OPERATOR])
def test_the_worker_revises_its_own_and_nothing_of_the_operator_or_a_judge(owner: Owner) -> None:
    plan = plan_after(
        Created(steps=(step(TESTS, owner=owner), step(VET, name="b")), by=Owner.OPERATOR),
        Revised(steps=(Step(id="a", title="easy", checks=(Check(invocation=LINT),)), step(LINT, name="c")), by=Owner.WORKER),
    )  # fmt: skip
    assert [(one.id, one.title, [check.check.invocation for check in one.checks]) for one in plan.steps] == [
        ("a", "step a", [TESTS, LINT]), ("c", "step c", [LINT]),
    ]  # fmt: skip
    assert plan.steps[0].checks[0].check.owner is owner
    emptied = plan_after(Revised(steps=(step(LINT, name="d"),), by=Owner.WORKER), plan=plan)
    assert [one.id for one in emptied.steps] == ["a", "d"]


def test_a_judge_revises_what_is_the_workers_but_not_what_is_the_operators() -> None:
    plan = plan_after(
        Created(steps=(step(TESTS, owner=Owner.OPERATOR), step(VET, name="b")), by=Owner.OPERATOR),
        Revised(steps=(step(LINT, name="finding", owner=Owner.JUDGE),), by=Owner.JUDGE),
    )  # fmt: skip
    assert [one.id for one in plan.steps] == ["a", "finding"]


def test_a_revision_keeps_what_is_known_of_a_check_that_stays_and_takes_back_that_the_step_is_done() -> None:
    plan = plan_after(seen(TESTS), COMPLETED, plan=begun(TESTS))
    same = plan_after(Revised(steps=(step(TESTS),), by=Owner.WORKER), plan=plan)
    more = plan_after(Revised(steps=(step(TESTS, VET),), by=Owner.WORKER), plan=plan)
    fewer = plan_after(Revised(steps=(step(TESTS),), by=Owner.WORKER), plan=more)
    assert (state(same), state(more), state(fewer)) == (State.DONE, State.ACTIVE, State.ACTIVE)
    assert [one.state for one in more.steps[0].checks] == [CheckState.PASSED, CheckState.OPEN]


def test_a_check_that_was_removed_and_comes_back_is_not_known_any_more() -> None:
    plan = plan_after(seen(TESTS), plan=begun(TESTS, VET))
    back = plan_after(
        Revised(steps=(step(VET),), by=Owner.WORKER), Revised(steps=(step(TESTS, VET),), by=Owner.WORKER), plan=plan
    )
    assert back.steps[0].checks[0].state is CheckState.OPEN


def test_only_the_operator_waives_a_check() -> None:
    plan = plan_after(Denied(step="a", invocation=TESTS, reason="no"), plan=begun(TESTS))
    for by in (Owner.WORKER, Owner.JUDGE):
        assert isinstance(after(plan, Waived(step="a", check=1, waiver=WAIVER, by=by)), Unfounded)
    assert isinstance(after(plan, Waived(step="a", check=2, waiver=WAIVER, by=Owner.OPERATOR)), Unfounded)
    waived = plan_after(Waived(step="a", check=1, waiver=WAIVER, by=Owner.OPERATOR), COMPLETED, plan=plan)
    assert waived.done


def test_together_with_others_checks_and_steps_stay_bounded() -> None:
    many = tuple(Invocation(words=("check", str(number))) for number in range(4))
    plan = plan_after(Created(steps=(step(TESTS, owner=Owner.OPERATOR),), by=Owner.OPERATOR))
    assert isinstance(after(plan, Revised(steps=(step(*many),), by=Owner.WORKER)), Unfounded)
    steps = tuple(step(VET, name=f"s{number}") for number in range(50))
    assert isinstance(after(plan, Revised(steps=steps, by=Owner.WORKER)), Unfounded)


def test_there_is_one_plan_and_nothing_happens_without_one() -> None:
    plan = begun(TESTS)
    assert isinstance(after(plan, Created(steps=(step(TESTS),), by=Owner.OPERATOR)), Unfounded)
    for one in (Begun(step="a", at=1.0), Changed(workspace=ONE), COMPLETED, seen(TESTS)):
        assert isinstance(after(None, one), Unfounded)
    assert isinstance(after(plan, Begun(step="a", at=2.0)), Unfounded)
    assert isinstance(after(plan, Begun(step="z", at=2.0)), Unfounded)


def test_transitions_say_which_steps_are_not_what_they_were() -> None:
    before = begun(TESTS)
    now = plan_after(seen(TESTS), COMPLETED, Revised(steps=(step(TESTS), step(VET, name="b")), by=Owner.WORKER), plan=before)
    assert transitions(before, now) == (("a", "active", "done"), ("b", "", "pending"))
    assert transitions(None, before) == (("a", "", "active"),)


# What a worker can do, in any order

NAMES, INVOCATIONS, DIGESTS = ("a", "b"), (TESTS, VET), (ONE, TWO)
steps_given = st.lists(
    st.builds(lambda name, found: step(*found, name=name), st.sampled_from(NAMES),
              st.lists(st.sampled_from(INVOCATIONS), min_size=1, max_size=2, unique=True)),
    max_size=2, unique_by=lambda one: one.id,
).map(tuple)  # fmt: skip
times = st.integers(0, 6).map(float)
by_a_worker = st.one_of(
    st.builds(Created, steps=steps_given, by=st.just(Owner.WORKER)),
    st.builds(Revised, steps=steps_given, by=st.just(Owner.WORKER)),
    st.builds(Begun, step=st.sampled_from(NAMES), at=times),
    st.builds(
        seen, st.sampled_from(INVOCATIONS), code=st.sampled_from((0, 0, 1)), before=st.sampled_from(DIGESTS),
        now=st.sampled_from(DIGESTS), started=times, name=st.sampled_from(NAMES),
    ),
    st.builds(Denied, step=st.sampled_from(NAMES), invocation=st.sampled_from(INVOCATIONS), reason=st.just("no")),
    st.builds(Changed, workspace=st.sampled_from(DIGESTS)),
    st.builds(Completed, step=st.sampled_from(NAMES), workspace=st.sampled_from(DIGESTS)),
    st.builds(Waived, step=st.sampled_from(NAMES), check=st.just(1), waiver=st.just(WAIVER), by=st.just(Owner.WORKER)),
)  # fmt: skip
# The same, where most of it leads somewhere: a short way to a done step, and what could go wrong on it.
nearly_done = st.one_of(
    st.just(COMPLETED), st.just(seen(TESTS, started=3.0)), st.just(seen(VET, started=3.0)),
    st.builds(
        seen, st.sampled_from(INVOCATIONS), code=st.sampled_from((0, 1)), before=st.sampled_from(DIGESTS),
        now=st.sampled_from(DIGESTS), started=st.sampled_from((1.0, 3.0)),
    ),
    st.builds(Begun, step=st.just("a"), at=st.just(2.0)),
    st.builds(Changed, workspace=st.sampled_from(DIGESTS)),
    st.builds(Denied, step=st.just("a"), invocation=st.just(TESTS), reason=st.just("no")),
    st.builds(Revised, steps=st.sampled_from([(step(TESTS),), (step(VET),), (step(TESTS, VET),)]), by=st.just(Owner.WORKER)),
    st.builds(Waived, step=st.just("a"), check=st.just(1), waiver=st.just(WAIVER), by=st.just(Owner.WORKER)),
)  # fmt: skip
BEGUN = Begun(step="a", at=2.0)
MINE = Created(steps=(step(TESTS),), by=Owner.WORKER)
OPERATORS = Created(steps=(step(TESTS, VET, owner=Owner.OPERATOR),), by=Owner.OPERATOR)


def last_look(happenings: list[Happening]) -> str:
    """The digest of the workspace that was seen last."""
    workspace = ""
    for one in happenings:
        match one:
            case Changed(workspace=digest) | Completed(workspace=digest):
                workspace = digest
            case Observed(evidence=evidence):
                workspace = evidence.after
            case _:
                pass
    return workspace


@settings(max_examples=1500, deadline=None)
@given(
    first=st.sampled_from([[], [OPERATORS], [OPERATORS, BEGUN], [MINE], [MINE, BEGUN], [MINE, BEGUN, seen(TESTS, started=3.0), COMPLETED]]),
    happenings=st.one_of(st.lists(by_a_worker, max_size=12), st.lists(nearly_done, max_size=8), st.lists(nearly_done, max_size=8)),
)
def test_no_order_of_events_makes_a_step_done_without_a_success_of_every_check_since_it_began_on_this_workspace(
    first: list[Happening], happenings: list[Happening]
) -> None:
    plan: Plan | None = None
    happened: list[Happening] = []
    for one in [*first, *happenings]:
        found = after(plan, one)
        if isinstance(found, Plan):
            plan = found
            happened.append(one)
    if plan is None:
        return
    workspace = last_look(happened)
    for done in (one for one in plan.steps if one.state is State.DONE):
        began = max(place for place, one in enumerate(happened) if isinstance(one, Begun) and one.step == done.id)
        start = happened[began]
        assert isinstance(start, Begun)
        assert any(isinstance(one, Completed) and one.step == done.id for one in happened[began:])
        for tracked in done.checks:
            runs = [
                (place, one) for place, one in enumerate(happened)
                if isinstance(one, (Observed, Denied)) and one.step == done.id and one.invocation == tracked.check.invocation
            ]  # fmt: skip
            place, last = runs[-1]
            assert place > began
            assert isinstance(last, Observed)
            evidence = last.evidence
            assert (evidence.exit_code, evidence.before, evidence.after) == (0, workspace, workspace)
            assert evidence.started >= start.at
            assert all(last_look(happened[: later + 1]) == workspace for later in range(place, len(happened)))
    if first[:1] == [OPERATORS]:
        kept = plan.step("a")
        assert kept is not None
        assert [one.check for one in kept.checks[:2]] == list(OPERATORS.steps[0].checks)
        assert all(one.waiver is None for one in kept.checks)


def test_the_property_would_see_a_step_that_is_done_without_evidence() -> None:
    """What it looks for can be reached: a done step exists among the orders that a worker has."""
    assert plan_after(Created(steps=(step(TESTS),), by=Owner.WORKER), Begun(step="a", at=0.0), seen(TESTS), COMPLETED).done


# A plan as it is written


def test_a_plan_is_read_as_it_is_written_and_written_as_it_is_read() -> None:
    text = json.dumps({"steps": [
        {"title": "tests", "checks": [{"argv": ["go", "test"], "cwd": "./a//b", "seconds": 5}, {"shell": "make | tee x", "owner": "worker"}]},
        {"id": "review", "title": "review", "checks": [{"argv": ["true"], "owner": "judge"}]},
    ]})  # fmt: skip
    steps = read_steps(text, Owner.OPERATOR)

    assert [(one.id, [check.owner.label for check in one.checks]) for one in steps] == [("1", ["operator", "worker"]), ("review", ["judge"])]
    assert steps[0].checks[0].invocation == Invocation(words=("go", "test"), cwd="a/b")
    assert steps[0].checks[1].invocation.argv == ("/bin/bash", "-c", "make | tee x")
    assert steps_of({"steps": [as_data(one) for one in steps]}, Owner.OPERATOR) == steps


GOOD = {"id": "a", "title": "t", "checks": [{"argv": ["true"]}]}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ([], ""),
        ({}, "steps"),
        ({"steps": []}, "steps"),
        ({"steps": [GOOD] * 51}, "steps"),
        ({"steps": [GOOD, GOOD]}, "steps"),
        ({"steps": [GOOD], "done": True}, "done"),
        ({"steps": [GOOD | {"state": "done"}]}, "steps[1].state"),
        ({"steps": [GOOD | {"id": "A.1"}]}, "steps[1].id"),
        ({"steps": [GOOD | {"title": " "}]}, "steps[1].title"),
        ({"steps": [GOOD | {"checks": []}]}, "steps[1].checks"),
        ({"steps": [GOOD | {"checks": [{"argv": [str(number)]} for number in range(5)]}]}, "steps[1].checks"),
        ({"steps": [GOOD | {"checks": [{"argv": ["true"]}, {"argv": ["true"], "seconds": 1}]}]}, "steps[1].checks"),
        ({"steps": [GOOD | {"checks": [{"argv": "go test"}]}]}, "steps[1].checks[1].argv"),
        ({"steps": [GOOD | {"checks": [{"argv": ["", "x"]}]}]}, "steps[1].checks[1].argv"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a\0b"]}]}]}, "steps[1].checks[1].argv"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "shell": "a"}]}]}, "steps[1].checks[1]"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "exit_code": 0}]}]}, "steps[1].checks[1].exit_code"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "cwd": "/etc"}]}]}, "steps[1].checks[1].cwd"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "cwd": "x/../.."}]}]}, "steps[1].checks[1].cwd"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "owner": "operator"}]}]}, "steps[1].checks[1].owner"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "owner": "judge"}]}]}, "steps[1].checks[1].owner"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "seconds": 0}]}]}, "steps[1].checks[1].seconds"),
        ({"steps": [GOOD | {"checks": [{"argv": ["a"], "seconds": True}]}]}, "steps[1].checks[1].seconds"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_with_the_key_that_is_wrong(table: object, key: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        steps_of(table, Owner.WORKER)
    assert refused.value.key == key
