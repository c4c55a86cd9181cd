"""Step 2: shell text. In goes a text and what is known (Scope); out come its parts in the Inquiry.

Two readers work together. tokens.py cuts the text into words, redirections and operators, exactly; it
leaves a shape of the same length in which every word is a run of `w`. tree-sitter-bash parses that shape
and says how lists, pipelines, loops and functions nest. What lies inside words never reaches the grammar,
so nothing there can be lost or misread by it. Where the two disagree the text is `unknown`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from broker.classify import paths
from broker.classify.continued_lines import join_continued_lines
from broker.classify.risk import PartKind, Risk
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
)
from broker.classify.secret_names import is_secret_name
from broker.classify.simple_command import ASSIGNMENT, CommandReader
from broker.classify.tokens import Kind, Token, Unreadable, cut
from broker.classify.word import Word

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

Span = tuple[int, int] | None

MAX_LOOP_VALUES = 8
MAX_TREE_DEPTH = 80


@cache
def _parser() -> Parser:
    from tree_sitter import Language, Parser

    return Parser(Language(_grammar()))


def _grammar() -> Any:
    """Return the address of the compiled grammar.

    The package's own module imports thirty others (importlib.resources, tempfile, urllib …) for a query that nobody asks
    for, a tenth of what a process spends before its first verdict: the binding in it is loaded alone.
    """
    from importlib.machinery import PathFinder

    package = PathFinder.find_spec("tree_sitter_bash")
    folders = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec("tree_sitter_bash._binding", folders) if folders else None
    if spec is None or spec.loader is None:
        import tree_sitter_bash  # packed in some other way

        return tree_sitter_bash.language()
    binding: Any = spec.loader.create_module(spec)
    spec.loader.exec_module(binding)
    return binding.language()


def read_text(
    inquiry: Inquiry,
    text: str,
    scope: Scope,
    within: int | None = None,
    fixed_span: Span = None,
    base: int = 0,
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
        _unknown(
            inquiry, text, unreadable.rule, f"This shell text cannot be read: {unreadable.why}.", within, base
        )
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
    if "(" in shape or "function" in shape:
        for one, other in pairwise(tokens):
            if one.kind is Kind.WORD and other.kind is Kind.OPERATOR and other.raw == "(":
                inquiry.functions.add(one.raw)
            elif one.kind is Kind.OPERATOR and one.raw == "function":
                inquiry.functions.add(other.raw)
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


class _Reader(CommandReader):
    """Walks one text's tree, with its tokens at hand."""

    # -- structure -------------------------------------------------------------------------------------

    level = 0

    def statements(self, node: Node, scope: Scope) -> None:
        """Walk a node's children in order."""
        for child in node.children:
            handler = _HANDLERS.get(child.type)
            if handler is not None:
                handler(self, child, scope.copy() if self.in_background(child) else scope)
            elif child.type not in _IGNORED:
                raise Unreadable(f"a {child.type.replace('_', ' ')} stands where none was expected")

    def in_background(self, node: Node) -> bool:
        """Whether `&` follows: then a subshell runs it, and what it changes stays there."""
        at = self.ends.get(node.end_byte) if "&" in self.text else None
        if at is None:
            return False
        at += 1
        while at < len(self.tokens) and self.tokens[at].kind is Kind.REDIRECT:
            at += 1
        return at < len(self.tokens) and self.tokens[at].raw == "&" and self.tokens[at].kind is Kind.OPERATOR

    def statement(self, node: Node, scope: Scope) -> None:
        handler = _HANDLERS.get(node.type)
        if handler is not None:
            self.level += 1
            if self.level > MAX_TREE_DEPTH:
                raise TooMuch("Commands nest too deeply.", "text.too_deep")
            handler(self, node, scope.copy() if self.in_background(node) else scope)
            self.level -= 1
        elif node.type not in _IGNORED:
            raise Unreadable(f"a {node.type.replace('_', ' ')} stands where none was expected")

    def chain(self, node: Node, scope: Scope) -> None:
        optional, certain = False, True
        inner = node.parent is not None and node.parent.type == "list"
        outer = self.maybe, self.certain
        if not inner:
            self.maybe = {}
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
            elif certain:
                self.statement(child, scope)
                certain = False
                if child.type != "list":
                    self.certain = set(scope.functions)
            else:
                before = dict(scope.variables)
                self.statement(child, scope)
                # It ran only if what stands before it succeeded: that is certain for the rest of the chain only.
                for name in before.keys() | scope.variables.keys():
                    if before.get(name) != scope.variables.get(name):
                        scope.guesses.add(name)
                        self.maybe.setdefault(name, before.get(name))
        if not inner:
            for name, earlier in self.maybe.items():
                if scope.variables.get(name) != earlier:
                    scope.variables[name] = UNKNOWN
            scope.functions &= self.certain
            self.maybe, self.certain = outer

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

    def forget_assigned(self, node: Node, body: Scope) -> None:
        """What a loop's body sets is not known when the body starts again."""
        setter = False
        for token in self.tokens[bisect_left(self.tokens, node.start_byte, key=_start) :]:
            if token.start >= node.end_byte:
                break
            if token.kind is not Kind.WORD:
                setter = token.raw in ("for", "select")
                continue
            match = ASSIGNMENT.match(token.raw)
            name = match.group(1) if match else token.raw if setter else ""
            if name in body.variables or (name.isidentifier() and not is_secret_name(name)):
                body.variables[name] = UNKNOWN
            setter = setter or token.raw in _SETTERS

    def loop(self, node: Node, scope: Scope) -> None:
        saved = scope.stdin
        scope.stdin = self.trailing_redirects(node, scope)
        body = scope.copy()
        self.forget_assigned(node, body)
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
        body_node = next(
            (child for child in node.children if child.type in ("do_group", "compound_statement")), None
        )
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
            self.forget_assigned(body_node, body)
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
                paths.find_entry(
                    "persistence", paths.resolve(value, scope.cwd, context), value, context, inside=True
                )
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
            if token.kind is Kind.WORD and any(mark in token.raw for mark in ("$", "`", "<(", ">(")):
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
        calls = sum(
            1 for part in self.inquiry.parts[before:] if part is not None and part.argv[:1] == (name,)
        )
        text = self.text[body.start_byte : body.end_byte]
        if calls and ("|" in text or "&" in text.replace("&&", "") or calls > 1):
            finding = Finding()
            span = self.inquiry.span(self.base + node.start_byte, self.base + node.end_byte)
            finding.add(
                Risk.BLOCKED, "shell.fork_bomb", f"The function {name} multiplies itself without end.", span
            )
            self.inquiry.add(PartKind.WHOLE, finding, span, self.within)
        scope.functions.add(name)
        for variable, value in inner.variables.items():
            if scope.variables.get(variable) != value:
                scope.variables[variable] = UNKNOWN

    # -- simple commands -------------------------------------------------------------------------------

    # -- redirections ----------------------------------------------------------------------------------

    # -- substitutions ---------------------------------------------------------------------------------


