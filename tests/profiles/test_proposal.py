"""From refusals to proposals: what is proposed, what is asked, and what never is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from broker.decide.profile import Profile
from broker.profiles.denials import REDACTED, Refusals
from broker.profiles.proposal import Kind, Suggestion, landing_question, suggest
from broker.record.redact import MARK

Made = Callable[..., Profile]
BODY = 'max_risk = "local_write"\nallowlist = ["make"]\ndenylist = ["tox"]'


def refused(*commands: str, task: str = "root", **more: Any) -> list[dict[str, Any]]:
    """The events of commands that were refused, as a run records them."""
    import shlex

    events: list[dict[str, Any]] = []
    for command in commands:
        operation = {"kind": "exec", "argv": shlex.split(command), "cwd": "/w", **more}
        events.append({"type": "exec.decided", "task": task, "run": "r1", "verdict": "deny", "operation": operation, "rule": "x"})
        events.append({"type": "task.denied", "task": task, "run": "r1", "tool": "exec", "what": command, "rule": "x"})
    return events


def repeated(command: str, count: int, task: str = "root") -> dict[str, Any]:
    return {"type": "task.denied.repeated", "task": task, "run": "r1", "tool": "exec", "what": command, "rule": "x", "count": count}


def found(profile: Profile, events: Iterable[dict[str, Any]], denies: tuple[str, ...] = ()) -> tuple[Suggestion, ...]:
    refusals = Refusals()
    refusals.add_run([{"type": "run.started", "run": "r1", "workspace": "/w"}, *events])
    return suggest(refusals, profile, denies).all


@pytest.mark.parametrize(
    ("command", "kind", "why"),
    [
        ("npm test", Kind.PROPOSAL, ""),
        ("npm ci", Kind.QUESTION, "it is install"),
        ("curl https://x.example", Kind.QUESTION, "it is network_egress, and there is no network to reach"),
        ("sudo ls", Kind.QUESTION, "it is system_write"),
        ("python3", Kind.QUESTION, "it is an interpreter that runs whatever it reads from its input"),
        ("python3 -c 'print(1)'", Kind.QUESTION, "its program is written out in the command, and will be another next time"),
        ("rm -rf /", Kind.NEVER, "it is destructive"),
        ("crontab x", Kind.NEVER, "it is persistence"),
        ("nobody-knows --x", Kind.NEVER, "it is unknown"),
        ("dd if=/dev/zero of=/dev/sda", Kind.NEVER, "it is blocked"),
        ("tox", Kind.NEVER, "Profile p denies every command that starts with `tox` (code_execution)"),
        ("./gradlew test", Kind.CANNOT, "./gradlew lies in the workspace, where the task can rewrite it"),
        ("npm test --token=redacted-sha256-2bb80d537b1d-6", Kind.CANNOT, "a secret was left out of the record, and an entry needs each word as it was"),
        ("make", Kind.PERMITTED, "the profile permits it: it was another then, or a task above refused it"),
    ],
)
def test_each_refusal_has_its_place_and_reason(made: Made, command: str, kind: Kind, why: str) -> None:
    (one,) = found(made(BODY), refused(command))
    assert (one.kind, one.why) == (kind, why)
    assert (one.number > 0) is (kind in {Kind.PROPOSAL, Kind.QUESTION})


def test_the_mark_of_a_secret_is_the_records_own() -> None:
    mark = "redacted-sha256-2bb80d537b1d-6"
    assert MARK.fullmatch(mark) and REDACTED.fullmatch(mark)
    assert MARK.pattern in REDACTED.pattern


def test_never_means_never_however_often_it_was_tried(made: Made) -> None:
    events = [*refused("rm -rf /", "npm test"), repeated("rm -rf /", 100_000)]
    counts = {each.commands[0][0]: (each.kind, each.count) for each in found(made(BODY), events)}
    assert counts == {"rm": (Kind.NEVER, 100_000), "npm": (Kind.PROPOSAL, 1)}


def test_counts_and_tasks_are_summed_over_the_tree(made: Made) -> None:
    events = [
        *refused("npm test"), repeated("npm test", 10), *refused("npm test", task="root/1"), repeated("npm test", 100, "root/1"),
        *refused("npm test", task="root/1/2"),
    ]  # fmt: skip
    (one,) = found(made(BODY), events)
    assert (one.count, one.tasks) == (111, ("root", "root/1", "root/1/2"))


def test_what_other_profiles_refused_is_left_out_unless_the_profile_is_new(made: Made) -> None:
    events = [
        {"type": "task.created", "task": "root", "profile": "p"}, {"type": "task.created", "task": "root/1", "profile": "q"},
        *refused("npm test"), *refused("cargo test", "npm test", task="root/1"),
    ]  # fmt: skip
    assert [(each.commands[0][0], each.count) for each in found(made(BODY), events)] == [("npm", 1)]
    assert [(each.commands[0][0], each.count) for each in found(made(BODY, "new"), events)] == [("npm", 2), ("cargo", 1)]


def test_eighty_commands_that_differ_in_one_word_are_one_question(made: Made) -> None:
    commands = [f"pytest tests/test_{number}.py -q" for number in range(80)]
    many, one = found(made(BODY), refused(*commands, "npm test"))[::-1]
    assert (one.kind, one.commands) == (Kind.PROPOSAL, (("npm", "test"),))
    assert (many.kind, len(many.commands), many.count) == (Kind.QUESTION, 80, 80)
    assert many.why.startswith("80 commands `pytest … -q` differ in one word")


def test_a_few_targets_by_name_are_several_commands(made: Made) -> None:
    kinds = [each.kind for each in found(made(BODY), refused("make build", "make lint", "make test"))]
    assert kinds == [Kind.PROPOSAL] * 3


def test_the_commands_of_a_refused_shell_text_are_proposed_and_not_the_shell(made: Made) -> None:
    (one,) = found(made(BODY), refused("bash -c 'npm test && make'"))[:1]
    assert [each.commands for each in found(made(BODY), refused("bash -c 'npm test && make'")) if each.kind is Kind.PROPOSAL] == [one.commands]
    assert one.commands == (("npm", "test"),)


def test_an_entry_that_would_not_match_is_not_proposed(made: Made) -> None:
    in_workspace = refused("jest x", path="/w/node_modules/.bin/jest", program="/w/node_modules/.bin/jest")
    (one,) = found(made(BODY), in_workspace)
    assert one.kind in {Kind.CANNOT, Kind.NEVER}
    loaded = refused("npm test", path="/usr/bin/npm", program="/usr/bin/npm", env=[["LD_PRELOAD", "/w/x.so"]])
    (other,) = found(made(BODY), loaded)
    assert other.kind in {Kind.CANNOT, Kind.NEVER}


def test_what_the_profiles_own_examples_forbid_is_not_proposed(made: Made) -> None:
    (one,) = found(made(BODY), refused("npm test"), ("cd web && npm test",))
    assert (one.kind, one.why) == (Kind.NEVER, "the profile's own denies has `cd web && npm test`")


def test_withheld_changes_are_questions_about_landing_and_never_about_what_git_runs(made: Made) -> None:
    rules = ("path.persistence:.github/workflows/", "path.persistence:.git/hooks/")
    refusals = Refusals()
    refusals.add_run(
        {"type": "file.decided", "task": "root", "run": "r", "verdict": "deny", "rule": rule, "operation": {"kind": "file_change", "path": "/w/x"}}
        for rule in (*rules, rules[0])
    )
    landings = suggest(refusals, made(BODY)).landings
    assert [(each.rule, each.count) for each in landings] == [(rules[0], 2), (rules[1], 1)]
    assert landing_question(rules[0]) == 'land.allow = ["path.persistence:.github/workflows/"]'
    assert landing_question(rules[1]) == ""
    assert suggest(refusals, made(f'{BODY}\nland.allow = ["{rules[0]}"]')).landings == landings[1:]


def test_only_what_is_picked_is_listed(made: Made) -> None:
    refusals = Refusals()
    refusals.add_run(refused("npm test", "npm ci", "cargo test"))
    both = suggest(refusals, made(BODY))
    assert [each.commands[0] for each in both.all] == [("cargo", "test"), ("npm", "test"), ("npm", "ci")]
    assert both.picked(None) == (("cargo", "test"), ("npm", "test"))
    assert both.picked([3, 1]) == (("cargo", "test"), ("npm", "ci"))


@pytest.mark.parametrize(
    "event",
    [
        {}, {"type": "exec.decided", "verdict": "deny"}, {"type": "exec.decided", "verdict": "deny", "operation": {"kind": "exec", "argv": "x"}},
        {"type": "exec.decided", "verdict": "deny", "operation": {"kind": "exec", "argv": []}}, {"type": "task.denied", "count": "many"},
        {"type": "task.created", "context": {"workspace": 3, "writable": "x"}}, {"type": "file.decided", "verdict": "deny", "operation": None},
    ],
)  # fmt: skip
def test_events_of_another_form_are_passed_over(made: Made, event: dict[str, Any]) -> None:
    assert [each.commands for each in found(made(BODY), [event, *refused("npm test")])] == [(("npm", "test"),)]
