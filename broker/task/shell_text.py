"""The text that a shell was given, and which part of it a program comes from that the shell starts now.

In: the starts of shells, as the guard saw them, and later a process that wants to start something. Out: the text, and the place
of the one command in it that is just that start; no place where several are, or none, or where the words are made while it runs.
Nothing is guessed: only a shell, or what it forked and what has not become another program since, is the shell of its text.
"""

from __future__ import annotations

import os
import posixpath
from collections import OrderedDict
from dataclasses import field

from broker.task.sight import parent_of
from broker.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.classify.context import Context

MOST_SHELLS = 256  # that are remembered, the latest
MOST_FORKS = 16  # between a shell and a process of its own
AROUND = 1_000  # characters of the text on either side of the part, or of all of it where no part is known
_SHELLS = frozenset({"sh", "bash", "rbash", "dash"})
_WITH_A_WORD = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellPart:
    """A shell's text. `start` and `end` are where the part stands in it, None where nobody can say."""

    text: str
    start: int | None = None
    end: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as a channel gets it: escaped but for its line breaks, and no more of it than somebody reads."""
        first, last = (0, 0) if self.start is None or self.end is None else (self.start, self.end)
        begin, stop = max(0, first - AROUND), min(len(self.text), last + AROUND)
        before, part, after = _shown(self.text[begin:first]), _shown(self.text[first:last]), _shown(self.text[last:stop])
        place = (None, None) if self.start is None else (len(before), len(before) + len(part))
        return {"text": before + part + after, "start": place[0], "end": place[1], "cut": begin > 0 or stop < len(self.text)}


@dataclass(slots=True)
class ShellTexts:
    """The shells of one sandbox that were given a text, the latest ones. Called by the link's thread, while who asks is held."""

    _known: OrderedDict[int, tuple[int, tuple[str, ...]]] = field(default_factory=OrderedDict)  # by pid: when it began, its words

    def started(self, place: str, pid: int, argv: tuple[str, ...]) -> bool:
        """Note that a process is about to become this, if that is a shell with a text; says whether it is."""
        if not place or not text_of(argv):
            return False
        try:
            began = parent_of(place, pid)[1]
        except OSError:
            return True
        self._known.pop(pid, None)
        self._known[pid] = began, argv
        if len(self._known) > MOST_SHELLS:
            self._known.popitem(last=False)
        return True

    def shell_of(self, place: str, pid: int) -> tuple[str, ...]:
        """Return the words of the shell that a process is, or was forked from; (): it is of none whose text is known."""
        try:
            own, program = _words_of(place, pid), _program_of(place, pid)
            for _ in range(MOST_FORKS):
                above, began = parent_of(place, pid)
                known = self._known.get(pid)
                words = _words_of(place, pid)
                # A process can write over its own words, so that they are those of the shell: not what it runs (proc(5)).
                if words != own or _program_of(place, pid) != program:
                    break  # another program stands in between
                if known is not None and known[0] == began and words == _as_the_kernel_has_it(known[1]):
                    return known[1]
                pid = above
        except OSError:
            pass
        return ()


def text_of(argv: tuple[str, ...]) -> str:
    """Return the text that a shell is given with -c; '' for everything else."""
    if posixpath.basename(argv[0] if argv else "").lstrip("-") not in _SHELLS:
        return ""
    given, words = False, iter(argv[1:])
    for word in words:
        if word in _WITH_A_WORD:
            next(words, "")
        elif word[:1] in ("-", "+") and len(word) > 1:
            given = given or (word[0] == "-" and word[1] != "-" and "c" in word)
        else:
            return word if given else ""
    return ""


def part_of(shell: tuple[str, ...], argv: tuple[str, ...], context: Context) -> ShellPart | None:
    """Return the text that a shell was given, and where in it this start stands; None: it was given none."""
    from broker.classify import classify
    from broker.request.operation import ShellText

    text = text_of(shell)
    if not text:
        return None
    dialect = "bash" if posixpath.basename(shell[0]).lstrip("-") in ("bash", "rbash") else "sh"
    parts = classify(ShellText(text=text, dialect=dialect), context).parts
    spans = {part.span for part in parts if part.static and part.argv == argv and part.span is not None}
    if len(spans) != 1:
        return ShellPart(text=text)
    [(start, end)] = spans
    return ShellPart(text=text, start=start, end=end)


def _words_of(place: str, pid: int) -> bytes:
    with open(f"{place}/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def _program_of(place: str, pid: int) -> tuple[int, int]:
    facts = os.stat(f"{place}/proc/{pid}/exe")
    return facts.st_dev, facts.st_ino


def _as_the_kernel_has_it(argv: tuple[str, ...]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in argv)


def _shown(text: str) -> str:
    from broker.decide.wording import escape

    return "\n".join(escape(line) for line in text.split("\n"))
