r"""Step 2, first reader: cut a shell text into tokens, exactly as bash does.

In goes a text; out come its tokens and its *shape*: a text of the same length in which every word is a
run of `w`, every redirection, comment and here-document body is blank, and only control operators and
reserved words are left. The shape is what tree-sitter reads (shell.py). Everything that a grammar made for
editors loses or misreads (backquotes in here-documents, `"$\<newline>(`, extglob, two here-documents on
one line, `time {`) lies inside words, redirections and bodies, and those are read here.

It never runs or expands anything. Text that cannot be cut raises Unreadable.
"""

from __future__ import annotations

import re
from enum import IntEnum

MAX_NESTING = 24
"""How deep quotes, substitutions and brackets may nest. Nothing people write comes near."""


MAX_TOKENS = 2 * 4096
"""More words and operators than this are not read."""


MAX_FIELDS = 256
"""More words than this are not made of one."""


class Unreadable(Exception):
    """The text is not shell that this reader understands. `rule` is the id of the reason."""

    def __init__(self, why: str, rule: str = "text.unparsable") -> None:
        super().__init__(why)
        self.why, self.rule = why, rule


class Kind(IntEnum):
    """What a token is."""

    WORD = 0
    OPERATOR = 1  # ; & && || | ( ) newline and reserved words: what shapes the text
    REDIRECT = 2
    TEST = 3  # [[ … ]]
    ARITHMETIC = 4  # (( … ))


class Token:
    """One token. `raw` is its text; a redirection also has its operator, descriptor, target and body."""

    __slots__ = ("body", "closes", "end", "fd", "kind", "literal", "op", "raw", "start", "target_start")

    def __init__(self, kind: Kind, start: int, end: int, raw: str) -> None:
        self.kind, self.start, self.end, self.raw = kind, start, end, raw
        self.op = ""
        self.fd = ""
        self.target_start = start
        self.body: str | None = None
        self.closes = False  # an operator that ends a compound command: redirections behind it are that one's
        self.literal = False  # a here-document whose delimiter was quoted: nothing in it expands


RESERVED_BEFORE_COMMAND = frozenset(["if", "then", "else", "elif", "do", "while", "until", "!", "{"])
RESERVED_AFTER_COMMAND = frozenset(["fi", "done", "esac", "}"])
RESERVED_BEFORE_WORD = frozenset(["for", "select", "case", "function"])
RESERVED_AFTER_COMPOUND = RESERVED_AFTER_COMMAND | {"then", "else", "elif", "do"}
_SEPARATORS = frozenset([";", "&", "|", "|&", "&&", "||"])
_UNFINISHED = _SEPARATORS - {";", "&"}

# What a reserved word or parenthesis does to the innermost compound command, which is known by what it waits for:
# word -> {what is waited for: what is waited for next}. "" as a key: another compound is opened. "" as a value: closed.
_NESTING: dict[str, dict[str, str]] = {
    "if": {"": "then"},
    "then": {"then": "fi"},
    "elif": {"fi": "then"},
    "else": {"fi": "else's fi"},
    "fi": {"fi": "", "else's fi": ""},
    "while": {"": "do"},
    "until": {"": "do"},
    "for": {"": "do or {"},
    "select": {"": "do or {"},
    "do": {"do": "done", "do or {": "done"},
    "done": {"done": ""},
    "case": {"": "in"},
    "in": {"in": "pattern", "do or {": "do or {"},
    "esac": {"pattern": "", "esac": ""},
    "{": {"do or {": "}", "": "}"},
    "}": {"}": ""},
    "(": {"pattern": "pattern", "": ")"},
    ")": {")": "", "pattern": "esac"},
    ";;": {"esac": "pattern"},
    ";&": {"esac": "pattern"},
    ";;&": {"esac": "pattern"},
}

