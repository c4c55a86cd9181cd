"""What tools take, as JSON Schema, and the check of arguments against it: one table says both.

In: a schema, and a value that nobody trusts. Out: nothing, or Invalid with the place and the remedy. Only the words of
JSON Schema that stand below are known here (a test compares with a whole implementation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
NO_NUL = "^[^\\u0000]*$"  # what becomes an argument or a path cannot hold one

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list, tuple), "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
}  # fmt: skip


class Invalid(ValueError):
    """An argument that cannot be meant. `at` says which one."""

    def __init__(self, at: str, why: str) -> None:
        super().__init__(f"{at}: {why}" if at else why)
        self.at, self.why = at, why


def text(about: str, *, most: int, least: int = 0, nul: bool = False) -> dict[str, Any]:
    """Return the schema of a text of at most so many characters."""
    schema: dict[str, Any] = {"type": "string", "description": about, "maxLength": most}
    if least:
        schema["minLength"] = least
    return schema if nul else schema | {"pattern": NO_NUL}


def number(about: str, low: float, high: float, default: float, *, whole: bool = True) -> dict[str, Any]:
    """Return the schema of a number."""
    kind = "integer" if whole else "number"
    return {"type": kind, "description": about, "minimum": low, "maximum": high, "default": default}


def flag(about: str, *, default: bool) -> dict[str, Any]:
    """Return the schema of yes or no."""
    return {"type": "boolean", "description": about, "default": default}


def listing(about: str, items: Schema, *, most: int, least: int = 1) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "description": about, "items": items, "minItems": least, "maxItems": most}


def table(properties: Mapping[str, Schema], *required: str, about: str = "") -> dict[str, Any]:
    """Return the schema of an object that has these keys and no others."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema | ({"description": about} if about else {})


def check(schema: Schema, value: object, at: str = "") -> None:
    """Say what is wrong with a value. Raises Invalid. The branches of an `anyOf` are told apart by their type."""
    kinds = [one["type"] for one in schema.get("anyOf", (schema,)) if "type" in one]
    if kinds and not any(_is(kind, value) for kind in kinds):
        raise Invalid(at, f"it must be {' or '.join(_NAMES[kind] for kind in kinds)}, not {_kind(value)}")
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if _is(one["type"], value))
    if "enum" in schema and value not in schema["enum"]:
        raise Invalid(at, f"it is one of: {', '.join(map(str, schema['enum']))}")
    if isinstance(value, str):
        _check_text(schema, value, at)
    elif isinstance(value, Mapping):
        _check_table(schema, value, at)
    elif isinstance(value, (list, tuple)):
        _check_list(schema, value, at)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:  # NaN is neither
            raise Invalid(at, f"it is a number from {low:g} to {high:g}")


_NAMES = {
    "object": "an object", "array": "a list", "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false",
}  # fmt: skip


def _is(kind: str, value: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _NAMES.items() if _is(kind, value)), type(value).__name__)


def _check_text(schema: Schema, value: str, at: str) -> None:
    if len(value) > schema.get("maxLength", len(value)):
        raise Invalid(at, f"it has {len(value)} characters, and at most {schema['maxLength']} are taken")
    if len(value) < schema.get("minLength", 0):
        raise Invalid(at, "it is empty")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise Invalid(at, "it holds a NUL")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid(at, "it holds half of a character (a lone surrogate)") from None


def _check_list(schema: Schema, value: list[object] | tuple[object, ...], at: str) -> None:
    if len(value) > schema.get("maxItems", len(value)):
        raise Invalid(at, f"it has {len(value)} items, and at most {schema['maxItems']} are taken")
    if len(value) < schema.get("minItems", 0):
        raise Invalid(at, "it is empty")
    for index, item in enumerate(value):
        check(schema.get("items", {}), item, f"{at}[{index}]")


def _check_table(schema: Schema, value: Mapping[str, object], at: str) -> None:
    known = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            raise Invalid(f"{at}.{key}" if at else key, "it is missing")
    for key, item in value.items():
        where = f"{at}.{_shown(key)}" if at else _shown(key)
        if key in known:
            check(known[key], item, where)
        elif schema.get("additionalProperties") is False:
            raise Invalid(where, f"there is no such key. There are: {', '.join(known) or 'none'}{_near(key, known)}")


def _shown(key: object) -> str:
    shown = str(key)[:64]
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def _near(key: str, known: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key[:64], known, n=1)
    return f". Did you mean {near[0]}?" if near else ""
