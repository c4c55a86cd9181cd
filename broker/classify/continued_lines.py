"""Step 2, before everything: remove each backslash-newline that bash removes before it reads on.

In goes a text; out come the text without them, and where in it they were, so that spans can be mapped back.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from broker.classify.tokens import Unreadable, here_document

_INTERESTING = re.compile(r"[\\'\"#\n<]")


def join_continued_lines(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the joined text and the positions of the joins in it.

    Inside single quotes, comments and the bodies of quoted here-documents they stay: there they are text.
    """
    if "\\\n" not in text:
        return text, ()
    joiner = _Joiner(text)
    joiner.join()
    return "".join(joiner.out), tuple(joiner.joins)


class _Joiner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.out: list[str] = []
        self.joins: list[int] = []
        self.size = 0
        self.closing: dict[bool, dict[str, list[int]]] = {}

    def put(self, piece: str) -> None:
        self.out.append(piece)
        self.size += len(piece)

    def join(self) -> None:
        text, length, at = self.text, len(self.text), 0
        single = double = False
        bodies: list[tuple[str, bool, bool]] = []
        while at < length:
            match = _INTERESTING.search(text, at)
            stop = match.start() if match else length
            self.put(text[at:stop])
            at = stop
            if at >= length:
                break
            char = text[at]
            step = 1
            if single:
                single = char != "'"
            elif char == "\\":
                if text.startswith("\n", at + 1):
                    self.joins.append(self.size)
                    at += 2
                    continue
                step = 2
            elif char == '"':
                double = not double
            elif char == "'":
                single = not double
            elif char == "#" and not double and (at == 0 or text[at - 1] in " \t\n;&|("):
                newline = text.find("\n", at)
                step = (length if newline < 0 else newline) - at
            elif char == "<" and text.startswith("<<", at):
                if text.startswith("<<<", at):
                    step = 3
                else:
                    step = 2
                    found = _delimiter(text, at + 2)
                    if found is not None:
                        bodies.append(found[1])
                        step = found[0] - at
            elif char == "\n" and bodies:
                self.put("\n")
                at = self.copy_bodies(at + 1, bodies)
                bodies = []
                continue
            self.put(text[at : at + step])
            at += step

    def copy_bodies(self, at: int, bodies: list[tuple[str, bool, bool]]) -> int:
        """Copy here-documents' bodies; in unquoted ones, lines are joined as bash joins them."""
        for delimiter, tabs, quoted in bodies:
            end = self.end_of_body(at, delimiter, tabs=tabs)
            if end is None:
                continue  # no here-document after all (a shift, say), or one that is never closed
            body = self.text[at:end]
            pieces = [body] if quoted else body.split("\\\n")
            for index, piece in enumerate(pieces):
                if index:
                    self.joins.append(self.size)
                self.put(piece)
            at = end
        return at

    def end_of_body(self, at: int, delimiter: str, *, tabs: bool) -> int | None:
        """The index behind the closing line, or None if there is none.

        The lines are indexed once: a text of nothing but here-documents that are never closed has as many as lines.
        """
        if tabs not in self.closing:
            self.closing[tabs] = _closing_lines(self.text, tabs=tabs)
        starts = self.closing[tabs].get(delimiter, [])
        found = bisect_left(starts, at)
        if found == len(starts):
            return None
        newline = self.text.find("\n", starts[found])
        return len(self.text) if newline < 0 else newline + 1


def _closing_lines(text: str, *, tabs: bool) -> dict[str, list[int]]:
    """Where lines start, by the delimiter that they would be: the whole line, or what stands before a `)`."""
    lines: dict[str, list[int]] = {}
    at = 0
    for line in text.split("\n"):
        bare = line.lstrip("\t") if tabs else line
        for key in {bare, bare.partition(")")[0].rstrip()} if ")" in bare else (bare,):
            lines.setdefault(key, []).append(at)
        at += len(line) + 1
    return lines


def _delimiter(text: str, at: int) -> tuple[int, tuple[str, bool, bool]] | None:
    try:
        return here_document(text, at)
    except Unreadable:
        return None
