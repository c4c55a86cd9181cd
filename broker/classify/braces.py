"""Step 2: brace expansion, on a word's raw text, before everything else, as bash does it."""

from __future__ import annotations

import re

from broker.classify.scope import TAME
from broker.classify.tokens import (
    MAX_FIELDS,
    Unreadable,
    skip_ansi,
    skip_backquotes,
    skip_braces,
    skip_double_quotes,
    skip_parentheses,
    skip_single_quotes,
)

_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")


MAX_STEPS = 500_000
"""How many characters are looked at for one word: each brace that is never closed is looked for to the end."""


def expand_braces(raw: str, budget: int = MAX_FIELDS) -> list[str]:
    """Brace expansion, on the raw text, before everything else (as bash does it)."""
    return _expand(raw, budget, [MAX_STEPS])


def _expand(raw: str, budget: int, steps: list[int]) -> list[str]:
    at, length = 0, len(raw)
    while at < length:
        at = _next_brace(raw, at)
        if at >= length:
            return [raw]
        parts, close = _alternatives(raw, at, steps)
        if parts is None:
            at += 1
            continue
        before, after = raw[:at], raw[close:]
        out: list[str] = []
        tails = _expand(after, budget, steps) if "{" in after else [after]
        for part in parts:
            for inner in _expand(part, budget, steps) if "{" in part else [part]:
                out += [before + inner + tail for tail in tails]
                if len(out) > budget:
                    raise Unreadable("its braces expand to too many words", "text.too_large")
        return out
    return [raw]


def _next_brace(raw: str, at: int) -> int:
    length = len(raw)
    while at < length:
        char = raw[at]
        if char == "{":
            return at
        at = _skip_quoted(raw, at)
    return length


def _skip_quoted(raw: str, at: int) -> int:
    char = raw[at]
    if char == "\\":
        return at + 2
    if char == "'":
        return skip_single_quotes(raw, at + 1)
    if char == '"':
        return skip_double_quotes(raw, at + 1)
    if char == "`":
        return skip_backquotes(raw, at + 1)
    if char == "$":
        following = raw[at + 1 : at + 2]
        if following == "{":
            return skip_braces(raw, at + 2, 0)
        if following == "(":
            return skip_parentheses(raw, at + 2, 0)
        if following == "'":
            return skip_ansi(raw, at + 2)
    return at + 1


def _alternatives(raw: str, at: int, steps: list[int]) -> tuple[list[str] | None, int]:
    """The alternatives of the brace that opens at `at`, and the index behind it; None if it is literal."""
    parts: list[str] = []
    start = cursor = at + 1
    level = 0
    length = len(raw)
    while cursor < length:
        steps[0] -= 1
        if steps[0] < 0:
            raise Unreadable("it has too many braces", "text.too_large")
        char = raw[cursor]
        if char == "{":
            level += 1
            cursor += 1
        elif char == "}":
            if level == 0:
                inner = raw[at + 1 : cursor]
                if parts:
                    return [*parts, raw[start:cursor]], cursor + 1
                return _range(inner), cursor + 1
            level -= 1
            cursor += 1
        elif char == "," and level == 0:
            parts.append(raw[start:cursor])
            cursor += 1
            start = cursor
        else:
            cursor = _skip_quoted(raw, cursor)
    return None, at + 1


def _range(inner: str) -> list[str] | None:
    match = _RANGE.fullmatch(inner)
    if not match:
        return None
    first, last, step = match.groups()
    stride = abs(int(step)) if step else 1
    stride = stride or 1
    if first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
        low, high = int(first), int(last)
        width = max(len(first), len(last)) if first.lstrip("-")[0] == "0" or last.lstrip("-")[0] == "0" else 0
        if abs(high - low) // stride > MAX_FIELDS:
            return [TAME]
        numbers = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
        return [str(number).zfill(width) for number in numbers]
    if len(first) == 1 and len(last) == 1 and first.isalpha() and last.isalpha():
        low, high = ord(first), ord(last)
        letters = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
        return [chr(letter) for letter in letters]
    return None
