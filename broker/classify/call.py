"""Step 2: one command while it is judged, and the readers that are registered to judge it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field

from broker.classify import environment, paths
from broker.classify.entries import Entry
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN, Finding, Inquiry, Scope, shown
from broker.classify.word import Word
from broker.values import dataclass

Span = tuple[int, int] | None


_MAY_BE_READ_OTHERWISE = re.compile(r"\[\[|\(\(|\{|\$['\"]|~")


@dataclass(slots=True)
class Call:
    """One command while it is judged: what the readers work with."""

    inquiry: Inquiry
    scope: Scope
    entry: Entry
    name: str
    words: list[Word]
    finding: Finding
    index: int
    span: Span
    marks: set[str] = field(default_factory=set)
    depth: int = 0

    def add(self, risk: Risk, rule: str, text: str) -> None:
        """Record an effect of this command."""
        self.finding.add(risk, rule, text, self.span)

    def read(self, word: Word, *, whole: bool = False) -> None:
        """The command reads this path."""
        paths.judge_read(
            self.finding, word.text, self.scope.cwd, self.inquiry.context, self.span, whole=whole
        )

    def write(self, word: Word, *, whole: bool = False) -> None:
        """The command creates or changes this path. `-` is the standard output."""
        if word.text and word.text != "-":
            paths.judge_write(
                self.finding, word.text, self.scope.cwd, self.inquiry.context, self.span, whole=whole
            )

    def delete(self, word: Word, *, whole: bool = False) -> None:
        """The command deletes this path."""
        if word.text:
            paths.judge_delete(
                self.finding, word.text, self.scope.cwd, self.inquiry.context, self.span, whole=whole
            )

    def command(self, words: list[Word]) -> None:
        """The command starts this one."""
        if words:
            self.inquiry.judge(
                self.inquiry,
                words,
                self.scope,
                span=self.place_of(words[0], words[-1]),
                within=self.index,
                depth=self.depth + 1,
            )

    def place_of(self, first: Word, last: Word) -> Span:
        """Where these words stand in the text; the whole command, if they are made up or come from elsewhere."""
        if self.span is None or last.end <= first.start:
            return self.span
        span = self.inquiry.span(first.start, last.end)
        return span if span is not None and self.span[0] <= span[0] and span[1] <= self.span[1] else self.span

    def shell(self, word: Word, dialect: str = "sh") -> None:
        """The command has a shell read this text."""
        if not word.known or (word.glob and not word.static):
            self.add(
                Risk.CODE_EXECUTION, "shell.dynamic_text", "A shell runs a text that cannot be known before."
            )
            return
        self.shell_text(word.text, dialect, at=self.place_of(word, word))

    def shell_text(self, text: str, dialect: str = "sh", at: Span = None) -> None:
        """The command has a shell read this text (a new shell: it inherits no plain variable). `at`: where it stands."""
        if dialect != "bash" and (dialect != "sh" or _MAY_BE_READ_OTHERWISE.search(text) is not None):
            from broker.classify.dialects import unlike_bash

            reason = unlike_bash(dialect, text)
            if reason is not None:
                self.add(reason.risk, reason.rule, reason.text)
        scope = Scope(self.scope.cwd, exported=set(), previous_cwd=self.scope.previous_cwd)
        for name in self.scope.exported:
            if name in self.scope.variables:
                scope.variables[name] = self.scope.variables[name]
        scope.stdin = self.scope.stdin
        self.inquiry.read_text(self.inquiry, text, scope, self.index, at or self.span)


Reader = Callable[[Call], None]
READERS: dict[str, Reader] = {}
"""The readers by the names that tables use."""


def reader(name: str) -> Callable[[Reader], Reader]:
    """Register a reader under the name that tables use. Raises ValueError for a name that has one."""

    def register(function: Reader) -> Reader:
        if name in READERS:
            raise ValueError(f"two readers are called {name!r}")
        READERS[name] = function
        return function

    return register


def set_variable(call: Call, name: str, value: str) -> None:
    """A variable is set for what follows, or for the command that this one starts."""
    why = environment.why_it_matters(name, value, call.inquiry.context)
    if why is not None:
        call.add(Risk.CODE_EXECUTION, f"environment.{name}", f"It sets {name}: {why}.")


ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)


def code_in(word: Word) -> str:
    """The code that an interpreter finds at this path, in words."""
    if shown(word.text) == "/dev/fd/…":
        return "what a substitution prints"
    if word.text in ("-", "/dev/stdin"):
        return "what comes in on its input"
    if shown(word.text) == "…":
        return "a file that cannot be known before"
    return f"the code in {shown(word.text)}"


def like(word: Word, text: str) -> Word:
    """Another text in a word's place."""
    known = UNKNOWN not in text and TAME not in text
    return Word(text, word.static and known, False, word.start, word.end)


def unknown_word(at: Word) -> Word:
    """A word that only the run will tell."""
    return Word(UNKNOWN, False, False, at.start, at.end)
