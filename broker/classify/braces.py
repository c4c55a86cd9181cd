"""Step 2: brace expansion, on a word's raw text, before everything else, as bash does it."""

from __future__ import annotations

import re
from itertools import pairwise

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


MAX_STEPS = 4 * 64 * 1024
"""How many characters are looked at for one word: what stands in braces is looked at once a level."""


def expand_braces(raw: str, budget: int = MAX_FIELDS) -> list[str]:
    """Brace expansion, on the raw text, before everything else (as bash does it)."""
    return _expand(raw, budget, [MAX_STEPS])


def _expand(raw: str, budget: int, steps: list[int]) -> list[str]:
    for at, close, commas in _pairs(raw, steps):
        if commas:
            edges = [at, *commas, close]
            parts = [raw[start + 1 : end] for start, end in pairwise(edges)]
        else:
            numbers = _range(raw[at + 1 : close])
            if numbers is None:
                continue
            parts = numbers
        before, after = raw[:at], raw[close + 1 :]
        out: list[str] = []
        tails = _expand(after, budget, steps) if "{" in after else [after]
        for part in parts:
            for inner in _expand(part, budget, steps) if "{" in part else [part]:
                out += [before + inner + tail for tail in tails]
                if len(out) > budget:
                    raise Unreadable("its braces expand to too many words", "text.too_large")
        return out
    return [raw]


def _pairs(raw: str, steps: list[int]) -> list[tuple[int, int, list[int]]]:
    """The braces that are closed, outermost first: where each opens and closes, and the commas between its parts."""
    opened: list[tuple[int, list[int]]] = []
    pairs: list[tuple[int, int, list[int]]] = []
    at, length = 0, len(raw)
    steps[0] -= length
    if steps[0] < 0:
        raise Unreadable("it has too many braces", "text.too_large")
    while at < length:
        char = raw[at]
        if char == "{":
            opened.append((at, []))
        elif char == "}" and opened:
            start, commas = opened.pop()
            pairs.append((start, at, commas))
        elif char == "," and opened:
            opened[-1][1].append(at)
        elif char not in "},":
            at = _skip_quoted(raw, at)
            continue
        at += 1
    return sorted(pairs)


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
    if char in "<>" and raw.startswith("(", at + 1):
        return skip_parentheses(raw, at + 2, 0)
    if char == "$":
        following = raw[at + 1 : at + 2]
        if following == "{":
            return skip_braces(raw, at + 2, 0)
        if following == "(":
            return skip_parentheses(raw, at + 2, 0)
        if following == "'":
            return skip_ansi(raw, at + 2)
    return at + 1


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