_BLANKS = re.compile(r"[ \t]+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"&>>|&>|&&|\|\||\|&|;;&|;;|;&|<<<|<<-|<<|<&|>&|<>|>>|>\||[<>|&;()]")
_REDIRECTS = frozenset(["&>>", "&>", "<<<", "<<-", "<<", "<&", ">&", "<>", ">>", ">|", "<", ">"])
_DESCRIPTOR = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})(?=[<>])")
_PLAIN = re.compile(r"[^\s;&|<>()'\"\\$`?*+@!=\[]+")
# What needs no look: texts, and each `$` that begins nothing which could hold the closing character.
_PLAIN_IN_QUOTES = re.compile(r"(?:[^\"\\$`]+|\$(?![({\\]))++")
_PLAIN_IN_BRACES = re.compile(r"(?:[^}\\'\"$`]+|\$(?![({\\'\"]))++")
_PLAIN_IN_BRACKETS = re.compile(r"(?:[^\[\]\\'\"$`]+|\$(?![({\\'\"]))++")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_CASE_WORD = re.compile(r"[A-Za-z_]+")


def skip_double_quotes(text: str, at: int, depth: int = 0) -> int:
    """Return the index just behind the closing quote; `at` is just behind the opening one."""
    length = len(text)
    while at < length:
        run = _PLAIN_IN_QUOTES.match(text, at)
        if run is not None:
            at = run.end()
            if at >= length:
                break
        char = text[at]
        if char == '"':
            return at + 1
        if char == "\\":
            at += 2
        elif char == "$":
            at = skip_dollar(text, at, depth, quoted=True)
        else:
            at = skip_backquotes(text, at + 1)
    raise Unreadable("a double quote is never closed")


def skip_backquotes(text: str, at: int) -> int:
    """Return the index just behind the closing backquote."""
    while True:
        close = text.find("`", at)
        if close < 0:
            raise Unreadable("a backquote is never closed")
        slashes = close - 1
        while slashes >= at and text[slashes] == "\\":
            slashes -= 1
        if (close - 1 - slashes) % 2 == 0:
            return close + 1
        at = close + 1


def skip_single_quotes(text: str, at: int) -> int:
    """Return the index just behind the closing single quote."""
    close = text.find("'", at)
    if close < 0:
        raise Unreadable("a single quote is never closed")
    return close + 1


def skip_ansi(text: str, at: int) -> int:
    """Return the index just behind the quote that closes `$'`."""
    length = len(text)
    while at < length:
        if text[at] == "\\":
            at += 2
        elif text[at] == "'":
            return at + 1
        else:
            at += 1
    raise Unreadable("a $' quote is never closed")


def skip_dollar(text: str, at: int, depth: int, *, quoted: bool = False) -> int:
    """Return the index behind the expansion that starts at this `$` (or behind the lone `$`)."""
    following = text[at + 1 : at + 2]
    if following == "\\" and text.startswith("\n", at + 2):
        # Lines are joined before; where that went wrong, what this expands is not guessed at.
        raise Unreadable("a line is continued behind a $")
    if following == "(":
        return skip_parentheses(text, at + 2, depth + 1)
    if following == "{":
        return skip_braces(text, at + 2, depth + 1, quoted=quoted)
    if following == "'" and not quoted:
        return skip_ansi(text, at + 2)
    if following == '"' and not quoted:
        return skip_double_quotes(text, at + 2, depth + 1)
    return at + 1


def skip_braces(text: str, at: int, depth: int, *, quoted: bool = False) -> int:
    """Return the index just behind the `}` that closes a `${`."""
    if depth > MAX_NESTING:
        raise Unreadable("it nests too deeply", "text.too_deep")
    length = len(text)
    if text[at : at + 1] in (" ", "\t", "\n", "|"):
        return _skip_function_substitution(text, at, depth)
    while at < length:
        run = _PLAIN_IN_BRACES.match(text, at)
        if run is not None:
            at = run.end()
            if at >= length:
                break
        char = text[at]
        if char == "}":
            return at + 1
        if char == "\\":
            at += 2
        elif char == "'" and not quoted:
            at = skip_single_quotes(text, at + 1)
        elif char == '"':
            at = skip_double_quotes(text, at + 1, depth + 1)
        elif char == "$":
            at = skip_dollar(text, at, depth, quoted=quoted)
        elif char == "`":
            at = skip_backquotes(text, at + 1)
        else:
            at += 1
    raise Unreadable("a ${ is never closed")


