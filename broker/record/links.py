"""Step 5: how a line follows the one before it, and what shows that it does not. Pure.

In: the lines of a journal, or of the chain file, one by one. Out: for each the event, or the sentence that says
what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from broker.record import event


def follow(
    line: bytes, number: int, head: str, required: AbstractSet[str], word: str = "event"
) -> tuple[dict[str, Any], str]:
    """Return what a line says, and what is wrong with it ("": nothing).

    `number` is the number that it must have, `head` the hash that it must refer to; `word` is what it is called.
    """
    try:
        found = event.decode(line)
    except ValueError as error:
        return {}, f"this is no {word} ({error}); it was altered"
    if not required <= found.keys():
        missing = ", ".join(sorted(required - found.keys()))
        return found, f"the {word} has no {missing}; it was altered"
    return found, _order(found, number, word) or _link(found, number, head, word) or _form(found, line)


def _order(found: dict[str, Any], number: int, word: str) -> str:
    seq = found["seq"]
    if type(seq) is not int or seq < 1:
        return f"the {word}'s number is {seq!r}; it was altered"
    if seq > number:
        missing = f"{word} {number} is" if seq == number + 1 else f"{_plural(word)} {number} to {seq - 1} are"
        return f"{missing} missing before this one (dropped, or put elsewhere)"
    if seq < number:
        return f"{word} {seq} stands in the place of {word} {number} (reordered, repeated or inserted)"
    return ""


def _link(found: dict[str, Any], number: int, head: str, word: str) -> str:
    if found["prev"] == head:
        return ""
    if number == 1:
        return f"the first {word} does not start a chain; it was altered, or lines before it were cut off"
    return f"it does not follow from line {number - 1} as that stands: one of the two was altered or replaced"


def _form(found: dict[str, Any], line: bytes) -> str:
    try:
        canonical = event.encode(found)
    except ValueError:
        canonical = b""
    return "" if canonical == line else "the line is not in the canonical form; it was altered"


def _plural(word: str) -> str:
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
