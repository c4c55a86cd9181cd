"""Where things stand in a file: lines and columns of errors, and spans for edits."""

from __future__ import annotations

import pytest

from broker.profiles.places import Keys, Places

TOML = """\
# é comment
[profiles."a b"]
x = "ü"
list = ["one", { command = "two" }, # three
  'four']
effects.add = ["install"]

[profiles.c.sandbox]
cpus = 2
[[profiles.d.allowlist]]
command = "five"
[[profiles.d.allowlist]]
command = "six"
"""
JSON = '{"profiles": {"a b": {\n "list": ["one", {"command": "t\\u0077o"}]}}}'


def position(places: Places, keys: Keys) -> tuple[int, int]:
    found = places.nearest(keys)
    assert found is not None
    return places.position(found.key)


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        (("profiles", "a b"), (2, 2)),
        (("profiles", "a b", "x"), (3, 1)),
        (("profiles", "a b", "list", 0), (4, 9)),
        (("profiles", "a b", "list", 1, "command"), (4, 18)),
        (("profiles", "a b", "list", "two"), (4, 16)),
        (("profiles", "a b", "list", "four"), (5, 3)),
        (("profiles", "a b", "list", "no such word"), (4, 1)),
        (("profiles", "a b", "effects", "add"), (6, 1)),
        (("profiles", "c", "sandbox", "cpus"), (9, 1)),
        (("profiles", "d", "allowlist", 1, "command"), (13, 1)),
    ],
)
def test_each_value_of_a_toml_file_has_its_line_and_column(keys: Keys, where: tuple[int, int]) -> None:
    assert position(Places(TOML, ".toml"), keys) == where


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        (("profiles", "a b", "list"), (2, 2)),
        (("profiles", "a b", "list", 1, "command"), (2, 19)),
        (("profiles", "a b", "list", "two"), (2, 18)),
    ],
)
def test_each_value_of_a_json_file_has_its_line_and_column(keys: Keys, where: tuple[int, int]) -> None:
    assert position(Places(JSON, ".json"), keys) == where


def test_columns_count_characters_and_spans_count_bytes() -> None:
    places = Places('[profiles.p]\nx = { "ü" = 1, y = 2 }\n', ".toml")
    place = places["profiles", "p", "x", "y"]
    assert places.position(place.key) == (2, 16)
    assert places.raw[place.start : place.end] == b"2"


def test_what_is_nowhere_has_no_place() -> None:
    assert Places(TOML, ".toml").nearest(("nothing", "here")) is None