def _skip_function_substitution(text: str, at: int, depth: int) -> int:
    """`${ command; }` (bash 5.3): ends at the `}` that stands where a command could."""
    close = at
    while True:
        close = text.find("}", close)
        if close < 0:
            raise Unreadable("a ${ is never closed")
        before = text[at:close].rstrip(" \t")
        if before.endswith((";", "\n", "&")):
            return close + 1
        close += 1


def skip_brackets(text: str, at: int) -> int:
    """Return the index just behind the `]` that closes a subscript; `at` is just behind its `[`."""
    level = 1
    length = len(text)
    while at < length:
        run = _PLAIN_IN_BRACKETS.match(text, at)
        if run is not None:
            at = run.end()
            if at >= length:
                break
        char = text[at]
        if char == "[":
            level += 1
            at += 1
        elif char == "]":
            level -= 1
            at += 1
            if not level:
                return at
        elif char == "\\":
            at += 2
        elif char == "'":
            at = skip_single_quotes(text, at + 1)
        elif char == '"':
            at = skip_double_quotes(text, at + 1)
        elif char == "$":
            at = skip_dollar(text, at, 0)
        elif char == "`":
            at = skip_backquotes(text, at + 1)
        else:
            at += 1
    raise Unreadable("a subscript is never closed")


def skip_parentheses(text: str, at: int, depth: int) -> int:
    """Return the index just behind the `)` that closes a `(`; knows quotes, case patterns, here-documents."""
    if depth > MAX_NESTING:
        raise Unreadable("it nests too deeply", "text.too_deep")
    length = len(text)
    cases = 0
    bodies: list[tuple[str, bool]] = []
    word_start = True
    while at < length:
        char = text[at]
        if char == ")":
            if not cases:
                return at + 1
            at += 1
            word_start = True
        elif char == "\\":
            at += 2
            word_start = False
        elif char == "'":
            at = skip_single_quotes(text, at + 1)
            word_start = False
        elif char == '"':
            at = skip_double_quotes(text, at + 1, depth + 1)
            word_start = False
        elif char == "$":
            at = skip_dollar(text, at, depth)
            word_start = False
        elif char == "`":
            at = skip_backquotes(text, at + 1)
            word_start = False
        elif char == "(":
            at = skip_parentheses(text, at + 1, depth + 1)
            word_start = False
        elif char == "#" and word_start:
            at = _COMMENT.match(text, at).end()  # type: ignore[union-attr]
        elif char == "<" and text.startswith("<<", at) and not text.startswith("<<<", at):
            at, body = _delimiter(text, at + 2)
            if body is not None:
                bodies.append(body)
            word_start = False
        elif char == "<" and text.startswith("<<<", at):
            at += 3
        elif char == "\n":
            at += 1
            for delimiter, tabs in bodies:
                _, at = _here_body(text, at, delimiter, tabs)
            bodies = []
            word_start = True
        elif word_start and char.isalpha():
            match = _CASE_WORD.match(text, at)
            end = match.end() if match else at + 1
            word = text[at:end]
            if text[end : end + 1] in ("", " ", "\t", "\n", ";", ")"):
                if word == "case":
                    cases += 1
                elif word == "esac" and cases:
                    cases -= 1
            at = end
            word_start = False
        else:
            word_start = char in " \t;&|"
            at += 1
    raise Unreadable("a parenthesis is never closed")


def _delimiter(text: str, at: int) -> tuple[int, tuple[str, bool] | None]:
    """Read a here-document's delimiter behind `<<`. None: it is no here-document (a shift, say)."""
    tabs = text.startswith("-", at)
    if tabs:
        at += 1
    blanks = _BLANKS.match(text, at)
    if blanks:
        at = blanks.end()
    end = scan_word(text, at, 0)
    if end == at:
        return at, None
    return end, (_unquote(text[at:end]), tabs)


def here_document(text: str, at: int) -> tuple[int, tuple[str, bool, bool]] | None:
    """Read what follows a `<<`: the index behind the delimiter, and (delimiter, strips tabs, is quoted)."""
    end, found = _delimiter(text, at)
    if found is None:
        return None
    return end, (*found, any(quote in text[at:end] for quote in "'\"\\"))


