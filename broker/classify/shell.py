"""Step 2: shell text. In goes a text and what is known (Scope); out come its parts in the Inquiry.

Two readers work together. tokens.py cuts the text into words, redirections and operators, exactly; it
leaves a shape of the same length in which every word is a run of `w`. tree-sitter-bash parses that shape
and says how lists, pipelines, loops and functions nest. What lies inside words never reaches the grammar,
so nothing there can be lost or misread by it. Where the two disagree the text is `unknown`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from broker.classify import environment, output, paths
from broker.classify.programs import _SHELL, judge
from broker.classify.risk import PartKind, Reason, Risk
from broker.classify.scope import (
    MAX_DEPTH,
    MAX_TEXT,
    TAME,
    UNKNOWN,
    Finding,
    Inquiry,
    Scope,
    Stdin,
    TooMuch,
    shown,
)
from broker.classify.tokens import Kind, Token, Unreadable, cut
from broker.classify.words import MAX_VALUE, Expander, Word

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

Span = tuple[int, int] | None

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
MAX_LOOP_VALUES = 8
MAX_TREE_DEPTH = 80


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def join_continued_lines(text: str) -> tuple[str, tuple[int, ...]]:
    """Remove each backslash-newline that bash removes before it reads on; say where in the result they were.

    Inside single quotes (and comments) they stay. In the body of a quoted here-document bash keeps them and
    we do not: such a body is data, or is read again by a shell, which removes them then.
    """
    if "\\\n" not in text:
        return text, ()
    out: list[str] = []
    joins: list[int] = []
    at = size = 0
    single = double = False
    length = len(text)
    while at < length:
        char = text[at]
        step = 1
        if single:
            single = char != "'"
        elif char == "\\":
            if text.startswith("\n", at + 1):
                joins.append(size)
                at += 2
                continue
            step = 2
        elif char == '"':
            double = not double
        elif char == "'" and not double:
            single = True
        elif char == "#" and not double and (at == 0 or text[at - 1] in " \t\n;&|("):
            newline = text.find("\n", at)
            step = (length if newline < 0 else newline) - at
        out.append(text[at : at + step])
        size += step
        at += step
    return "".join(out), tuple(joins)


def read_text(
    inquiry: Inquiry, text: str, scope: Scope, within: int | None = None, fixed_span: Span = None, base: int = 0
) -> _Reader | None:
    """Read a whole shell text and judge what is in it. Text that cannot be read becomes an unknown part."""
    inquiry.depth += 1
    saved_span, saved_joins = inquiry.fixed_span, inquiry.joins
    if fixed_span is not None:
        inquiry.fixed_span = fixed_span
    try:
        if len(text) > MAX_TEXT:
            raise TooMuch(f"It is longer than {MAX_TEXT // 1024} KiB.", "text.too_large")
        if inquiry.depth > MAX_DEPTH:
            raise TooMuch("Texts within texts nest too deeply.", "text.too_deep")
        return _read(inquiry, text, scope, within, base)
    except Unreadable as unreadable:
        inquiry.joins = saved_joins
        _unknown(inquiry, text, unreadable.rule, f"This shell text cannot be read: {unreadable.why}.", within, base)
        return None
    finally:
        inquiry.depth -= 1
        inquiry.fixed_span, inquiry.joins = saved_span, saved_joins


def _unknown(inquiry: Inquiry, text: str, rule: str, why: str, within: int | None, base: int) -> None:
    finding = Finding()
    span = inquiry.span(base, base + len(text))
    finding.add(Risk.UNKNOWN, rule, why, span)
    inquiry.add(PartKind.WHOLE, finding, span, within)


def _read(inquiry: Inquiry, text: str, scope: Scope, within: int | None, base: int) -> _Reader:
    joined, joins = join_continued_lines(text)
    if joins and not inquiry.joins and inquiry.fixed_span is None and base == 0:
        inquiry.joins = joins
    if "\0" in joined:
        raise Unreadable("it holds a NUL character", "text.control")
    tokens, shape = cut(joined)
    reader = _Reader(inquiry, joined, tokens, scope, within, base)
    if tokens:
        root = _parser().parse(_ascii(shape)).root_node
        if root.has_error:
            raise Unreadable("its commands do not fit together", "text.unparsable")
        reader.statements(root, scope)
    return reader


def _ascii(shape: str) -> bytes:
    """The shape is ASCII by construction; reserved words are the only letters beside `w`."""
    return shape.encode("ascii", "replace")


class _Reader:
    """Walks one text's tree, with its tokens at hand."""

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
        self.expander = Expander(
            scope,
            inquiry.context.home,
            inquiry.context.scratch[0] if inquiry.context.scratch else "/tmp",
            self.substitute,
            self.notes,
        )
        self.level = 0

    # -- structure -------------------------------------------------------------------------------------

    def statements(self, node: Node, scope: Scope) -> None:
        """Walk a node's children in order."""
        for child in node.children:
            handler = _HANDLERS.get(child.type)
            if handler is not None:
                handler(self, child, scope)
            elif child.type not in _IGNORED:
                raise Unreadable(f"a {child.type.replace('_', ' ')} stands where none was expected")

    def statement(self, node: Node, scope: Scope) -> None:
        handler = _HANDLERS.get(node.type)
        if handler is not None:
            self.level += 1
            if self.level > MAX_TREE_DEPTH:
                raise TooMuch("Commands nest too deeply.", "text.too_deep")
            handler(self, node, scope)
            self.level -= 1
        elif node.type not in _IGNORED:
            raise Unreadable(f"a {node.type.replace('_', ' ')} stands where none was expected")

    def list(self, node: Node, scope: Scope) -> None:
        optional, certain = False, True
        for child in node.children:
            if child.type == "||":
                optional = True
            elif child.type == "&&":
                optional = False
            elif optional:
                branch = scope.copy()
                self.statement(child, branch)
                if not _leaves(self.text[child.start_byte : child.end_byte]):
                    scope.merge(branch)
                else:
                    scope.functions |= branch.functions
            elif certain:
                self.statement(child, scope)
                certain = False
            else:
                before = dict(scope.variables)
                self.statement(child, scope)
                # It ran only if what stands before it succeeded.
                scope.guesses.update(
                    name for name, value in scope.variables.items() if before.get(name) != value
                )

    def pipeline(self, node: Node, scope: Scope) -> None:
        stdin = scope.stdin
        for child in node.children:
            if child.type in ("|", "|&"):
                continue
            element = scope.copy()
            element.stdin = stdin
            before = self.commands
            self.last_output = None
            self.statement(child, element)
            text = self.last_output if self.commands == before + 1 else None
            names: tuple[str, ...] = ()
            if text is not None and (UNKNOWN in text or TAME in text):
                names, text = tuple(text.split("\n")), None
            stdin = Stdin("pipe", text, names)
        self.last_output = stdin.text or "\n".join(stdin.names) or None if stdin else None

    def negated(self, node: Node, scope: Scope) -> None:
        for child in node.children:
            if child.type != "!":
                self.statement(child, scope)

    def subshell(self, node: Node, scope: Scope) -> None:
        inner = scope.copy()
        inner.stdin = self.trailing_redirects(node, scope)
        self.statements(node, inner)

    def group(self, node: Node, scope: Scope) -> None:
        saved = scope.stdin
        scope.stdin = self.trailing_redirects(node, scope)
        self.statements(node, scope)
        scope.stdin = saved

    def conditional(self, node: Node, scope: Scope) -> None:
        saved = scope.stdin
        scope.stdin = self.trailing_redirects(node, scope)
        branch: Scope | None = None
        branches: list[Scope] = []
        for child in node.children:
            kind = child.type
            if kind == "then":
                branch = scope.copy()
                branches.append(branch)
            elif kind in ("elif_clause", "else_clause"):
                branch = scope.copy()
                branches.append(branch)
                self.statements(child, branch)
            elif kind == "fi":
                break
            else:
                self.statement(child, branch if branch is not None else scope)
        for one in branches:
            scope.merge(one)
        scope.stdin = saved

    def loop(self, node: Node, scope: Scope) -> None:
        saved = scope.stdin
        scope.stdin = self.trailing_redirects(node, scope)
        body = scope.copy()
        self.statements(node, body)
        scope.merge(body)
        scope.stdin = saved

    def for_loop(self, node: Node, scope: Scope) -> None:
        saved = scope.stdin
        scope.stdin = self.trailing_redirects(node, scope)
        at = self.starts.get(node.start_byte)
        if at is None or at + 1 >= len(self.tokens):
            raise Unreadable("a for without a name")
        head = self.tokens[at + 1]
        body_node = next((child for child in node.children if child.type in ("do_group", "compound_statement")), None)
        if body_node is None:
            raise Unreadable("a loop without a body")
        if head.kind is Kind.ARITHMETIC:
            self.expander.scope = scope
            self.expander.offset = self.base + head.start
            self.expander.arithmetic(head.raw)
            self.flush_notes(head)
            values: list[str] = []
            name = ""
        else:
            name = head.raw
            values = self.loop_values(at + 2, scope)
        for value in values or [""]:
            body = scope.copy()
            if name:
                body.variables[name] = value
                body.guesses.add(name)
            self.statements(body_node, body)
            if name:
                body.variables.pop(name, None)
                scope.variables.pop(name, None)
            scope.merge(body)
        if name:
            scope.variables[name] = values[0] if len(values) == 1 else UNKNOWN
        scope.stdin = saved

    def loop_values(self, at: int, scope: Scope) -> list[str]:
        """The values that a loop's variable takes, merged where they are alike, UNKNOWN where they are many."""
        tokens = self.tokens
        if at >= len(tokens) or tokens[at].raw != "in" or tokens[at].kind is not Kind.OPERATOR:
            return [UNKNOWN]
        words: list[Word] = []
        self.expander.scope = scope
        at += 1
        while at < len(tokens) and tokens[at].kind is Kind.WORD:
            token = tokens[at]
            words += self.expander.words(token.raw, self.base + token.start, self.base + token.end)
            at += 1
        if self.notes:
            self.flush_notes(tokens[at - 1])
        self.inquiry.count(len(words))
        values: list[str] = []
        for word in words:
            value = word.text if not word.glob else _unglob(word.text)
            if value not in values:
                values.append(value)
        if not values:
            return [UNKNOWN]
        if len(values) > 1 and all(_UNREMARKABLE.fullmatch(value) for value in values):
            context = self.inquiry.context
            if not any(
                paths.find_entry("persistence", paths.resolve(value, scope.cwd, context), value, context, inside=True)
                or paths.is_secret(value)
                for value in values
            ):
                # Plain names: what the body does is the same for each. As a program's name it stays unknown.
                return [TAME]
        return values if len(values) <= MAX_LOOP_VALUES else [UNKNOWN]

    def case(self, node: Node, scope: Scope) -> None:
        saved = scope.stdin
        scope.stdin = self.trailing_redirects(node, scope)
        at = self.starts.get(node.start_byte)
        if at is None:
            raise Unreadable("a case without a subject")
        self.expander.scope = scope
        subject = self.tokens[at + 1]
        self.expander.value(subject.raw, self.base + subject.start)
        self.flush_notes(subject)
        branches: list[Scope] = []
        for child in node.children:
            if child.type != "case_item":
                continue
            self.case_patterns(child, scope)
            branch = scope.copy()
            branches.append(branch)
            for inner in child.children:
                if inner.type in _HANDLERS:
                    self.statement(inner, branch)
        for branch in branches:
            scope.merge(branch)
        scope.stdin = saved

    def case_patterns(self, node: Node, scope: Scope) -> None:
        at = self.starts.get(node.start_byte)
        while at is not None and at < len(self.tokens):
            token = self.tokens[at]
            if token.kind is Kind.OPERATOR and token.raw == ")":
                break
            if token.kind is Kind.WORD and ("$" in token.raw or "`" in token.raw):
                self.expander.scope = scope
                self.expander.value(token.raw, self.base + token.start)
                self.flush_notes(token)
            at += 1

    def function(self, node: Node, scope: Scope) -> None:
        at = self.starts.get(node.start_byte)
        if at is None:
            raise Unreadable("a function without a name")
        if self.tokens[at].raw == "function":
            at += 1
        name = self.tokens[at].raw
        body = next((child for child in reversed(node.children) if child.type in _HANDLERS), None)
        if body is None:
            raise Unreadable("a function without a body")
        inner = scope.copy().guess_all()
        inner.stdin = None
        inner.functions.add(name)
        before = len(self.inquiry.parts)
        self.statement(body, inner)
        calls = sum(1 for part in self.inquiry.parts[before:] if part is not None and part.argv[:1] == (name,))
        text = self.text[body.start_byte : body.end_byte]
        if calls and ("|" in text or "&" in text.replace("&&", "") or calls > 1):
            finding = Finding()
            span = self.inquiry.span(self.base + node.start_byte, self.base + node.end_byte)
            finding.add(Risk.BLOCKED, "shell.fork_bomb", f"The function {name} multiplies itself without end.", span)
            self.inquiry.add(PartKind.WHOLE, finding, span, self.within)
        scope.functions.add(name)
        for variable, value in inner.variables.items():
            if scope.variables.get(variable) != value:
                scope.variables[variable] = UNKNOWN

    # -- simple commands -------------------------------------------------------------------------------

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
                if not words and kind is Kind.WORD and _ASSIGNMENT.match(token.raw):
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
        while at >= 0 and self.tokens[at].kind is Kind.REDIRECT:
            at -= 1
        return (
            at >= 0
            and self.tokens[at].kind is Kind.OPERATOR
            and self.tokens[at].raw in (")", "fi", "done", "esac", "}")
        )

    def simple(
        self,
        first: Token,
        last: Token,
        assignments: list[Token],
        tokens: list[Token],
        redirects: list[Token],
        scope: Scope,
    ) -> None:
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
            for token in tokens:
                if _ASSIGNMENT.match(token.raw):
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
        if not words:
            self.only_assignments(assignments, values, notes, span, scope)
            self.redirects(redirects, scope)
            return
        for text in values:
            self.note_assignment(text, notes, span)
        saved = scope.stdin
        scope.stdin = stdin
        judge(
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
        match = _ASSIGNMENT.match(token.raw)
        assert match is not None
        name, subscript, plus = match.groups()
        raw = token.raw[match.end() :]
        at = self.base + token.start + match.end()
        if subscript:
            self.expander.arithmetic(subscript)
        if raw.startswith("("):
            self.expander.offset = at
            inner = Expander(scope, self.expander.home, self.expander.scratch, self.substitute, self.notes, at)
            inner.value("=" + raw, at - 1)
            return f"{name}={UNKNOWN}"
        self.expander.guessed = False
        value = self.expander.value(raw, at) if raw else ""
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

    def note_assignment(self, text: str, notes: list[Reason], span: Span) -> None:
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
            expander.scan(token.raw)
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

    # -- redirections ----------------------------------------------------------------------------------

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
        context = self.inquiry.context
        if word.text.startswith("/dev/fd/"):
            return
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

    # -- substitutions ---------------------------------------------------------------------------------

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
        reader = read_text(self.inquiry, text, inner, self.within, None, at)
        self.expander.scope, self.expander.offset = scope, offset
        self.notes[:0] = saved_notes
        if reader is None or reader.last_output is None or reader.commands == 0:
            return UNKNOWN
        if reader.commands > 1 and not reader.piped_only():
            return UNKNOWN
        return reader.last_output.rstrip("\n")

    def piped_only(self) -> bool:
        """Whether the text is one pipeline."""
        return not any(
            token.kind is Kind.OPERATOR and token.raw not in ("|", "|&", "\n") for token in self.tokens
        )


def _known(text: str) -> str | None:
    return None if UNKNOWN in text or TAME in text else text


def _unglob(text: str) -> str:
    """A pattern's matches are names in its folder: each wild piece becomes an unknown name."""
    return re.sub(r"[*?]+|\[[^\]]*\]", TAME, text)


def _leaves(text: str) -> bool:
    """Whether a branch ends the shell, so that what it changed does not matter afterwards."""
    return text.startswith(("exit", "return", "die", "continue", "break")) or text.rstrip("; }").endswith(
        ("exit", "exit 1", "return", "return 1", "continue", "break")
    )


_UNREMARKABLE = re.compile(r"[A-Za-z0-9_\U0010ffff][\w.,@+\U0010ffff-]*/?")
_ARITHMETIC_TEST = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge)\s")
_DECLARATIONS = frozenset("export declare typeset local readonly".split())
_IGNORED = frozenset(
    "; ;; ;& ;;& & && || | |& ( ) { } \n if then else elif fi do done while until for select in case esac "
    "function ! comment word variable_name".split()
) | {"\n", ""}
_HANDLERS = {
    "program": _Reader.statements,
    "list": _Reader.list,
    "pipeline": _Reader.pipeline,
    "command": _Reader.command,
    "negated_command": _Reader.negated,
    "subshell": _Reader.subshell,
    "compound_statement": _Reader.group,
    "do_group": _Reader.statements,
    "if_statement": _Reader.conditional,
    "elif_clause": _Reader.statements,
    "else_clause": _Reader.statements,
    "while_statement": _Reader.loop,
    "for_statement": _Reader.for_loop,
    "case_statement": _Reader.case,
    "function_definition": _Reader.function,
}

_SHELL["read"] = read_text
