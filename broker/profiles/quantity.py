"""Sizes and times as operators write them: "2G", "1.5GiB", "30m", "1h30m", or plain numbers."""

from __future__ import annotations

import re

# Patterns are texts, compiled by `re` when they are first needed: most profiles hold no quantity.
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = r"(?i:([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?)"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_STEP = r"(?i:([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]))"
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,6})?"


def parse_size(value: int | str) -> int:
    """Return bytes; units are powers of 1024. Raises ValueError, with a sentence, for what is no size."""
    if isinstance(value, str):
        found = re.fullmatch(_SIZE, value.strip())
        if found is None:
            raise ValueError(f'{value!r} is not a size. Write bytes, or a number with K, M, G or T, as "2G"')
        value = int(float(found[1]) * _UNITS[found[2].lower()])
    if not 0 < value < 1 << 62:
        raise ValueError("a size must be above zero, and below 4 EiB")
    return value


def parse_time(value: float | str) -> float:
    """Return seconds. Raises ValueError, with a sentence, for what is no time."""
    if isinstance(value, str):
        value = _seconds(value.strip())
    if not 0 < value < 10**10:
        raise ValueError("a time must be above zero, and finite")
    return float(value)


def _seconds(text: str) -> float:
    if re.fullmatch(_NUMBER, text):
        return float(text)
    steps = re.findall(_STEP, text)
    if not steps or "".join(number + unit for number, unit in steps) != text:
        raise ValueError(f'{text!r} is not a time. Write seconds, or numbers with s, m, h or d, as "1h30m"')
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in steps)


def show_size(value: int) -> str:
    """Return the size in the largest unit that divides it."""
    for unit in ("T", "G", "M", "K"):
        if value % _UNITS[unit.lower()] == 0:
            return f"{value // _UNITS[unit.lower()]}{unit}"
    return str(value)


def show_time(seconds: float) -> str:
    """Return the time in the largest unit that divides it."""
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{seconds:g}s"