def _start(token: Token) -> int:
    return token.start


_SETTERS = frozenset(["read", "mapfile", "readarray", "getopts", "printf", "let", "unset"])


def _unglob(text: str) -> str:
    """A pattern's matches are names in its folder: each wild piece becomes an unknown name."""
    return re.sub(r"[*?]+|\[[^\]]*\]", TAME, text)


def _leaves(text: str) -> bool:
    """Whether a branch ends the shell, so that what it changed does not matter afterwards."""
    return text.startswith(("exit", "return", "die", "continue", "break")) or text.rstrip("; }").endswith(
        ("exit", "exit 1", "return", "return 1", "continue", "break")
    )


_UNREMARKABLE = re.compile(r"[A-Za-z0-9_\U0010ffff][\w.,@+\U0010ffff-]*/?")
_IGNORED = frozenset(
    [
        ";",
        ";;",
        ";&",
        ";;&",
        "&",
        "&&",
        "||",
        "|",
        "|&",
        "(",
        ")",
        "{",
        "}",
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "do",
        "done",
        "while",
        "until",
        "for",
        "select",
        "in",
        "case",
        "esac",
        "function",
        "!",
        "comment",
        "word",
        "variable_name",
    ]
) | {"\n", ""}
_HANDLERS = {
    "program": _Reader.statements,
    "list": _Reader.chain,
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
