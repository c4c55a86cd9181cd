"""Step 2: brace expansion, on a word's raw text, before everything else, as bash does it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from itertools import pairwise
from typing import NamedTuple

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


MAX_MADE = 1 << 20
"""How many characters are put together for one word."""


def expand_braces(raw: str) -> list[str]:
    """Brace expansion, on the raw text, before everything else (as bash does it)."""
    braces = _braces(raw)
    # Nearly each brings at least one word more.
    if len(braces) > MAX_FIELDS:
        raise Unreadable("its braces expand to too many words", "text.too_large")
    return _expand(raw, 0, len(raw), braces, [MAX_MADE])


class _Brace(NamedTuple):
    """A brace that may expand: where it opens and closes, and the commas between its parts."""

    start: int
    close: int
    commas: list[int]


def _expand(raw: str, start: int, end: int, braces: list[_Brace], left: list[int]) -> list[str]:
    """Expand raw[start:end], whose braces these are."""
    for index, (opens, close, commas) in enumerate(braces):
        if opens == start and close == start + 1:
            continue  # `{}` at a word's start
        rest = braces[index + 1 :]
        inside = [brace for brace in rest if brace.close < close]
        if commas or any(brace.commas for brace in inside):  # `{x..{a,b}}` loses the outer ones
            middles = []
            for low, high in pairwise([opens, *commas, close]):
                pieces = [brace for brace in inside if low < brace.start and brace.close < high]
                middles += _expand(raw, low + 1, high, pieces, left)
        else:
            words = _range(raw[opens + 1 : close])
            if words is None:
                after = [brace for brace in rest if brace.start > close]
                return _joined(raw[start : close + 1], [""], _expand(raw, close + 1, end, after, left), left)
            middles = words
        tails = _expand(raw, close + 1, end, [brace for brace in rest if brace.start > close], left)
        return _joined(raw[start:opens], middles, tails, left)
    return [raw[start:end]]


def _joined(before: str, middles: list[str], tails: list[str], left: list[int]) -> list[str]:
    """Put the pieces together, up to the limits."""
    if len(middles) * len(tails) > MAX_FIELDS:
        raise Unreadable("its braces expand to too many words", "text.too_large")
    out = [before + middle + tail for middle in middles for tail in tails]
    left[0] -= sum(map(len, out))
    if left[0] < 0:
        raise Unreadable("its braces expand to too much text", "text.too_large")
    return out


class _Level:
    """Braces that wait for their end at one depth, first ones first, and what separates at that depth."""

    __slots__ = ("commas", "last", "waiting")

    def __init__(self, start: int | None = None) -> None:
        self.waiting = deque(() if start is None else (start,))
        self.commas: list[int] = []
        self.last = -1  # where a comma or `..` stood last


def _braces(raw: str) -> list[_Brace]:
    """The braces that are closed, in the order in which they open.

    A brace ends at the first `}` of its depth *behind a comma or `..`*: `{a},b}` is `a}` and `b`. So one that met a `}`
    too early waits on, at the depth around it. Each is looked at once: this is linear.
    """
    levels = [_Level()]
    braces: list[_Brace] = []
    at, length = 0, len(raw)
    while at < length:
        char = raw[at]
        level = levels[-1]
        if char == "{":
            levels.append(_Level(at))
        elif char == "}":
            while level.waiting and level.waiting[0] < level.last:
                start = level.waiting.popleft()
                braces.append(_Brace(start, at, level.commas[bisect_right(level.commas, start) :]))
                if len(braces) > MAX_FIELDS:
                    return braces
            if len(levels) > 1:
                levels.pop()
                around = levels[-1]
                if len(level.waiting) > len(around.waiting):
                    level.waiting.extendleft(reversed(around.waiting))
                    around.waiting = level.waiting
                else:
                    around.waiting.extend(level.waiting)
        elif char == ",":
            level.commas.append(at)
            level.last = at
        else:
            if char == "." and raw.startswith("..", at) and not raw.startswith("}", at + 2):
                level.last = at
            at = _skip_quoted(raw, at)
            continue
        at += 1
    return sorted(braces)


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
