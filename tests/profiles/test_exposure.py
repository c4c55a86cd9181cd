"""The mark of a profile: more open is never better, and the shipped ones are in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.decide.profile import Profile
from broker.profiles import load_profile
from broker.profiles.exposure import exposures, score, word_for

Made = Callable[..., Profile]


def mark(profile: Profile) -> float:
    return score(exposures(profile))


@pytest.mark.parametrize(
    ("more", "door"),
    [
        ('max_risk = "code_execution"', "class.code_execution"),
        ('effects.add = ["unknown"]', "class.unknown"),
        ('land.allow = ["contents.package-script"]', "land.allow"),
        ('allowlist = ["make"]', "entries"),
        ('allowlist = ["bash"]', "entry.open-door"),
        ('allowlist = [{ command = "make", effects = ["system_write"] }]', "entry.effects"),
        ('allowlist = ["git push"]', "entry.class"),
        ('env.pass = ["API_TOKEN"]', "env.secret"),
        ('env.pass = ["LANG"]', "env.pass"),
        ('sandbox.show = [".env"]', "sandbox.show"),
        ('sandbox.read_only = ["/opt"]', "sandbox.read_only"),
        ('sandbox.workspace = "direct"', "sandbox.workspace"),
        ('requires = ["network"]', "requires.exec_gate"),
    ],
)
def test_each_door_is_named_and_makes_the_mark_worse(made: Made, more: str, door: str) -> None:
    closed = 'sandbox.memory = "1G"\nsandbox.time = "1h"'
    assert door not in {each.id for each in exposures(made(closed))}
    opened = made(f"{closed}\n{more}")
    assert door in {each.id for each in exposures(opened)}
    assert mark(opened) > mark(made(closed))


def test_one_wide_open_door_outweighs_many_closed_ones(made: Made) -> None:
    assert word_for(mark(made('effects.add = ["unknown"]\nsandbox.memory = "1G"'))) == "open"


def test_the_shipped_profiles_are_in_the_order_of_what_they_permit() -> None:
    marks = {name: mark(load_profile(name)) for name in ("research", "adversary", "default", "builder")}
    assert sorted(marks, key=lambda name: marks[name]) == ["research", "adversary", "default", "builder"]
    assert {word_for(each) for each in marks.values()} <= {"tight", "moderate"}


@pytest.mark.parametrize(("value", "word"), [(0.0, "tight"), (2.0, "tight"), (2.1, "moderate"), (7.0, "exposed"), (7.1, "open"), (10.0, "open")])
def test_a_mark_has_a_word(value: float, word: str) -> None:
    assert word_for(value) == word
