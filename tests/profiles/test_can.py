"""`may`: yes, no or ask, with why and what would change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.classify.risk import Risk
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.profiles.can import EXAMPLES, Answer, may
from broker.profiles.effective import chain
from broker.profiles.judge import context_in, judge

Made = Callable[..., Profile]

BODY = 'max_risk = "local_write"\nallowlist = ["npm test", { command = "make", cwd = "tools" }]\ndenylist = ["git add"]'


def ask(profile: Profile, *command: str, trust: Trust = Trust.TRUSTED, headless: bool = False) -> Answer:
    return may(command, chain(profile, [], trust), context_in("/w"), headless=headless)


@pytest.mark.parametrize("risk", list(Risk))
def test_the_examples_of_a_class_are_of_that_class(made: Made, risk: Risk) -> None:
    for command in EXAMPLES[risk]:
        assert judge(command, made("")).assessment.risk is risk, command


@pytest.mark.parametrize(
    ("command", "verdict", "because"),
    [
        (("npm", "test"), "allow", "The allowlist of profile p has exactly `npm test`."),
        (("cd src && npm test | tee out",), "allow", "has exactly `npm test`"),
        (("touch", "x"), "allow", "It is local_write, which profile p permits."),
        (("ls",), "allow", "It is safe, which profile p permits."),
        (("npm", "tests"), "ask", "code_execution"),
        (("curl", "x"), "ask", "network_egress"),
        (("git", "add", "x"), "deny", "denies every command that starts with `git add`"),
        (("nobody-knows",), "deny", "unknown"),
        ((":(){ :|:& };:",), "deny", "This is blocked"),
    ],
)
def test_an_answer_says_why(made: Made, command: tuple[str, ...], verdict: str, because: str) -> None:
    answer = ask(made(BODY), *command)
    assert (answer.verdict, because in answer.because) == (verdict, True)


def test_where_nobody_can_be_asked_a_question_is_a_no(made: Made) -> None:
    assert ask(made(BODY), "make", "x").verdict == "ask"
    answer = ask(made(BODY), "make", "x", headless=True)
    assert answer.verdict == "deny"
    assert "Entries are exact. Profile p allows `make`" in answer.change


def test_what_an_entry_hangs_on_is_said(made: Made) -> None:
    assert "it must be started in tools" in ask(made(BODY), "make").unless
    assert ask(made(BODY), "npm", "test").unless == ("npm must be a program of the system, not one that the task could have written",)
    assert ask(made(BODY), "ls").unless == ()


def test_trust_is_named_where_it_is_the_reason(made: Made) -> None:
    profile = made('max_risk = "code_execution"')
    assert ask(profile, "make").verdict == "allow"
    answer = ask(profile, "make", trust=Trust.UNTRUSTED)
    assert (answer.verdict, answer.change) == ("deny", "A trusted task may: --trust trusted.")


@pytest.mark.parametrize("command", ["curl x", "git push --force", "crontab x", "sudo ls", "shutdown now"])
def test_nobody_is_talked_into_listing_what_reaches_out_plants_or_destroys(made: Made, command: str) -> None:
    answer = ask(made(BODY), *command.split(), headless=True)
    assert answer.verdict == "deny"
    assert "allowlist" not in answer.change


def test_an_entry_is_named_for_what_could_be_listed(made: Made) -> None:
    assert "`cargo test`" in ask(made(BODY), "cargo", "test", headless=True).change


def test_a_parent_has_its_say(made: Made) -> None:
    envelope = chain(made(BODY), [made("", "parent")])
    answer = may(("npm", "test"), envelope, context_in("/w"))
    assert (answer.verdict, "profile parent of the parent task" in answer.because) == ("ask", True)