def _unquote(raw: str) -> str:
    """A delimiter's text without its quotes (POSIX: quote removal only, no expansion)."""
    out: list[str] = []
    at = 0
    while at < len(raw):
        char = raw[at]
        if char == "\\":
            out.append(raw[at + 1 : at + 2])
            at += 2
        elif char == "'":
            end = skip_single_quotes(raw, at + 1)
            out.append(raw[at + 1 : end - 1])
            at = end
        elif char == '"':
            end = skip_double_quotes(raw, at + 1)
            out.append(raw[at + 1 : end - 1])
            at = end
        elif char == "$" and raw[at + 1 : at + 2] in ("'", '"'):
            at += 1
        else:
            out.append(char)
            at += 1
    return "".join(out)


def _here_body(text: str, at: int, delimiter: str, tabs: bool) -> tuple[str, int]:
    """Return a here-document's body, and the index behind its closing line (or the end of the text)."""
    lines: list[str] = []
    length = len(text)
    while at < length:
        newline = text.find("\n", at)
        end = length if newline < 0 else newline
        line = text[at:end]
        bare = line.lstrip("\t") if tabs else line
        at = min(end + 1, length)
        if bare == delimiter:
            return "".join(lines), at
        # In `$(cat <<EOF … EOF)` bash (5.x) takes a closing line that ends in the substitution's parenthesis.
        if bare.startswith(delimiter) and bare[len(delimiter) :].lstrip(" \t").startswith(")") and lines:
            return "".join(lines), at - (1 if newline >= 0 else 0) - len(bare) + len(delimiter)
        lines.append(bare + "\n")
    return "".join(lines), length


def scan_word(text: str, at: int, depth: int) -> int:
    """Return the index behind the word that starts at `at`."""
    length = len(text)
    start = at
    while at < length:
        match = _PLAIN.match(text, at)
        if match:
            at = match.end()
            if at >= length:
                break
        char = text[at]
        if char == "'":
            at = skip_single_quotes(text, at + 1)
        elif char == '"':
            at = skip_double_quotes(text, at + 1, depth + 1)
        elif char == "$":
            at = skip_dollar(text, at, depth)
        elif char == "`":
            at = skip_backquotes(text, at + 1)
        elif char == "\\":
            at += 2
        elif char in "<>" and text.startswith("(", at + 1):
            at = skip_parentheses(text, at + 2, depth + 1)
        elif char == "=":
            at += 1
            if text.startswith("(", at) and _ASSIGNMENT.fullmatch(text, start, at):
                at = skip_parentheses(text, at + 1, depth + 1)
        elif char in "?*+@!" and text.startswith("(", at + 1):
            at = skip_parentheses(text, at + 2, depth + 1)  # extglob
        elif char in "?*+@![":
            at += 1
        else:
            break
    return min(at, length)


def _skip_test(text: str, at: int) -> int:
    """Return the index behind the `]]` that closes a `[[`."""
    length = len(text)
    while at < length:
        char = text[at]
        if char in " \t\n":
            at += 1
        elif text.startswith("]]", at) and (at + 2 >= length or text[at + 2] in " \t\n;&|)<>"):
            return at + 2
        elif char in "&|<>();#" and not text.startswith(("<(", ">("), at):
            at += 1
        else:
            end = scan_word(text, at, 0)
            at = end if end > at else at + 1
    raise Unreadable("a [[ is never closed")


def _arithmetic_end(text: str, at: int) -> int | None:
    """If `((` at `at` opens an arithmetic command, return the index behind its `))`."""
    try:
        end = skip_parentheses(text, at + 1, 0)
    except Unreadable as unreadable:
        if unreadable.rule == "text.too_deep":
            raise
        return None
    inner = text[at + 1 : end]
    return end if inner.startswith("(") and text[end - 2 : end] == "))" and balanced(inner[1:-2]) else None


def balanced(inner: str) -> bool:
    """Whether each parenthesis in the text closes one that was opened before it."""
    level = 0
    for char in inner:
        if char == "(":
            level += 1
        elif char == ")":
            level -= 1
            if level < 0:
                return False
    return level == 0


