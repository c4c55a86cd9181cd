"""Step 2: simple commands of a shell text: words, assignments, redirections, substitutions.

The tree's walk (shell.py) finds where a command starts; everything about the command itself is here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.classify import environment, output, paths
from broker.classify.braces import expand_braces
from broker.classify.risk import PartKind, Reason, Risk
from broker.classify.scope import TAME, UNKNOWN, Finding, Inquiry, Scope, Stdin
from broker.classify.subscripts import hides_a_command, quotes_a_command
from broker.classify.tokens import Kind, Token, Unreadable
from broker.classify.word import Word
from broker.classify.words import MAX_VALUE, Expander

if TYPE_CHECKING:
    from tree_sitter import Node

Span = tuple[int, int] | None

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_COMPARISONS = frozenset("= == != =~ < > -eq -ne -lt -le -gt -ge -ef -nt -ot".split())
_ARITHMETIC_TEST = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge)\s")
# `[[ -n $TOKEN ]]` tells whether it is set, and nothing of it.
_IS_SET = re.compile(r"""(?<=\s)-[nz]\s+(?:\$\w+|\$\{\w+(?::?-)?\}|"\$\w+"|"\$\{\w+(?::?-)?\}")(?=\s)""")
_DECLARATIONS = frozenset(["export", "declare", "typeset", "local", "readonly"])


class CommandReader:
    """Judges the commands of one text, with its tokens at hand."""

    def __init__(
        self, inquiry: Inquiry, text: str, tokens: list[Token], scope: Scope, within: int | None, base: int
    ) -> None:
        self.inquiry, self.text, self.tokens, self.within, self.base = inquiry, text, tokens, within, base
        self.starts = {token.start: index for index, token in enumerate(tokens)}
        self.ends = {token.end: index for index, token in enumerate(tokens)}
        self.notes: list[Reason] = []
        self.commands = 0
        self.last_output: str | None = None
        self.guessed_names: set[str] = set()
        # What parts of a chain that may not have run have set, and what it was before (shell.py).
        self.maybe: dict[str, str | None] = {}
        self.certain: set[str] = set()  # the functions that are defined whatever the rest of the chain does
        self.expander = Expander(
            scope,
            inquiry.context.home,
            inquiry.context.scratch[0] if inquiry.context.scratch else "/tmp",
            self.substitute,
            self.notes,
        )

    def command(self, node: Node, scope: Scope) -> None:
        """A simple command: the run of tokens around the node, up to the next operator."""
        tokens = self.tokens
        at = self.starts.get(node.start_byte)
        if at is None:
            raise Unreadable("the two readers disagree about where a command starts", "text.readers_disagree")
        first = at
        while first > 0 and tokens[first - 1].kind is Kind.REDIRECT and not self.follows_compound(first - 1):
            first -= 1
        assignments: list[Token] = []
        words: list[Token] = []
        redirects: list[Token] = []
        index = first
        total = len(tokens)
        last = tokens[at]
        while index < total:
            token = tokens[index]
            kind = token.kind
            if kind is Kind.OPERATOR:
                break
            if kind is Kind.REDIRECT:
                redirects.append(token)
            else:
                last = token
                if not words and kind is Kind.WORD and ASSIGNMENT.match(token.raw):
                    assignments.append(token)
                else:
                    words.append(token)
            index += 1
        if node.end_byte != last.end and (words or assignments):
            raise Unreadable("the two readers disagree about where a command ends", "text.readers_disagree")
        self.commands += 1
        self.last_output = None
        self.simple(tokens[first], tokens[index - 1], assignments, words, redirects, scope)

    def follows_compound(self, at: int) -> bool:
        """Whether the redirection at this place belongs to a compound command in front of it."""
        while at >= 0 and self.tokens[at].kind is Kind.REDIRECT:
            at -= 1
        return at >= 0 and self.tokens[at].closes

    def simple(
        self,
        first: Token,
        last: Token,
        assignments: list[Token],
        tokens: list[Token],
        redirects: list[Token],
        scope: Scope,
    ) -> None:
        """Expand a simple command's words, judge it, then its redirections."""
        inquiry, expander, base = self.inquiry, self.expander, self.base
        expander.scope = scope
        span = inquiry.span(base + first.start, base + last.end)
        if tokens and tokens[0].kind is not Kind.WORD:
            self.test(tokens[0], scope)
            self.redirects(redirects, scope)
            return
        words: list[Word] = []
        if tokens and tokens[0].raw in _DECLARATIONS:
            # Arguments of these expand like assignments: no splitting, a tilde behind `=`.
            for token in [piece for whole in tokens for piece in _in_pieces(whole)]:
                if ASSIGNMENT.match(token.raw):
                    text = self.assigned_value(token, scope)
                    known = UNKNOWN not in text and TAME not in text
                    words.append(Word(text, known, False, base + token.start, base + token.end))
                else:
                    words += expander.words(token.raw, base + token.start, base + token.end)
        else:
            for token in tokens:
                words += expander.words(token.raw, base + token.start, base + token.end)
        values = [self.assigned_value(token, scope) for token in assignments]
        stdin = self.stdin_of(redirects, scope) if redirects else scope.stdin
        notes = list(self.notes)
        self.notes.clear()
        if notes and words and words[0].text in ("[", "test") and not _compares(tokens):
            notes = [note for note in notes if note.rule != "secret.variable"]
        if not words:
            self.only_assignments(assignments, values, notes, span, scope)
            self.redirects(redirects, scope)
            return
        for text in values:
            self.note_assignment(text, notes, span)
        saved = scope.stdin
        scope.stdin = stdin
        inquiry.judge(
            inquiry,
            words,
            scope,
            span=span,
            within=self.within,
            assigned=bool(assignments),
            notes=notes,
        )
        self.last_output = output.of(words, stdin, scope, inquiry.context)
        scope.stdin = saved
        self.redirects(redirects, scope)

    def assigned_value(self, token: Token, scope: Scope) -> str:
        """Return `name=value` with the value expanded."""
        match = ASSIGNMENT.match(token.raw)
        assert match is not None
        name, subscript, plus = match.groups()
        raw = token.raw[match.end() :]
        at = self.base + token.start + match.end()
        if subscript:
            self.expander.arithmetic(subscript)
        if (subscript and quotes_a_command(subscript)) or (raw.startswith("(") and quotes_a_command(raw)):
            self.note_subscript()
        if raw.startswith("("):
            self.expander.offset = at
            inner = Expander(
                scope, self.expander.home, self.expander.scratch, self.substitute, self.notes, at
            )
            inner.value("=" + raw, at - 1)
            return f"{name}={UNKNOWN}"
        self.expander.guessed = False
        value = self.expander.value(raw, at) if raw else ""
        if hides_a_command(value):
            self.note_subscript()
        if self.expander.guessed:
            self.guessed_names.add(name)
        else:
            self.guessed_names.discard(name)
        if "~" in value and (":~" in raw or raw.startswith("~")):
            value = value.replace(":~/", f":{self.expander.home}/")
        if plus or subscript:
            previous = scope.variables.get(name)
            value = previous + value if plus and previous is not None and not subscript else UNKNOWN
        if len(value) > MAX_VALUE:
            value = UNKNOWN
        return f"{name}={value}"

    def note_subscript(self) -> None:
        """Note that a command waits in a subscript."""
        why = "A subscript in a value, or a quoted one, runs the command inside it when it is evaluated."
        self.notes.append(Reason(rule="shell.subscript", risk=Risk.CODE_EXECUTION, text=why))

    def note_assignment(self, text: str, notes: list[Reason], span: Span) -> None:
        """Note what setting this variable changes."""
        name, _, value = text.partition("=")
        why = environment.why_it_matters(name, value, self.inquiry.context)
        if why is not None:
            notes.append(
                Reason(
                    rule=f"environment.{name}",
                    risk=Risk.CODE_EXECUTION,
                    text=f"It sets {name}: {why}.",
                    span=span,
                )
            )

    def only_assignments(
        self, tokens: list[Token], values: list[str], notes: list[Reason], span: Span, scope: Scope
    ) -> None:
        """Judge assignments without a command: they last."""
        if not tokens and not notes:
            return
        for text in values:
            self.note_assignment(text, notes, span)
            name, _, value = text.partition("=")
            scope.variables[name] = value
            if name in self.guessed_names:
                scope.guesses.add(name)
            else:
                scope.guesses.discard(name)
        finding = Finding()
        for note in notes:
            finding.effects.add(note.risk)
            finding.reasons.append(note)
        self.inquiry.add(PartKind.ASSIGNMENT, finding, span, self.within)

    def test(self, token: Token, scope: Scope) -> None:
        """`[[ … ]]` and `(( … ))`: nothing but what is substituted in them runs."""
        expander = self.expander
        expander.offset = self.base + token.start
        if token.kind is Kind.ARITHMETIC or _ARITHMETIC_TEST.search(token.raw):
            expander.arithmetic(token.raw)
        else:
            expander.scan(_IS_SET.sub(lambda found: "x" * len(found[0]), token.raw))
        finding = Finding()
        for note in self.notes:
            finding.effects.add(note.risk)
            finding.reasons.append(note)
        self.notes.clear()
        if "[$(" in token.raw or "[`" in token.raw:
            finding.add(Risk.CODE_EXECUTION, "shell.subscript", "A subscript runs the command inside it.")
        span = self.inquiry.span(self.base + token.start, self.base + token.end)
        index = self.inquiry.open()
        word = Word(token.raw[:2], False, False, token.start, token.end)
        self.inquiry.close(index, PartKind.COMMAND, finding, words=(word,), span=span, within=self.within)

    def flush_notes(self, token: Token) -> None:
        """Words outside commands (a loop's list, a case's subject) may do things, too."""
        if not self.notes:
            return
        finding = Finding()
        for note in self.notes:
            finding.effects.add(note.risk)
            finding.reasons.append(note)
        self.notes.clear()
        span = self.inquiry.span(self.base + token.start, self.base + token.end)
        self.inquiry.add(PartKind.ASSIGNMENT, finding, span, self.within)

    def trailing_redirects(self, node: Node, scope: Scope) -> Stdin | None:
        """Redirections behind a compound command. Returns what its commands read."""
        at = self.ends.get(node.end_byte)
        found: list[Token] = []
        if at is not None:
            at += 1
            while at < len(self.tokens) and self.tokens[at].kind is Kind.REDIRECT:
                found.append(self.tokens[at])
                at += 1
        if not found:
            return scope.stdin
        stdin = self.stdin_of(found, scope)
        self.redirects(found, scope)
        return stdin

    def stdin_of(self, redirects: list[Token], scope: Scope) -> Stdin | None:
        """What a command with these redirections reads."""
        stdin = scope.stdin
        for token in redirects:
            if token.fd not in ("", "0"):
                continue
            if token.op == "<<<":
                stdin = Stdin("text", _known(self.expander.value(token.raw, self.base + token.target_start)))
                if stdin.text is not None:
                    stdin.text += "\n"
            elif token.op in ("<<", "<<-"):
                body = token.body or ""
                text = body if token.literal else self.expander.body(body, self.base + token.end)
                stdin = Stdin("text", _known(text))
                token.body, token.literal = text, True  # expanded once
            elif token.op in ("<", "<>"):
                stdin = Stdin("file")
        return stdin

    def redirects(self, redirects: list[Token], scope: Scope) -> None:
        """Judge each redirection as a part of its own."""
        for token in redirects:
            op = token.op
            if op in ("<<", "<<-"):
                if not token.literal and token.body:
                    self.expander.scope = scope
                    self.expander.body(token.body, self.base + token.end)
                self.flush_notes(token)
                continue
            if op == "<<<":
                self.flush_notes(token)
                continue
            raw = token.raw
            if op in (">&", "<&") and (raw == "-" or raw.rstrip("-").isdigit()):
                continue
            if raw == "/dev/null":
                continue
            self.expander.scope = scope
            word = self.expander.target(raw, self.base + token.target_start)
            finding = Finding()
            for note in self.notes:
                finding.effects.add(note.risk)
                finding.reasons.append(note)
            self.notes.clear()
            span = self.inquiry.span(self.base + token.start, self.base + token.end)
            self.redirect(op, word, finding, span, scope)
            index = self.inquiry.open()
            self.inquiry.close(
                index,
                PartKind.REDIRECT,
                finding,
                words=(Word(op, True, False, 0, 0), word),
                span=span,
                within=self.within,
            )

    def redirect(self, op: str, word: Word, finding: Finding, span: Span, scope: Scope) -> None:
        """Add what one redirection does to its target."""
        context = self.inquiry.context
        if word.text.startswith("/dev/fd/") and "/" not in word.text[8:]:
            return  # what is below one is a file in the folder that it is open on
        if op == "<&" or (op == ">&" and word.text == UNKNOWN):
            return
        if op == "<":
            paths.judge_read(finding, word.text, scope.cwd, context, span)
            return
        if not word.text:
            return
        paths.judge_write(finding, word.text, scope.cwd, context, span)
        if op == "<>":
            paths.judge_read(finding, word.text, scope.cwd, context, span)

    def substitute(self, text: str, scope: Scope, at: int, how: str) -> str:
        """Judge a command inside a word; return its output where that is known."""
        self.inquiry.count(1)
        inner = scope.copy()
        if how == "output":
            inner.stdin = Stdin("pipe")
        stripped = text.strip()
        if how == "command" and stripped.startswith("<") and not stripped.startswith(("<(", "<<")):
            pass  # $(<file): the redirection is judged like any other
        saved_notes = list(self.notes)
        self.notes.clear()
        offset = self.expander.offset
        reader = self.inquiry.read_text(self.inquiry, text, inner, self.within, None, at)
        self.expander.scope, self.expander.offset = scope, offset
        self.notes[:0] = saved_notes
        if not isinstance(reader, CommandReader) or reader.last_output is None or reader.commands == 0:
            return UNKNOWN
        if reader.commands > 1 and not reader.piped_only():
            return UNKNOWN
        return reader.last_output.rstrip("\n")

    def piped_only(self) -> bool:
        """Whether the text is one pipeline."""
        return not any(
            token.kind is Kind.OPERATOR and token.raw not in ("|", "|&", "\n") for token in self.tokens
        )


def _compares(tokens: list[Token]) -> bool:
    """Whether `[` holds a value against another one: without that it only tells whether there is a value."""
    return any(token.raw.strip("\"'\\") in _COMPARISONS or token.raw[:2] == "-l" for token in tokens[1:])


def _in_pieces(token: Token) -> list[Token]:
    """Braces are expanded before it is seen that a word assigns: `export x={a,b}` is `export x=a x=b`."""
    if "{" not in token.raw or not ASSIGNMENT.match(token.raw):
        return [token]
    return [Token(token.kind, token.start, token.end, piece) for piece in expand_braces(token.raw)]


def _known(text: str) -> str | None:
    return None if UNKNOWN in text or TAME in text else text
