"""Decode what other tools write: JSON with comments, and tables of which only some keys are ours to read."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=\s*(?://[^\n]*\s*|/\*.*?\*/\s*)*[}\]])', re.DOTALL)


def jsonc(text: str) -> dict[str, Any]:
    """Return the object of a JSON text that may hold comments and trailing commas. Raises ValueError."""
    plain = _TOKEN.sub(lambda found: found[0] if found[0].startswith('"') else " ", text.removeprefix("\ufeff"))
    table = json.loads(plain)
    if not isinstance(table, dict):
        raise ValueError("it holds no object")  # noqa: TRY004 - the text is wrong, not a type
    return table


def table(value: object) -> dict[str, Any]:
    """Return the value if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    """Return the texts of a list; a text alone is a list of one."""
    if isinstance(value, str):
        return [value]
    return [each for each in items(value) if isinstance(each, str)]
