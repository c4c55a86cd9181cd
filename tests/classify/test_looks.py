"""The tables of tools that show and change: what they list as a look can be read, and asks for something."""

from __future__ import annotations

from typing import Any

from broker.classify import tables
from broker.classify.entries import parse_entry
from broker.classify.roles import ROLES


def looks() -> list[tuple[str, dict[str, Any]]]:
    """Every entry that the reader of looks reads, with a name of it."""
    merged = tables.load()
    names = {number: name for name, number in merged["programs"].items()}
    return [
        (names[number], entry)
        for number, entry in enumerate(merged["entries"])
        if entry.get("reader") == "look"
    ]


def test_the_options_of_a_look_have_roles_that_exist() -> None:
    for name, raw in looks():
        entry = parse_entry(name, {"options": raw.get("looks", ""), "operands": raw.get("looked", "text...")})
        roles = {entry.repeated, *entry.prefix, *entry.suffix, *(o.role for o in entry.options.values())}
        assert roles - {""} <= ROLES, name


def test_every_tool_that_can_look_says_what_asks_for_it() -> None:
    for name, raw in looks():
        assert "!look" in raw.get("looks", "") or "shows" in raw or "few" in raw, name


def test_a_look_is_told_from_a_tool_that_already_is_harmless() -> None:
    for name, raw in looks():
        options = raw.get("options", "")
        assert raw.get("effects", "safe") != "safe" or "!" in options or "=run" in options, name
