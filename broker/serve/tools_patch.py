"""Changing a text: exact replacement, and unified diffs. Pure: bytes in, bytes out, or DoesNotApply with the reason.

Nothing is guessed. What is to be replaced must be there as often as was said; a hunk must match byte for byte, at its
line or, when the lines have moved, at the only other place where it does.
"""

from __future__ import annotations

import re

from broker.values import dataclass

MOST_HUNKS = 500
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")


class DoesNotApply(ValueError):
    """The text is not what the change expects."""


def replaced(content: bytes, old: bytes, new: bytes, count: int = 1) -> bytes:
    """Return the content with `old` replaced, which must occur exactly `count` times."""
    if not old:
        raise DoesNotApply("old_string is empty: say which text is to be replaced")
    found = content.count(old)
    if found == 0:
        raise DoesNotApply("old_string does not occur in the file: read it again, and copy the text exactly")
    if found != count:
        raise DoesNotApply(
            f"old_string occurs {found} times, and count is {count}: give more of what is around it, or count {found}"
        )
    return content.replace(old, new)


@dataclass(frozen=True, slots=True)
class Hunk:
    """A piece of a diff. `line` is where `old` begins (from 1); of an insertion, the line that it comes after."""

    line: int
    old: bytes
    new: bytes


def patched(content: bytes, diff: bytes) -> bytes:
    """Return the content with a unified diff of one file applied."""
    starts = [0, *(match.end() for match in re.finditer(rb"\n", content))]
    pieces: list[bytes] = []
    at = 0
    for number, hunk in enumerate(hunks(diff), 1):
        begin = _place(content, starts, at, hunk, number)
        pieces += [content[at:begin], hunk.new]
        at = begin + len(hunk.old)
    return b"".join([*pieces, content[at:]])


def _place(content: bytes, starts: list[int], at: int, hunk: Hunk, number: int) -> int:
    """Return where a hunk belongs, at or after `at`."""
    index = hunk.line - 1 if hunk.old else hunk.line
    expected = starts[index] if 0 <= index < len(starts) else -1
    if not hunk.old:
        if expected < at:
            raise DoesNotApply(f"hunk {number} inserts after line {hunk.line}, which is not there")
        return expected
    if expected >= at and content.startswith(hunk.old, expected):
        return expected
    # Only where a line begins: behind a newline, or at the very beginning.
    first = at if content.startswith(hunk.old, at) and at in (0, len(content)) else _find(content, hunk.old, at)
    if first < 0:
        raise DoesNotApply(f"hunk {number} (line {hunk.line}) does not match the file: read it again, and make the diff anew")
    if _find(content, hunk.old, first + 1) >= 0:
        raise DoesNotApply(f"hunk {number} does not match at line {hunk.line}, and fits in several other places: give more context")
    return first


def _find(content: bytes, block: bytes, at: int) -> int:
    found = content.find(b"\n" + block, max(0, at - 1))
    return found + 1 if found >= 0 else -1


def hunks(diff: bytes) -> list[Hunk]:
    """Return the hunks of a diff of one file. Raises DoesNotApply for what is none."""
    lines = diff.splitlines(keepends=True) if b"\r" not in diff else re.findall(rb"[^\n]*\n|[^\n]+", diff)
    found: list[Hunk] = []
    at = 0
    while at < len(lines):
        if not lines[at].startswith(b"@@"):
            if found and lines[at].startswith((b"--- ", b"diff ")):
                raise DoesNotApply("the diff is of more than one file: give each file's by itself (batch_patch)")
            if found and lines[at].strip():
                raise DoesNotApply(f"line {at + 1} of the diff belongs to no hunk: the counts in `@@ -a,b +c,d @@` are wrong")
            at += 1
            continue
        if len(found) == MOST_HUNKS:
            raise DoesNotApply(f"the diff has more than {MOST_HUNKS} hunks")
        hunk, at = _hunk(lines, at)
        found.append(hunk)
    if not found:
        raise DoesNotApply("the diff has no hunk: it needs a line such as `@@ -1,3 +1,4 @@`")
    return found


def _hunk(lines: list[bytes], at: int) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[at])
    if match is None:
        raise DoesNotApply(f"line {at + 1} of the diff is no hunk's beginning: it looks like `@@ -1,3 +1,4 @@`")
    line, olds, news = (1 if group is None else int(group) for group in match.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    first = at + 1
    at = first
    while at < len(lines) and (len(old) < olds or len(new) < news):
        text = lines[at] if lines[at].endswith(b"\n") else lines[at] + b"\n"
        mark, rest = text[:1], text[1:]
        if mark in (b"\n", b"\r"):  # editors take the blank off an empty line of context
            mark, rest = b" ", text
        if mark not in (b" ", b"-", b"+"):
            break
        if mark != b"+":
            old.append(rest)
        if mark != b"-":
            new.append(rest)
        at += 1
        if at < len(lines) and lines[at].startswith(b"\\"):  # "\ No newline at end of file", of the line before
            for side in (old if mark != b"+" else [], new if mark != b"-" else []):
                if side:
                    side[-1] = side[-1].removesuffix(b"\n")
            at += 1
    if (len(old), len(new)) != (olds, news):
        raise DoesNotApply(
            f"the hunk at line {first} of the diff says {olds} old and {news} new lines, and has {len(old)} and {len(new)}"
        )
    return Hunk(line, b"".join(old), b"".join(new)), at