class _Cutter:
    """Cuts one text. A class because a dozen facts live between two tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.shape: list[str] = []
        self.shaped = 0
        self.bodies: list[Token] = []
        self.command_next = True  # a command may start here: reserved words count
        self.word_for = ""  # the reserved word whose operand comes next: for, select, case, function
        self.awaiting_in = False
        self.loose_redirect: int | None = None  # index into shape of a redirection that has no command yet
        self.waits_for = [""]  # the compound commands that are open, innermost last (see _NESTING)
        self.ended = (
            False  # a compound command ended here: only redirections, operators and closers may follow
        )

    def put(self, start: int, end: int, shape: str) -> None:
        """Give [start, end) this shape, padded with blanks; what lies before is blank."""
        if start > self.shaped:
            self.shape.append(" " * (start - self.shaped))
        width = end - start
        self.shape.append(shape[:width].ljust(width))
        self.shaped = end

    def cut(self) -> tuple[list[Token], str]:
        text, length, at = self.text, len(self.text), 0
        while at < length:
            char = text[at]
            if len(self.tokens) > MAX_TOKENS:
                raise Unreadable(f"it has more than {MAX_TOKENS} words and operators", "text.too_large")
            if char in {" ", "\t"}:
                at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            elif char == "\n":
                at = self.newline(at)
            elif char == "#":
                at = _COMMENT.match(text, at).end()  # type: ignore[union-attr]
            elif char == "\\" and text.startswith("\\\n", at):
                at += 2
            elif char in "<>&|;()" and not (char in "<>" and text.startswith("(", at + 1)):
                at = self.operator(at)
            elif (char.isdigit() or char == "{") and (match := _DESCRIPTOR.match(text, at)):
                at = self.redirect(match.end(), fd=match.group(), start=at)
            else:
                at = self.word(at)
        self.run_ends()
        self.all_closed()
        for token in self.bodies:
            token.body = ""
        if self.shaped < length:
            self.put(length, length, "")
        return self.tokens, "".join(self.shape)

    def run_ends(self) -> None:
        """A simple command ends. If it was only redirections, the shape still needs a word for it."""
        if self.loose_redirect is not None:
            index = self.loose_redirect
            self.shape[index] = "w" + self.shape[index][1:]
            self.loose_redirect = None

    def all_closed(self) -> None:
        """Raise if the text ends inside a compound command, or where a command must follow."""
        if len(self.waits_for) > 1:
            raise Unreadable(f"its {self.waits_for[-1]} is missing")
        for last in reversed(self.tokens):
            if last.kind is not Kind.OPERATOR:
                return
            if last.raw in _UNFINISHED:
                raise Unreadable(f"nothing follows its {last.raw}")
            if last.raw != "\n":
                return

    def nest(self, raw: str) -> None:
        """Follow an operator or reserved word into, through or out of a compound command.

        tree-sitter would find out as well, but it mends what it reads: a text that does not nest costs it time that
        grows with the square of the length, and what it makes of one is not what bash does.
        """
        changes = _NESTING.get(raw)
        if changes is None:
            return
        waits_for = self.waits_for
        following = changes.get(waits_for[-1])
        if following is None or not waits_for[-1]:
            following = changes.get("")
            if following is None:
                raise Unreadable(f"a {raw} that nothing opened")
            waits_for.append(following)
            if len(waits_for) > MAX_NESTING:
                raise Unreadable("it nests too deeply", "text.too_deep")
            self.ended = False
        elif following:
            waits_for[-1] = following
            self.ended = False
        else:
            waits_for.pop()
            # `f()` is no compound command but the beginning of one.
            self.ended = not (raw == ")" and self.tokens and self.tokens[-1].raw == "(")

    def newline(self, at: int) -> int:
        self.run_ends()
        # tree-sitter takes some newlines for blanks (behind a pipe, with && on the next line): a semicolon it
        # cannot mistake. Where a newline ends nothing it stays one.
        ends = self.ends_something() and not self.text.startswith(
            ";", at + 1
        )  # `;` and `;;` would be one operator
        self.put(at, at + 1, ";" if ends else "\n")
        self.tokens.append(Token(Kind.OPERATOR, at, at + 1, "\n"))
        self.ended = False
        self.command_next = not self.awaiting_in
        at += 1
        for token in self.bodies:
            token.body, at = _here_body(self.text, at, token.raw, token.op == "<<-")
            # The closing line's newline must stay a separator for nothing: blank is right, one was put above.
        self.bodies = []
        return at

    def ends_something(self) -> bool:
        """Whether a newline here ends a command (and is not just a blank line, or inside a compound's head)."""
        if not self.tokens or self.awaiting_in:
            return False
        last = self.tokens[-1]
        if last.kind is not Kind.OPERATOR:
            return not (len(self.tokens) > 1 and self.tokens[-2].raw == "function" and self.command_next)
        return last.raw in RESERVED_AFTER_COMMAND

    def operator(self, at: int) -> int:
        text = self.text
        match = _OPERATOR.match(text, at)
        if match is None:
            raise Unreadable("an operator that is none")
        op = match.group()
        if op in _REDIRECTS:
            return self.redirect(at, fd="", start=at)
        if op == "(" and text.startswith("((", at) and (self.command_next or self.word_for == "for"):
            end = _arithmetic_end(text, at)
            if end is not None:
                self.tokens.append(Token(Kind.ARITHMETIC, at, end, text[at:end]))
                self.put(at, end, "w" * (end - at))
                self.ended = not self.word_for
                self.command_next = True
                self.word_for = ""
                return end
        self.run_ends()
        before = self.tokens[-1] if self.tokens else None
        if op in _SEPARATORS:
            if before is None or (
                before.kind is Kind.OPERATOR and not self.ended and before.raw not in ("!", "in")
            ):
                raise Unreadable(f"no command stands before its {op}")
            if self.waits_for[-1] == "in":
                raise Unreadable("a case without its in")
            self.ended = False
        elif op == "(" and (self.ended or (not self.command_next and not self.names_a_function(match.end()))):
            raise Unreadable("a ( where none can be")
        self.nest(op)
        self.tokens.append(Token(Kind.OPERATOR, at, match.end(), op))
        self.tokens[-1].closes = self.ended
        self.put(at, match.end(), "|" if op == "|&" else op)
        self.command_next = True
        self.word_for = ""
        return match.end()

    def names_a_function(self, at: int) -> bool:
        """Whether the word before a parenthesis is the first of its command, and `)` follows at once."""
        before = self.tokens[-2] if len(self.tokens) > 1 else None
        if before is not None and (
            before.kind is not Kind.OPERATOR or before.raw in ("in", "for", "select", "case")
        ):
            return False
        blanks = _BLANKS.match(self.text, at)
        return self.text.startswith(")", blanks.end() if blanks else at)

    def redirect(self, at: int, *, fd: str, start: int) -> int:
        text = self.text
        match = _OPERATOR.match(text, at)
        if match is None:
            raise Unreadable("a redirection without an operator")
        op = match.group()
        target = match.end()
        while (blanks := _BLANKS.match(text, target)) or text.startswith("\\\n", target):
            target = blanks.end() if blanks else target + 2
        end = scan_word(text, target, 0)
        if end == target:
            raise Unreadable("a redirection without a target")
        token = Token(Kind.REDIRECT, start, end, text[target:end])
        token.op, token.fd, token.target_start = op, fd, target
        if op in ("<<", "<<-"):
            token.literal = any(quote in token.raw for quote in "'\"\\")
            token.raw = _unquote(token.raw)
            self.bodies.append(token)
        if (
            self.command_next
            and self.loose_redirect is None
            and not self.in_run()
            and not self.after_compound()
        ):
            self.put(start, end, "")
            self.loose_redirect = len(self.shape) - 1
        else:
            self.put(start, end, "")
        self.tokens.append(token)
        return end

    def in_run(self) -> bool:
        """Whether the simple command at hand has a word already (an assignment, say)."""
        return bool(self.tokens) and self.tokens[-1].kind is not Kind.OPERATOR

    def after_compound(self) -> bool:
        for token in reversed(self.tokens):
            if token.kind is Kind.REDIRECT:
                continue
            return token.closes
        return False

    def behind_a_pipe(self) -> bool:
        """Whether the command that starts here is not the first of its pipeline: `!` and `time` are no keywords there."""
        before = next((token.raw for token in reversed(self.tokens) if token.raw != "\n"), "")
        return before in ("|", "|&")

    def reserved(self, at: int, end: int, raw: str) -> None:
        self.run_ends()
        if raw == "!" and self.behind_a_pipe():
            raise Unreadable("a ! stands behind a pipe")
        if at > self.shaped and self.ended:
            self.put(at - 1, at, ";")  # `{ …; done }`: tree-sitter wants a separator that bash does not
        self.nest(raw)
        self.tokens.append(Token(Kind.OPERATOR, at, end, raw))
        self.tokens[-1].closes = self.ended
        # `!` changes no command, and tree-sitter does not take it before every compound: blank in the shape.
        self.put(at, end, "" if raw == "!" else raw)

    def word(self, at: int) -> int:
        text = self.text
        end = scan_word(text, at, 0)
        if end == at:
            raise Unreadable(f"{text[at]!r} where a word should be")
        raw = text[at:end]
        if self.awaiting_in and raw == "do":  # `for f do`: the positional parameters
            if at > self.shaped:
                self.put(at - 1, at, ";")  # tree-sitter wants a separator that bash does not
            self.reserved(at, end, raw)
            self.awaiting_in = False
            self.command_next = True
            return end
        if self.awaiting_in and raw == "in":
            self.reserved(at, end, raw)
            self.awaiting_in = False
            self.command_next = self.tokens_kind == "case"
            return end
        if self.word_for:
            return self.operand_of_reserved(at, end, raw)
        if self.waits_for[-1] == "pattern" and raw != "esac":
            self.simple(Kind.WORD, at, end)
            return end
        if self.ended and raw not in RESERVED_AFTER_COMPOUND:
            raise Unreadable(f"{raw[:20]} stands behind the end of a compound command")
        if self.command_next:
            if raw in RESERVED_BEFORE_COMMAND or raw in RESERVED_AFTER_COMMAND:
                self.reserved(at, end, raw)
                self.awaiting_in = False
                return end
            if raw in RESERVED_BEFORE_WORD:
                self.reserved(at, end, raw)
                self.word_for = raw
                return end
            if raw == "[[":
                end = _skip_test(text, end)
                self.simple(Kind.TEST, at, end)
                self.command_next = self.ended = True
                return end
            if raw == "coproc" or (raw == "time" and not self.behind_a_pipe()):
                return self.prefix(at, end, raw)
            if _ASSIGNMENT.match(raw):
                self.simple(Kind.WORD, at, end)
                self.command_next = True
                return end
        self.awaiting_in = False
        self.simple(Kind.WORD, at, end)
        return end

    tokens_kind = ""

    def operand_of_reserved(self, at: int, end: int, raw: str) -> int:
        self.tokens_kind = self.word_for
        self.awaiting_in = self.word_for in ("for", "select", "case")
        self.command_next = self.word_for == "function"
        self.word_for = ""
        self.tokens.append(Token(Kind.WORD, at, end, raw))
        self.put(at, end, "w" * (end - at))
        return end

    def simple(self, kind: Kind, at: int, end: int) -> None:
        self.tokens.append(Token(kind, at, end, self.text[at:end]))
        self.put(at, end, "w" * (end - at))
        self.command_next = False
        self.loose_redirect = None

    def prefix(self, at: int, end: int, raw: str) -> int:
        """`time` and `coproc` stand in front of any command: blank in the shape."""
        text = self.text
        rest = re.compile(
            r"(?:[ \t]+-p)?(?:[ \t]+--)?(?=[ \t])"
            if raw == "time"
            else r"[ \t]+[A-Za-z_]\w*(?=[ \t]+(?:\(|(?:\{|\[\[|if|for|while|until|case|select)[ \t\n]))"
        )
        match = rest.match(text, end)
        if match and text[end : match.end()].strip() not in RESERVED_BEFORE_COMMAND | RESERVED_BEFORE_WORD:
            end = match.end()
        blanks = _BLANKS.match(text, end)
        tail = blanks.end() if blanks else end
        if text[tail : tail + 1] in ("", *";&|\n)") and not text.startswith("&>", tail):
            self.simple(Kind.WORD, at, end)  # a bare `time`
        return end


def cut(text: str) -> tuple[list[Token], str]:
    """Return the tokens of a shell text and its shape. Raises Unreadable."""
    return _Cutter(text).cut()
