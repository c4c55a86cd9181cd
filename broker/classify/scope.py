"""Step 2: what is known while a text is read: variables, the working directory, and the parts found so far."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from broker.classify.context import Context
from broker.classify.risk import Part, PartKind, Reason, Risk
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.classify.word import Word

UNKNOWN = "\U0010fffe"
"""Stands, in a word's text, for a piece that cannot be known. No program is ever given this character."""

TAME = "\U0010ffff"
"""Stands for a piece that is not known but holds no slash, no blank and no leading dash: a number, a date, a name."""

MAX_WORDS = 4096
MAX_TEXT = 64 * 1024
SAME_RULE = 64  # reasons by one rule that a part names: nobody reads the other four thousand files of an `rm`
MAX_DEPTH = 12


@dataclass(slots=True)
class Stdin:
    """Where a command reads from: `kind` is pipe, file or text; `text` is what it will read, if known.

    `names` are the paths that it will read, one a line, with unknown pieces marked.
    """

    kind: str
    text: str | None = None
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Scope:
    """What a shell knows at one point of a text.

    `cwd` is None once it cannot be followed. `guesses` names variables whose value is likely, not certain:
    good enough to judge by, not to say what argv a program gets.
    """

    cwd: str | None
    variables: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    stdin: Stdin | None = None
    previous_cwd: str | None = None
    guesses: set[str] = field(default_factory=set)

    def guess_all(self) -> Scope:
        """What runs later (a function, a trap) may find other values: none of these is exact there."""
        self.guesses.update(self.variables)
        return self

    def copy(self) -> Scope:
        """A subshell's view: it starts equal, and what it changes stays in it."""
        return Scope(
            self.cwd,
            dict(self.variables),
            set(self.exported),
            set(self.functions),
            self.stdin,
            self.previous_cwd,
            set(self.guesses),
        )

    def merge(self, branch: Scope) -> None:
        """Something may or may not have run (a branch, a loop): what it changed is no longer known."""
        for name, value in branch.variables.items():
            if self.variables.get(name) != value:
                self.variables[name] = UNKNOWN
        for name in self.variables.keys() - branch.variables.keys():  # unset
            self.variables[name] = UNKNOWN
        self.guesses |= branch.guesses
        if branch.cwd != self.cwd:
            self.cwd = None
        # A function that may not have been defined does not take a program's place: it is not added.
        self.exported |= branch.exported


class Finding:
    """The effects of one part, while they are being collected."""

    __slots__ = ("_told", "effects", "reasons")

    def __init__(self) -> None:
        self.effects: set[Risk] = set()
        self.reasons: list[Reason] = []
        self._told: dict[tuple[str, Risk], set[str]] = {}

    def add(self, risk: Risk, rule: str, text: str, span: tuple[int, int] | None = None) -> None:
        """Record one effect and why. The same again is dropped, and so is what one rule says after many times."""
        self.effects.add(risk)
        told = self._told.setdefault((rule, risk), set())
        if text not in told and len(told) < SAME_RULE:
            told.add(text)
            self.reasons.append(Reason(rule=rule, risk=risk, text=text, span=span))


class TooMuch(Exception):
    """The text is larger or deeper than we are willing to read. `rule` is the reason's id."""

    def __init__(self, why: str, rule: str) -> None:
        super().__init__(why)
        self.why, self.rule = why, rule


class Inquiry:
    """One question to the classifier: the context, and the parts found so far.

    `part_of` and `span_of` say where new parts hang and how their positions map to the original text.
    """

    def __init__(self, context: Context, read_text: Callable[..., object], judge: Callable[..., int]) -> None:
        """Take the context, and the two judges that call each other: of a shell text, and of a command."""
        self.context = context
        self.read_text = read_text
        self.judge = judge
        self.parts: list[Part | None] = []
        self.words = 0
        self.depth = 0
        self.aliases: set[str] = set()
        self.functions: set[str] = (
            set()
        )  # those that are defined anywhere, perhaps only after what calls them
        self.fixed_span: tuple[int, int] | None = None
        self.joins: tuple[int, ...] = ()

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Map a span of the text being read to the original text."""
        if self.fixed_span is not None:
            return self.fixed_span
        if self.joins:
            return (
                start + 2 * bisect_right(self.joins, start),
                end + 2 * bisect_left(self.joins, end),
            )
        return (start, end)

    def count(self, words: int) -> None:
        """Account for words read. Raises TooMuch."""
        self.words += words
        if self.words > MAX_WORDS:
            raise TooMuch(f"It has more than {MAX_WORDS} words.", "text.too_large")

    def open(self) -> int:
        """Reserve a place, so that a command stands before the parts inside it."""
        self.parts.append(None)
        return len(self.parts) - 1

    def close(
        self,
        index: int,
        kind: PartKind,
        finding: Finding,
        *,
        words: Iterable[Word] = (),
        static: bool = False,
        span: tuple[int, int] | None = None,
        within: int | None = None,
    ) -> None:
        """Fill the place."""
        self.parts[index] = Part(
            kind=kind,
            argv=tuple([shown(word.text) for word in words]),
            static=static,
            effects=frozenset(finding.effects or (Risk.SAFE,)),
            reasons=tuple(finding.reasons),
            span=span,
            within=within,
        )

    def add(
        self,
        kind: PartKind,
        finding: Finding,
        span: tuple[int, int] | None,
        within: int | None = None,
    ) -> int:
        """Append a finished part that has no words."""
        index = self.open()
        self.close(index, kind, finding, span=span, within=within)
        return index


def shown(text: str) -> str:
    """A word as people may see it: what is not known shows as `…`."""
    if UNKNOWN in text or TAME in text:
        return text.replace(UNKNOWN, "…").replace(TAME, "…")
    return text
