"""What may stand where in a profile's table, checked strictly: nothing is converted, nothing is guessed.

In: values as TOML and JSON give them. Out: the same values, lists as tuples and tables as named tuples, or
WrongShape with the keys that lead to the place. (A few lines of our own, because a refusal is most of all a
start from cold, and loading a library for it takes as long as Python itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Keys = tuple[str, ...]
Reader = Callable[[object, Keys], Any]
Shape = Mapping[str, Reader]

_WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
    type(None): "nothing",
}


class WrongShape(Exception):
    """A value of another type than its place wants. `keys` lead to it from the table that was read."""

    def __init__(self, problem: str, keys: Keys) -> None:
        super().__init__(problem)
        self.problem, self.keys = problem, keys


def one_of(*types: type | None) -> Reader:
    """Take a value of one of these types. True is no whole number, and 1 is no text."""
    wanted = tuple(type(None) if kind is None else kind for kind in types)

    def read(value: object, keys: Keys) -> object:
        if type(value) not in wanted:
            raise _other(value, keys, *(kind for kind in wanted if kind is not type(None)))
        return value

    return read


def list_of(item: Reader, *, or_none: bool = False) -> Reader:
    """Take a list of such items, as a tuple."""

    def read(value: object, keys: Keys) -> tuple[object, ...] | None:
        if value is None and or_none:
            return None
        if not isinstance(value, list):
            raise _other(value, keys, list)
        above, last = keys[:-1], keys[-1]
        return tuple([item(each, (*above, f"{last}[{at}]")) for at, each in enumerate(value)])

    return read


def table_of(shape: Shape, make: Callable[..., object], *, needs: Keys = (), or_text: bool = False) -> Reader:
    """Take a table with these keys, of which it must have what it `needs`, and make a value of it."""

    def read(value: object, keys: Keys) -> object:
        if or_text and isinstance(value, str):
            return value
        if not isinstance(value, dict):
            raise _other(value, keys, *((str, dict) if or_text else (dict,)))
        given = read_keys(shape, value, keys)
        for key in needs:
            if key not in value:
                raise WrongShape(f"object missing required field {key}", keys)
        return make(**given)

    return read


def tables_by_name(read_one: Reader) -> Reader:
    """Take a table of such values under any keys."""

    def read(value: object, keys: Keys) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _other(value, keys, dict)
        return {name: read_one(each, (*keys, name)) for name, each in value.items()}

    return read


def texts_by_name(value: object, keys: Keys) -> dict[str, str]:
    """Take a table of texts under any keys."""
    if not isinstance(value, dict):
        raise _other(value, keys, dict)
    text = one_of(str)
    return {name: text(each, (*keys, name)) for name, each in value.items()}


def read_keys(shape: Shape, table: Mapping[str, object], keys: Keys) -> dict[str, Any]:
    """Read each key of a table that holds only keys of this shape."""
    return {_FIELDS.get(key, key): shape[key](value, (*keys, key)) for key, value in table.items()}


_FIELDS = {"pass": "passed"}  # a keyword of Python


def _other(value: object, keys: Keys, *wanted: type) -> WrongShape:
    found = _WORDS.get(type(value), type(value).__name__)
    return WrongShape(f"expected {' or '.join(_WORDS[kind] for kind in wanted)}, got {found}", keys)
