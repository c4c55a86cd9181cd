"""Which events a reader means: by type, verdict, class, rule, task, profile, time and text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.errors import UsageError
from broker.record import event
from broker.record.select import Facts, Reader, RiskFilter, Selection, moment, needle, when

NOW = datetime(2026, 11, 30, 14, 5, 30, 250_000, tzinfo=UTC)


def facts(**fields: Any) -> Facts:
    return Reader().facts({"type": "exec.decided", "task": "root", **fields})


def chosen(selection: Selection, **fields: Any) -> bool:
    return selection.admits(facts(**fields))


@pytest.mark.parametrize(
    ("wanted", "task", "fits"),
    [
        ("root/1", "root/1", True), ("root/1", "root/1/2", True), ("root/1", "root/12", False), ("root/1", "root", False),
        ("root", "root/3/4", True), ("root/1", "", False),
    ],
)  # fmt: skip
def test_a_task_means_the_tree_below_it(wanted: str, task: str, fits: bool) -> None:
    assert chosen(Selection(tasks=(wanted,)), task=task) is fits


@pytest.mark.parametrize(
    ("wanted", "effects", "fits"),
    [
        ("install", ["local_write", "install"], True), ("install", ["network_egress"], False),
        (">=install", ["safe", "network_egress"], True), (">=install", ["install"], True), (">=install", ["code_execution"], False),
        (">install", ["install"], False), ("<install", ["code_execution"], True),
        ("==install", ["safe", "install"], True), ("==install", ["install", "unknown"], False), ("=install", ["install"], True),
        ("<=local_write", ["safe", "local_write"], True), ("<=local_write", ["local_write", "unknown"], False),
        (">= network-egress", ["unknown"], True), ("<=blocked", [], False), (">=safe", ["no_class_of_ours"], False),
    ],
)  # fmt: skip
def test_a_class_is_compared_by_the_worst_and_named_alone_by_any(wanted: str, effects: list[str], fits: bool) -> None:
    assert chosen(Selection(risk=RiskFilter.parse(wanted)), effects=effects) is fits


@pytest.mark.parametrize("wanted", ["", ">=", "harmless", "=>install", ">=install,unknown", "\x1b"])
def test_what_is_no_class_is_said_with_those_there_are(wanted: str) -> None:
    with pytest.raises(UsageError, match="safe, local_write"):
        RiskFilter.parse(wanted)


def test_a_denial_has_the_class_that_it_names() -> None:
    assert facts(type="task.denied", **{"class": "install"}).effects == ("install",)
    assert facts(type="task.created", effects=["safe", "local_write"]).effects == ()  # there: what is permitted


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("path.persistence", True), ("path.persistence:.git/hooks/", True), ("path", True), ("path.pers", False),
        ("path.persistence:", True), ("program.tee", True), ("program", True), ("profile", False),
    ],
)  # fmt: skip
def test_a_rule_is_meant_whole_or_as_a_group_and_any_rule_that_spoke_counts(wanted: str, fits: bool) -> None:
    reasons = [{"rule": "program.tee", "class": "local_write"}, {"rule": "path.persistence:.git/hooks/", "class": "persistence"}]
    assert chosen(Selection(rules=(wanted,)), rule="path.persistence:.git/hooks/", reasons=reasons) is fits


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("task.denied", "deny"), ("task.denied.repeated", "deny"), ("exec.race", "deny"), ("exec.unreadable", "deny"),
        ("exec.too_large", "deny"), ("call.refused", "deny"), ("run.started", ""), ("landing.failed", ""),
    ],
)  # fmt: skip
def test_what_refuses_by_its_type_is_a_refusal(kind: str, verdict: str) -> None:
    assert facts(type=kind).verdict == verdict


def test_a_task_has_the_profile_that_was_said_of_it_or_of_the_nearest_above() -> None:
    reader = Reader()
    said = [
        {"type": "run.started", "task": "root", "profile": "lead"},
        {"type": "exec.decided", "task": "root/1"},
        {"type": "task.created", "task": "root/1", "profile": "builder"},
        {"type": "exec.decided", "task": "root/1/7"},
        {"type": "exec.decided", "task": "root/2"},
        {"type": "exec.decided", "task": "root/1", "profile": "not-said-here"},
    ]
    assert [reader.facts(each).profile for each in said] == ["lead", "lead", "builder", "builder", "lead", "builder"]


def test_strange_events_have_facts_too() -> None:
    for strange in ({}, {"type": 5, "task": None, "verdict": 1, "effects": "x", "rule": [], "reasons": [1, {}], "time": []}):
        assert isinstance(Reader().facts(strange), Facts)
        assert when(strange) == 0


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-30T04:30:00Z", "2026-11-30T04:30:00+00:00"), ("2026-11-30T04:30:00+02:00", "2026-11-30T02:30:00+00:00"),
        ("2026-11-30T04:30", "2026-11-30T04:30:00+00:00"), ("2026-11-30", "2026-11-30T00:00:00+00:00"),
        ("14:05", "2026-11-30T14:05:00+00:00"), ("9:05:01", "2026-11-30T09:05:01+00:00"),
        ("today", "2026-11-30T00:00:00+00:00"), ("Yesterday", "2026-11-29T00:00:00+00:00"), ("now", NOW.isoformat()),
        ("10m", "2026-11-30T13:55:30.250000+00:00"), ("2h30m", "2026-11-30T11:35:30.250000+00:00"),
        ("1d ago", "2026-11-29T14:05:30.250000+00:00"), ("2w", "2026-11-16T14:05:30.250000+00:00"), ("90s", "2026-11-30T14:04:00.250000+00:00"),
        ("9999999w", "1970-01-01T00:00:00+00:00"),
    ],
)  # fmt: skip
def test_times_are_read_as_people_write_them(text: str, meant: str) -> None:
    assert moment(text, NOW) == int(datetime.fromisoformat(meant).timestamp() * 1_000_000)


@pytest.mark.parametrize("text", ["", "soon", "10", "m10", "2026-13-01", "25:00", "-10m", "10m10h", "ago"])
def test_what_is_no_time_is_said_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        moment(text, NOW)


def test_a_time_as_the_journal_writes_it_is_the_moment_that_it_names() -> None:
    assert when({"time": "2026-11-30T14:05:30.250001Z"}) == int(NOW.timestamp() * 1_000_000) + 1
    assert when({"time": "2026-11-30T14:05:30+00:00"}) == int(NOW.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("text", "argv", "found"),
    [
        ("curl https://x", ["curl", "https://x"], True), ("curl https://x", ["curl https://x"], True),
        ("l https", ["curl", "https://x"], True), ("é", ["café"], True), ('"q"', ['a "q" b'], True), ("\x1b[2J", ["\x1b[2J"], True),
        ("\udcff", ["\udcff"], True), ("curl  x", ["curl", "x"], False), ("CURL", ["curl"], False), ("curl.x", ["curlyx"], False),
        ("a\nb", ["a\nb"], True), ("x y", ["x", "z", "y"], False),
    ],
)  # fmt: skip
def test_a_text_is_looked_for_as_it_was_said_not_as_the_line_writes_it(text: str, argv: list[str], found: bool) -> None:
    line = event.encode({"operation": {"argv": argv}})
    word, exact = needle(text)
    assert (exact.search(line) is not None) is found
    assert not found or word in line
