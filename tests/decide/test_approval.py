"""How a question may be answered: a table of what happened before, with the times, and properties of every history."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.classify.risk import Risk
from broker.decide.approval import (
    BACK_OFF,
    MOST_OF_A_CLASS,
    MOST_OF_ALL,
    MOST_REMEMBERED,
    MOST_WITHDRAWN,
    NEVER_FOR_A_SESSION,
    SESSION_SECONDS,
    WINDOW,
    ApprovalHistory,
    Approved,
    Prompt,
    Refuse,
    Request,
    SingleKey,
    TypedWord,
    may_remember,
    next_prompt,
    patience_of,
    wearies,
)
from broker.decide.profile import ApprovalSettings, Profile
from broker.decide.trust import Trust

E, S, N, D, P = Risk.CODE_EXECUTION, Risk.INSTALL, Risk.NETWORK_EGRESS, Risk.DESTRUCTIVE, Risk.PERSISTENCE
KEY, WORD, REFUSED, KNOWN = "key", "word", "refused", "known"


def request(operation: str, *effects: Risk, content: str = "c") -> Request:
    return Request(operation=operation, effects=frozenset(effects), content=content)


@dataclass(frozen=True)
class Case:
    """What was answered: (time, + approved, - denied, s for the session; operation; classes). Then what is asked, and how."""

    title: str
    before: tuple[tuple[float, str, str, tuple[Risk, ...]], ...]
    now: float
    asked: tuple[str, tuple[Risk, ...]]
    prompt: str


def approvals(*rows: tuple[float, tuple[Risk, ...]]) -> tuple[tuple[float, str, str, tuple[Risk, ...]], ...]:
    return tuple((at, "+", f"op{number}", effects) for number, (at, effects) in enumerate(rows))


CASES = (
    Case("the first question of a run", (), 0, ("x", (E,)), KEY),
    Case("after two of its class", approvals((0, (E,)), (1, (E,))), 2, ("x", (E,)), KEY),
    Case("after three of its class", approvals((0, (E,)), (1, (E,)), (2, (E,))), 3, ("x", (E,)), WORD),
    Case("three of another class", approvals((0, (E,)), (1, (E,)), (2, (E,))), 3, ("x", (N,)), KEY),
    Case("the first of the three at the end of its minute", approvals((0, (E,)), (1, (E,)), (2, (E,))), 59.9, ("x", (E,)), WORD),
    Case("the first of the three is a minute old", approvals((0, (E,)), (1, (E,)), (2, (E,))), 60, ("x", (E,)), KEY),
    Case("classes in turn, four in all", approvals((0, (E,)), (1, (N,)), (2, (E,)), (3, (N,))), 4, ("x", (S,)), KEY),
    Case("classes in turn, five in all", approvals((0, (E,)), (1, (N,)), (2, (S,)), (3, (E,)), (4, (N,))), 5, ("x", (D,)), WORD),
    Case("five in all, the first a minute ago",
         approvals((0, (E,)), (1, (N,)), (2, (S,)), (3, (E,)), (4, (N,))), 60, ("x", (D,)), KEY),
    Case("a class that comes along with a worse one counts", approvals((0, (E, N)), (1, (E, S)), (2, (E, D))), 3, ("x", (E,)), WORD),
    Case("a class that the question has beside a worse one counts", approvals((0, (E,)), (1, (E,)), (2, (E,))), 3, ("x", (E, D)), WORD),
    Case("the same, denied a moment ago", ((0, "-", "x", (E,)),), 9.9, ("x", (E,)), REFUSED),
    Case("the same, denied ten seconds ago", ((0, "-", "x", (E,)),), 10, ("x", (E,)), KEY),
    Case("another one, denied a moment ago", ((0, "-", "y", (E,)),), 1, ("x", (E,)), KEY),
    Case("denied twice, half a minute ago", ((0, "-", "x", (E,)), (20, "-", "x", (E,))), 50, ("x", (E,)), REFUSED),
    Case("denied twice, a minute ago", ((0, "-", "x", (E,)), (20, "-", "x", (E,))), 80, ("x", (E,)), KEY),
    Case("denied three times, for good",
         ((0, "-", "x", (E,)), (20, "-", "x", (E,)), (90, "-", "x", (E,))), 1e9, ("x", (E,)), REFUSED),
    Case("denials in between are no approvals",
         (*approvals((0, (E,)), (1, (E,))), (2, "-", "y", (E,)), (3, "-", "z", (E,))), 4, ("x", (E,)), KEY),
    Case("an approval ends what its denials began",
         ((0, "-", "x", (E,)), (20, "+", "x", (E,)), (21, "-", "x", (E,))), 31, ("x", (E,)), KEY),
    Case("what was denied is refused, whatever else would take a word",
         (*approvals((0, (E,)), (1, (E,)), (2, (E,))), (3, "-", "x", (E,))), 4, ("x", (E,)), REFUSED),
    Case("for the session", ((0, "s", "x", (E,)),), 100, ("x", (E,)), KNOWN),
    Case("for the session, but an hour ago", ((0, "s", "x", (E,)),), 3600, ("x", (E,)), KEY),
    Case("for the session is for that operation only", ((0, "s", "x", (E,)),), 100, ("y", (E,)), KEY),
    Case("once is once", ((0, "+", "x", (E,)),), 100, ("x", (E,)), KEY),
    Case("for the session, and it does more by now", ((0, "s", "x", (E,)),), 100, ("x", (E, D)), KEY),
    Case("for the session needs no word", ((0, "s", "x", (E,)), *approvals((1, (E,)), (2, (E,)), (3, (E,)))), 4, ("x", (E,)), KNOWN),
    Case("a later denial ends a session", ((0, "s", "x", (E,)), (1, "-", "x", (E,))), 100, ("x", (E,)), KEY),
    Case("what is blocked is not asked about", (), 0, ("x", (E, Risk.BLOCKED)), REFUSED),
)  # fmt: skip


def kind(prompt: Prompt) -> str:
    return {SingleKey: KEY, TypedWord: WORD, Refuse: REFUSED, Approved: KNOWN}[type(prompt)]


def after(rows: tuple[tuple[float, str, str, tuple[Risk, ...]], ...]) -> ApprovalHistory:
    history = ApprovalHistory()
    for at, answer, operation, effects in rows:
        asked = request(operation, *effects)
        history = history.after_denial(asked, at) if answer == "-" else history.after_approval(asked, at, session=answer == "s")
    return history


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_how_it_may_be_answered(case: Case) -> None:
    operation, effects = case.asked
    assert kind(next_prompt(after(case.before), request(operation, *effects), case.now)) == case.prompt


@pytest.mark.parametrize(
    ("denied", "now", "asked", "until"),
    [
        ([(n, (N,)) for n in range(4)], 5, (N,), None),
        ([(n, (N,)) for n in range(5)], 5, (N,), 60),  # each of them in other words
        ([(n, (N,)) for n in range(5)], 5, (E, N), 60),
        ([(n, (N,)) for n in range(5)], 5, (E,), None),
        ([(n, (E, N)) for n in range(5)], 5, (E,), None),
        ([(n, (N,)) for n in range(7)], 59, (N,), 62),
        ([(n, (N,)) for n in range(5)], 60, (N,), None),
        ([(20 * n, (N,)) for n in range(5)], 80, (N,), None),
    ],
)
def test_what_is_denied_in_ever_other_words_is_not_asked_about_for_a_while(
    denied: list[tuple[float, tuple[Risk, ...]]], now: float, asked: tuple[Risk, ...], until: float | None
) -> None:
    history = after(tuple((at, "-", f"op{number}", effects) for number, (at, effects) in enumerate(denied)))
    found = wearies(history, request("x", *asked), now)
    assert (found.until if found else None) == until
    assert not isinstance(next_prompt(history, request("x", *asked), now), Refuse)  # one that waits already can be answered


def test_questions_that_come_and_go_are_not_asked_for_a_while() -> None:
    history = ApprovalHistory()
    for number in range(MOST_WITHDRAWN):
        assert wearies(history, request("x", E), number) is None
        history = history.after_withdrawal(number)

    refused = wearies(history, request("x", N), 30)
    assert refused is not None
    assert refused.until == WINDOW
    assert wearies(history, request("x", N), WINDOW) is None


@pytest.mark.parametrize("risk", Risk)
def test_what_may_be_remembered(risk: Risk) -> None:
    assert may_remember(request("x", E, risk)) is (risk not in NEVER_FOR_A_SESSION)
    prompt = next_prompt(ApprovalHistory(), request("x", risk), 0)
    assert isinstance(prompt, Refuse) or prompt == SingleKey(session=risk not in NEVER_FOR_A_SESSION)


def test_what_nobody_could_look_at_is_not_remembered() -> None:
    assert not may_remember(request("x", E, content=""))
    assert not may_remember(request("x"))


def test_a_session_that_may_not_be_is_an_error_not_a_yes() -> None:
    with pytest.raises(ValueError, match="cannot be approved for a session"):
        ApprovalHistory().after_approval(request("x", P), 0, session=True)


def test_for_the_session_holds_for_the_same_program_only() -> None:
    history = ApprovalHistory().after_approval(request("x", E), 0, session=True)

    assert kind(next_prompt(history, request("x", E, content="another"), 1)) == KEY
    assert next_prompt(history, request("x", E), 1) == Approved(at=0)


def test_the_word_comes_with_its_pause() -> None:
    history = after(approvals((0, (E,)), (1, (E,)), (2, (E,))))

    assert next_prompt(history, request("x", E), 3) == TypedWord(session=True, word="approve", pause=1.5)


def test_a_run_in_which_a_thousand_things_were_denied_is_asked_about_nothing_new() -> None:
    history = ApprovalHistory()
    for number in range(MOST_REMEMBERED):
        history = history.after_denial(request(f"op{number}", E), 0)

    assert kind(next_prompt(history, request("new", E), 1e6)) == REFUSED
    assert kind(next_prompt(history, request("op1", E), 1e6)) == KEY


@pytest.mark.parametrize(
    ("ask", "trust", "wanted", "terminal", "seconds", "patience"),
    [
        (True, Trust.TRUSTED, None, True, None, 30.0),
        (True, Trust.TRUSTED, None, True, 5.0, 5.0),
        (True, Trust.TRUSTED, None, False, None, None),  # headless: nobody waits
        (True, Trust.TRUSTED, False, True, None, None),
        (True, Trust.UNTRUSTED, None, True, None, None),
        (False, Trust.TRUSTED, None, True, None, None),
        (False, Trust.TRUSTED, True, False, None, 30.0),
    ],
)
def test_a_run_asks_when_its_operator_says_so_or_its_profile_on_a_terminal(
    ask: bool, trust: Trust, wanted: bool | None, terminal: bool, seconds: float | None, patience: float | None
) -> None:
    profile = Profile(name="p", approvals=ApprovalSettings(ask=ask, timeout=30.0))

    assert patience_of(profile, trust, wanted=wanted, terminal=terminal, seconds=seconds) == patience


# Properties. An answer is (seconds since the one before, approved, operation, classes).
EFFECTS = st.frozensets(st.sampled_from([risk for risk in Risk if risk is not Risk.BLOCKED]), min_size=1, max_size=3)
ANSWERS = st.lists(st.tuples(st.floats(0, 90), st.booleans(), st.sampled_from("abcdef"), EFFECTS), max_size=30)


def lived(answers: list[tuple[float, bool, str, frozenset[Risk]]]) -> tuple[ApprovalHistory, float, list[float], list[Prompt]]:
    """Answer only what would be asked, as the rules have it. Returns the times of the approvals, and every prompt."""
    history, now, approved, prompts = ApprovalHistory(), 0.0, [], []
    for passed, yes, operation, effects in answers:
        now += passed
        asked = Request(operation=operation, effects=effects, content="c")
        prompts.append(prompt := next_prompt(history, asked, now))
        if isinstance(prompt, (Refuse, Approved)):
            continue
        history = history.after_approval(asked, now) if yes else history.after_denial(asked, now)
        approved += [now] if yes else []
    return history, now, approved, prompts


@given(ANSWERS, EFFECTS)
def test_nobody_approves_more_than_five_within_a_minute_without_a_word(
    answers: list[tuple[float, bool, str, frozenset[Risk]]], effects: frozenset[Risk]
) -> None:
    history, now, approved, _ = lived(answers)
    recent = sum(now - at < WINDOW for at in approved)

    prompt = next_prompt(history, Request(operation="new", effects=effects), now)

    assert isinstance(prompt, TypedWord) or recent < MOST_OF_ALL
    assert isinstance(prompt, SingleKey) or recent >= MOST_OF_A_CLASS


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from("abcdef"), EFFECTS, st.booleans()), max_size=60))
def test_no_order_of_approvals_gets_past_the_word_and_nothing_forbidden_is_ever_remembered(
    wanted: list[tuple[float, str, frozenset[Risk], bool]],
) -> None:
    """Somebody says yes to everything that takes a single key, for the session wherever he can: what does he get?"""
    history, now, got = ApprovalHistory(), 0.0, list[tuple[float, frozenset[Risk]]]()
    for passed, operation, effects, session in wanted:
        now += passed
        asked = Request(operation=operation, effects=effects, content="c")
        prompt = next_prompt(history, asked, now)
        if isinstance(prompt, Approved):
            assert not effects & NEVER_FOR_A_SESSION
        if isinstance(prompt, SingleKey):
            history = history.after_approval(asked, now, session=session and prompt.session)
            got.append((now, effects))
    for at, _ in got:
        window = [effects for when, effects in got if at - WINDOW < when <= at]
        assert len(window) <= MOST_OF_ALL
        assert all(sum(risk in effects for effects in window) <= MOST_OF_A_CLASS for risk in Risk)


@given(ANSWERS)
def test_no_operation_is_denied_by_hand_more_often_than_three_times_in_a_row(answers: list[tuple[float, bool, str, frozenset[Risk]]]) -> None:
    history, *_ = lived(answers)

    assert all(known.count <= len(BACK_OFF) + 1 for known in history.denied.values())


@given(ANSWERS)
def test_nothing_is_approved_beforehand_unless_somebody_said_for_the_session(
    answers: list[tuple[float, bool, str, frozenset[Risk]]],
) -> None:
    *_, prompts = lived(answers)

    assert not any(isinstance(prompt, Approved) for prompt in prompts)


@given(ANSWERS, EFFECTS, st.floats(0, 2 * SESSION_SECONDS))
def test_a_session_never_covers_what_cannot_be_undone(
    answers: list[tuple[float, bool, str, frozenset[Risk]]], effects: frozenset[Risk], later: float
) -> None:
    history, now, *_ = lived(answers)
    remembered = Request(operation="new", effects=frozenset({E}), content="c")
    history = history.after_approval(remembered, now, session=True)

    prompt = next_prompt(history, Request(operation="new", effects=effects, content="c"), now + later)

    assert isinstance(prompt, Approved) == (not effects & NEVER_FOR_A_SESSION and later < SESSION_SECONDS)


@given(ANSWERS, EFFECTS, st.floats(0, 100))
def test_time_alone_only_makes_it_easier_to_answer(
    answers: list[tuple[float, bool, str, frozenset[Risk]]], effects: frozenset[Risk], later: float
) -> None:
    history, now, *_ = lived(answers)
    order = [KEY, WORD, REFUSED]
    for operation in "ab":
        asked = Request(operation=operation, effects=effects)
        first, then = (kind(next_prompt(history, asked, at)) for at in (now, now + later))
        assert order.index(then) <= order.index(first)
