"""Step 3: what an agent puts around the command that it was told to run, taken off again.

In: a program start's argv, and the shapes that an agent is known to use. Out: the command, and the path that each hole
held; or None. A shape is matched byte for byte: whatever differs from it, or has anything but the right thing in a hole, is
no wrapper, and is judged as it stands. Pure.

A shape is an argv with holes:

    %shell%     a shell of the system's: bash or sh, by name or from /bin or /usr/bin
    %word%      one word of shell text without expansions, which stands for the command: bare, or in quotation marks
    %command%   the command as it is: an argument by itself, or lines of their own
    %home%      a path in the agent's home, of plain letters
    %tmp%       a path in /tmp, of plain letters
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import lru_cache

from broker.values import dataclass

Shape = tuple[str, ...]

_HOLE = re.compile(r"%(shell|word|command|home|tmp)%")
_PLAIN = r"[A-Za-z0-9_+,.=@:-]"
_PATH = rf"(?:/{_PLAIN}+)+"
# One word that a shell takes as it is (bash(1), QUOTING): bare letters, single quotation marks, or a quotation mark by itself
# between double ones. Other double quotation marks expand things, and no agent writes them here.
_BARE = r"[A-Za-z0-9_+,./=@:%-]+"
_WORD = rf"(?:{_BARE}|'[^']*'(?:\"'\"'[^']*'|\\''[^']*')*)"
_SHELLS = r"(?:/usr)?/bin/(?:bash|sh)|bash|sh"
_LINES = r"(?s:.*[^\\])"  # a backslash at the end would join the command to the line behind it
_HOLES = {"shell": _SHELLS, "word": _WORD, "command": r"(?s:.*)", "tmp": _PATH, "home": _PATH}


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A command that stood in a wrapper: the shell that runs it, its text, and the paths in the wrapper's holes."""

    shell: str
    text: str
    paths: tuple[str, ...] = ()


def unwrap(argv: tuple[str, ...], shapes: tuple[Shape, ...], home: str) -> Unwrapped | None:
    """Return what stands in a wrapper of one of these shapes, or None.

    INVARIANT: the text is what the shell would have been handed; the rest of the wrapper names no program
    (tests/decide/test_wrapper.py, tests/property/test_wrapper.py).
    """
    return next((found for shape in shapes if (found := _match(argv, shape, home)) is not None), None)


def _match(argv: tuple[str, ...], shape: Shape, home: str) -> Unwrapped | None:
    if len(argv) != len(shape):
        return None
    shell, text, paths = "", "", []
    for word, pattern in zip(argv, shape, strict=True):
        found = _compiled(pattern).fullmatch(word)
        if found is None:
            return None
        for (name, _), value in zip(_holes(pattern), found.groups(), strict=True):
            match name:
                case "shell":
                    shell = value
                case "word":
                    text = _unquoted(value)
                case "command":
                    text = value
                case _:
                    if not _lies_in(value, home if name == "home" else "/tmp"):
                        return None
                    paths.append(value)
    return Unwrapped(shell=shell, text=text, paths=tuple(paths)) if shell else None


def _lies_in(path: str, folder: str) -> bool:
    return posixpath.normpath(path) == path and path.startswith(folder.rstrip("/") + "/")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    pieces, last = [], 0
    for name, (start, end) in _holes(pattern):
        hole = _LINES if name == "command" and pattern != "%command%" else _HOLES[name]
        pieces.append(f"{re.escape(pattern[last:start])}({hole})")
        last = end
    return re.compile("".join((*pieces, re.escape(pattern[last:]))))


def _holes(pattern: str) -> Iterator[tuple[str, tuple[int, int]]]:
    return ((found[1], found.span()) for found in _HOLE.finditer(pattern))


def _unquoted(word: str) -> str:
    """Return what a shell makes of a word that _WORD matches."""
    if not word.startswith("'"):
        return word
    return re.sub(r"'\"'\"'|'\\''", "\0", word)[1:-1].replace("\0", "'")


def shape_problem(shape: Shape) -> str:
    """Say what is wrong with a shape, or ''."""
    holes = [name for pattern in shape for name, _ in _holes(pattern)]
    if holes.count("shell") != 1 or shape[:1] != ("%shell%",):
        return "it must begin with %shell%, and name it once"
    if holes.count("word") + holes.count("command") != 1:
        return "it must hold exactly one %word% or %command%"
    if any("%command%" in pattern and pattern != "%command%" and "\n%command%\n" not in pattern for pattern in shape):
        return "%command% must be an argument by itself, or lines of their own"
    return ""
