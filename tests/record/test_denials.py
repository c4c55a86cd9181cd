"""Denials are counted, not repeated, and neither the disk nor the memory can be flooded with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.classify.risk import Risk
from broker.decide.verdict import Deny, Layer
from broker.record import event
from broker.record.denials import KEPT, DenialLog
from broker.record.journal import Journal, read


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.create(tmp_path) as made:
        yield made


def _deny(what: str = "curl https://example.com", *effects: Risk, rule: str = "profile.max_risk") -> Deny:
    return Deny(
        what=what,
        effects=frozenset(effects or {Risk.NETWORK_EGRESS}),
        layer=Layer.PROFILE,
        rule=rule,
        reason="the profile permits up to local_write",
        hint="work without the network",
        approvable=True,
    )


def _counts(journal: Journal) -> list[int]:
    return [one["count"] for one in read(journal.path) if one["type"] == event.TASK_DENIED_REPEATED]


def test_the_first_denial_is_an_event_that_says_everything(journal: Journal) -> None:
    log = DenialLog(journal, "root/1")

    assert log.add("exec", _deny(), pid=7)

    (found,) = read(journal.path)
    assert (found["type"], found["task"], found["pid"]) == (event.TASK_DENIED, "root/1", 7)
    assert (found["class"], found["layer"], found["rule"]) == (
        "network_egress",
        "profile",
        "profile.max_risk",
    )
    assert found["hint"] == "work without the network"


def test_repetitions_are_counted_at_powers_of_ten_and_at_the_end(journal: Journal) -> None:
    log = DenialLog(journal)
    for _ in range(1234):
        log.add("exec", _deny())
    assert _counts(journal) == [10, 100, 1000]

    log.finish()
    log.finish()

    assert _counts(journal) == [10, 100, 1000, 1234]
    assert log.total == 1234
    assert [row["count"] for row in log.as_result()] == [1234]


def test_another_rule_or_tool_or_text_is_another_denial(journal: Journal) -> None:
    log = DenialLog(journal)

    assert log.add("exec", _deny("a"))
    assert log.add("exec", _deny("b"))
    assert log.add("write_file", _deny("a"))
    assert log.add("exec", _deny("a", rule="denylist"))
    assert not log.add("exec", _deny("a"))

    assert [row["count"] for row in log.as_result()] == [2, 1, 1, 1]


def test_the_result_names_the_worst_class_and_all_of_them(journal: Journal) -> None:
    log = DenialLog(journal)
    log.add("exec", _deny("curl x | sh", Risk.NETWORK_EGRESS, Risk.CODE_EXECUTION))

    (row,) = log.as_result()

    assert row == {
        "tool": "exec",
        "what": "curl x | sh",
        "class": "network_egress",
        "effects": ["code_execution", "network_egress"],
        "reason": "the profile permits up to local_write",
        "rule": "profile.max_risk",
        "layer": "profile",
        "hint": "work without the network",
        "approvable": True,
        "count": 1,
    }


def test_a_flood_of_different_denials_is_bounded_and_its_worst_class_is_kept(journal: Journal) -> None:
    log = DenialLog(journal)
    for number in range(KEPT + 250):
        log.add("exec", _deny(f"curl {number}"))
    log.add("exec", _deny("mkfs", Risk.DESTRUCTIVE))
    log.finish()

    rows = log.as_result()

    assert len(rows) == KEPT + 1
    assert (rows[-1]["tool"], rows[-1]["class"], rows[-1]["count"]) == ("*", "destructive", 251)
    assert log.total == KEPT + 251
    assert _counts(journal) == [10, 100, 251]


def test_a_very_long_attempt_is_shortened_but_still_told_from_another(journal: Journal) -> None:
    log = DenialLog(journal)

    assert log.add("exec", _deny("x" * 100_000 + "a"))
    assert log.add("exec", _deny("x" * 100_000 + "b"))

    assert all(len(row["what"]) <= 2000 for row in log.as_result())


def test_bytes_that_are_not_utf8_are_counted_like_others(journal: Journal) -> None:
    log = DenialLog(journal)

    assert log.add("exec", _deny("rm \udcff"))
    assert not log.add("exec", _deny("rm \udcff"))
