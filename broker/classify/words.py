"""Step 2: one word of shell text, as bash would pass it on.

In goes a word's raw text and what is known (Scope); out come the words that the program would get. Pieces
that cannot be known are marked (UNKNOWN, TAME), never guessed. Commands inside a word (substitutions) are
handed to the Expander's `substitute`, so that they are judged too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from broker.classify.braces import expand_braces
from broker.classify.risk import Reason, Risk
from broker.classify.scope import TAME, UNKNOWN, Scope
from broker.classify.secret_names import is_secret_name
from broker.classify.tokens import (
    MAX_FIELDS,
    Unreadable,
    balanced,
    skip_ansi,
    skip_backquotes,
    skip_braces,
    skip_brackets,
    skip_double_quotes,
    skip_parentheses,
    skip_single_quotes,
)
from broker.classify.word import Word
from broker.values import dataclass

MAX_FIELD = 64 * 1024
MAX_VALUE = 4096
"""A variable's value is followed up to this length; a longer one counts as unknown."""

MAX_TRIMMED = 128
"""A value up to this length is trimmed by patterns that are not plain; a longer one counts as unknown."""


Substitute = Callable[[str, Scope, int, str], str]
"""(text, scope, position, how) -> the output if it is known. `how`: command, input `<(`, output `>(`."""


@dataclass(slots=True)
class Expander:
    """Expands words. `notes` collects what the words themselves do (a secret read, code run by `@P`)."""

    scope: Scope
    home: str
    scratch: str
    substitute: Substitute
    notes: list[Reason]
    offset: int = 0
    guessed: bool = False  # a value was used that the run may find to be another

    def words(self, raw: str, start: int, end: int) -> list[Word]:
        """Return the words that this raw word becomes."""
        if _PLAIN.fullmatch(raw):
            return [Word(raw, True, False, start, end)]
        if "{" in raw and ("," in raw or ".." in raw):
            pieces = expand_braces(raw)
            if pieces != [raw]:
                self.offset = start
                out: list[Word] = []
                for piece in filter(None, pieces):  # an empty alternative is no word
                    out += self._fields(piece, start, end)
                return out
        self.offset = start
        return self._fields(raw, start, end)

    def value(self, raw: str, at: int) -> str:
        """Expand an assignment's value, a redirection's target or a pattern: one word, no splitting."""
        if _PLAIN.fullmatch(raw):
            return raw
        self.offset = at
        fields = self._fields(raw, at, at + len(raw), split=False)
        return fields[0].text if fields else ""

    def target(self, raw: str, at: int) -> Word:
        """Expand a redirection's target."""
        if _PLAIN.fullmatch(raw):
            return Word(raw, True, False, at, at + len(raw))
        self.offset = at
        fields = self._fields(raw, at, at + len(raw), split=False)
        return fields[0] if fields else Word("", True, False, at, at + len(raw))

    def body(self, text: str, at: int) -> str:
        """Expand a here-document's body: as in double quotes, but quotes are nothing special."""
        if "$" not in text and "`" not in text and "\\" not in text:
            return text
        self.offset = at
        out: list[str] = []
        self._quoted(text, 0, len(text), out, quotes=False)
        return "".join(out)

    # -- the scanner -----------------------------------------------------------------------------------

    def _fields(self, raw: str, start: int, end: int, *, split: bool = True) -> list[Word]:
        fields: list[Word] = []
        self.guessed = False
        current: list[str] = []
        seen = False  # the field exists even if it is empty: something quoted was in it
        glob = False
        at, length = 0, len(raw)
        if raw[0] == "~":
            at, value = self._tilde(raw)
            current.append(value)
        elif "=~" in raw and split and (assigned := _LIKE_ASSIGNMENT.match(raw)):
            # `dd of=~/x`: bash expands a tilde in a word that looks like an assignment; sh does not.
            behind, value = self._tilde(raw[assigned.end() :])
            current += [assigned.group(), value]
            at = assigned.end() + behind
            self.guessed = True
        while at < length:
            match = _RUN.match(raw, at)
            if match:
                current.append(match.group())
                at = match.end()
                if at >= length:
                    break
            char = raw[at]
            if char == "\\":
                if raw[at + 1 : at + 2] != "\n":
                    current.append(raw[at + 1 : at + 2] or "\\")  # at the end of a text it protects nothing
                    seen = True
                at += 2
            elif char == "'":
                close = skip_single_quotes(raw, at + 1)
                current.append(raw[at + 1 : close - 1])
                seen = True
                at = close
            elif char == '"':
                close = skip_double_quotes(raw, at + 1)
                self._quoted(raw, at + 1, close - 1, current)
                seen = True
                at = close
                if raw == '"$@"':
                    return [Word(UNKNOWN, False, False, start, end)]
            elif char == "$" and raw[at + 1 : at + 2] == '"':
                at += 1
            elif char == "$" and raw[at + 1 : at + 2] == "'":
                close = skip_ansi(raw, at + 2)
                current.append(decode_ansi(raw[at + 2 : close - 1]))
                seen = True
                at = close
            elif char in {"$", "`"}:
                value, at = self._expansion(raw, at, quoted=False)
                if split and "IFS" in self.scope.variables:
                    separators = self.scope.variables["IFS"]
                    if UNKNOWN in separators or any(
                        mark in separators for mark in value if mark not in " \t\n"
                    ):
                        value = UNKNOWN  # split in another way
                if split and value and (" " in value or "\n" in value or "\t" in value):
                    glob |= any(mark in value for mark in "*?[")
                    for index, piece in enumerate(_split(value)):
                        if index:
                            text = "".join(current)
                            if text or seen:
                                fields.append(_word(text, glob, start, end))
                            current, seen = [], False
                            if len(fields) > MAX_FIELDS:
                                raise Unreadable("it expands to too many words", "text.too_large")
                        current.append(piece)
                else:
                    current.append(value)
                    if split and value and any(mark in value for mark in "*?["):
                        glob = True
            elif char in "<>" and raw.startswith("(", at + 1):
                close = skip_parentheses(raw, at + 2, 0)
                self.substitute(
                    raw[at + 2 : close - 1],
                    self.scope,
                    self.offset + at + 2,
                    "input" if char == "<" else "output",
                )
                current.append("/dev/fd/" + TAME)
                at = close
            elif char == "(":  # an array's value, or an extglob: judged for what is inside it
                close = skip_parentheses(raw, at + 1, 0)
                inner = raw[at + 1 : close - 1]
                if current and current[-1].endswith("="):
                    self.scan(inner)
                    current.append(UNKNOWN)
                else:
                    self.scan(inner)
                    if _RUNS_CODE_IN_PATTERN.search(inner):
                        self.notes.append(
                            Reason(
                                rule="shell.glob_qualifier",
                                risk=Risk.CODE_EXECUTION,
                                text="A zsh glob qualifier runs code for each name.",
                            )
                        )
                    current.append("*")
                    glob = True
                at = close
            elif char in "*?[":
                glob |= char != "[" or raw.rfind("]") > at
                current.append(char)
                at += 1
            else:
                current.append(char)
                at += 1
        text = "".join(current)
        if len(text) > MAX_FIELD:
            raise Unreadable("a word expands to too much", "text.too_large")
        if text or seen or not split:
            fields.append(_word(text, glob, start, end))
        if self.guessed:
            for field in fields:
                field.static = False
        return fields

    def _quoted(self, raw: str, at: int, end: int, out: list[str], *, quotes: bool = True) -> None:
        """Expand the inside of double quotes (or, without `quotes`, a here-document's body)."""
        while at < end:
            match = _QUOTED_RUN.match(raw, at, end)
            if match:
                out.append(match.group())
                at = match.end()
                if at >= end:
                    break
            char = raw[at]
            if char == "\\":
                following = raw[at + 1 : at + 2]
                if following == "\n":
                    pass
                elif following in ("$", "`", "\\") or (following == '"' and quotes):
                    out.append(following)
                else:
                    out.append("\\" + following)
                at += 2
            else:
                value, at = self._expansion(raw, at, quoted=True)
                out.append(value)

    def scan(self, text: str) -> None:
        """Find and judge the substitutions in text whose value does not matter (arithmetic, patterns)."""
        at, length = 0, len(text)
        while at < length:
            run = _UNREMARKABLE.match(text, at)
            if run is not None:
                at = run.end()
                if at >= length:
                    break
            char = text[at]
            if char == "\\":
                at += 2
            elif char == "'":
                # Subscripts are evaluated again: bash runs a quoted substitution inside them.
                close = text.find("'", at + 1)
                at = close + 1 if close >= 0 else at + 1
            elif char in {"$", "`"}:
                _, at = self._expansion(text, at, quoted=True)
            elif char in "<>" and text.startswith("(", at + 1):
                close = skip_parentheses(text, at + 2, 0)
                self.substitute(text[at + 2 : close - 1], self.scope, self.offset + at + 2, "input")
                at = close
            else:
                at += 1

    def arithmetic(self, text: str) -> None:
        """Judge an arithmetic expression: substitutions in it, and in the values of variables it names."""
        self.scan(text)
        for name in _NAME.findall(text):
            value = self.scope.variables.get(name, "")
            if "$(" in value or "`" in value or UNKNOWN in value:
                holds = "can hold" if UNKNOWN in value else "holds"
                self.notes.append(
                    Reason(
                        rule="shell.arithmetic_value",
                        risk=Risk.CODE_EXECUTION,
                        text=f"Arithmetic evaluates ${name}, and its value {holds} a command.",
                    )
                )
        if "=" in text or "++" in text or "--" in text:
            for before, name, after in _ARITHMETIC_ASSIGNMENT.findall(text):
                if before or after:
                    self.scope.variables[name] = TAME

    # -- expansions ------------------------------------------------------------------------------------

    def _expansion(self, raw: str, at: int, *, quoted: bool) -> tuple[str, int]:
        """Expand what starts with `$` or a backquote; return its value and the index behind it."""
        if raw[at] == "`":
            close = skip_backquotes(raw, at + 1)
            inner = raw[at + 1 : close - 1]
            inner = _BACKQUOTE_ESCAPE.sub(r"\1", inner)
            if quoted:
                inner = inner.replace('\\"', '"')
            return self.substitute(inner, self.scope, self.offset + at + 1, "command"), close
        following = raw[at + 1 : at + 2]
        if following == "(":
            close = skip_parentheses(raw, at + 2, 0)
            inner = raw[at + 2 : close - 1]
            if inner.startswith("(") and inner.endswith(")") and balanced(inner[1:-1]):
                self.arithmetic(inner[1:-1])
                return TAME, close
            return self.substitute(inner, self.scope, self.offset + at + 2, "command"), close
        if following == "{":
            close = skip_braces(raw, at + 2, 0, quoted=quoted)
            inner = raw[at + 2 : close - 1]
            if inner[:1] in (" ", "\t", "\n", "|"):
                return self.substitute(inner.lstrip("|"), self.scope, self.offset + at + 2, "command"), close
            return self._parameter(inner), close
        if following == "[":
            close = raw.find("]", at)
            if close > 0:
                self.arithmetic(raw[at + 2 : close])
                return TAME, close + 1
        match = _NAME.match(raw, at + 1)
        if match:
            return self.variable(match.group()), match.end()
        if following and following in "?#$!-0123456789@*":
            if following in "?#$!-":
                return TAME, at + 2
            return UNKNOWN, at + 2
        return "$", at + 1

    def variable(self, name: str) -> str:
        """A variable's value, as far as it is known."""
        scope = self.scope
        if name in scope.variables:
            self.guessed |= name in scope.guesses
            return scope.variables[name]
        if name == "HOME":
            return self.home
        if name == "PWD":
            self.guessed = True
            return scope.cwd if scope.cwd is not None else UNKNOWN
        if name == "OLDPWD":
            self.guessed = True
            return scope.previous_cwd if scope.previous_cwd is not None else UNKNOWN
        if name == "IFS":
            return " \t\n"
        if name in _TAME_NAMES:
            return TAME
        if is_secret_name(name):
            self.notes.append(
                Reason(
                    rule="secret.variable",
                    risk=Risk.SYSTEM_WRITE,
                    text=f"${name} is named like a secret, and its value is used here.",
                )
            )
        return UNKNOWN

    def _parameter(self, inner: str) -> str:
        """`${…}`."""
        match = _PARAMETER.match(inner)
        if not match:
            self.scan(inner)
            return UNKNOWN
        prefix, name = match.groups()
        subscript, rest = "", inner[match.end() :]
        if rest.startswith("["):
            end = skip_brackets(rest, 1)
            subscript, rest = rest[:end], rest[end:]
            self.arithmetic(subscript)
        if prefix == "#" and not rest:
            if _NAME.fullmatch(name):
                self.variable(name)
            return TAME
        if prefix == "!":
            self.scan(rest)
            named = self.scope.variables.get(name)
            if named and _NAME.fullmatch(named) and not rest and not subscript:
                return self.variable(named)
            return UNKNOWN
        special = not _NAME.fullmatch(name)
        value = (TAME if name in "?#$!-" else UNKNOWN) if special else self.variable(name)
        if subscript:
            value = UNKNOWN
        if not rest:
            return value
        return self._operator(name, value, rest, set_here=name in self.scope.variables)

    def _operator(self, name: str, value: str, rest: str, *, set_here: bool) -> str:
        """Apply `:-`, `%`, `/`, `@P` and the like to a value."""
        if rest.startswith("@"):
            if rest[1:2] == "P":
                self.notes.append(
                    Reason(
                        rule="shell.prompt_expansion",
                        risk=Risk.CODE_EXECUTION,
                        text=f"${{{name}@P}} runs the commands inside the variable's value.",
                    )
                )
            return UNKNOWN
        colon = rest.startswith(":")
        op = rest[1:2] if colon else rest[:1]
        if op and op in "-=?+" and (True):
            guessed = self.guessed
            default = (
                self.value(rest[2:] if colon else rest[1:], self.offset) if len(rest) > 1 + colon else ""
            )
            self.guessed |= guessed
            unknown = value == UNKNOWN
            if op == "+":
                if set_here and not unknown and (value or not colon):
                    return default
                return default and UNKNOWN
            if op == "?":
                return value
            chosen = None if unknown or (colon and not value) else value
            if chosen is not None:
                return chosen
            if set_here and unknown:
                return UNKNOWN  # what this text made of it is not known, so neither is whether it is empty
            if op == "=":
                self.scope.variables[name] = default
                if not set_here or self.guessed:
                    self.scope.guesses.add(name)
            if set_here:
                return default
            # Not set in this text: the default is what bash uses unless the environment has the variable.
            self.guessed = True
            return default
        if colon:
            numbers = _SUBSTRING.fullmatch(rest)
            if numbers and UNKNOWN not in value and TAME not in value:
                first = int(numbers.group(1))
                first = first if first >= 0 else max(0, len(value) + first)
                if numbers.group(2) is None:
                    return value[first:]
                count = int(numbers.group(2))
                return value[first : first + count] if count >= 0 else value[first : len(value) + count]
            self.arithmetic(rest[1:])
            return UNKNOWN
        if rest[0] in "%#":
            double = rest[:2] in ("%%", "##")
            guessed = self.guessed
            pattern = (
                self.value(rest[2 if double else 1 :], self.offset)
                if len(rest) > (2 if double else 1)
                else ""
            )
            self.guessed |= guessed
            return _trim(value, pattern, end=rest[0] == "%", longest=double)
        self.scan(rest)
        if rest[0] in "^,":
            return value if UNKNOWN in value or TAME in value else UNKNOWN
        return UNKNOWN

    def _tilde(self, raw: str) -> tuple[int, str]:
        match = _TILDE.match(raw)
        if not match:
            return 0, ""
        name, following = match.group(1), raw[match.end() : match.end() + 1]
        if following and following != "/":
            return 0, ""
        if not name:
            return match.end(), self.variable("HOME")
        if name == "+":
            return match.end(), self.variable("PWD")
        if name == "-":
            return match.end(), self.variable("OLDPWD")
        if name == "root":
            return match.end(), "/root"
        return match.end(), "/home/" + name


_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,\-^]+")
_RUN = re.compile(r"[^\\'\"$`<>(*?\[]+")
_UNREMARKABLE = re.compile(r"[^\\'$`<>]+")
_QUOTED_RUN = re.compile(r"[^\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!\-])")
_ARITHMETIC_ASSIGNMENT = re.compile(
    r"(\+\+|--)?\s*+([A-Za-z_]\w*+)(?:\[[^\[\]]*+\])?\s*+(\+\+|--|(?:<<|>>|[-+*/%&^|])?=(?!=))?"
)
_SUBSTRING = re.compile(r":\s*(-?\d+|\s-\d+)\s*(?::\s*(-?\d+)\s*)?")
_LIKE_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?=~)")
_TILDE = re.compile(r"~([A-Za-z_][\w.-]*|[+-])?")
_BACKQUOTE_ESCAPE = re.compile(r"\\([\\`$])")
_RUNS_CODE_IN_PATTERN = re.compile(r"(?:^|[^a-z])[e+][:'\"\[{<a-z]")
_TAME_NAMES = frozenset(
    [
        "RANDOM",
        "SECONDS",
        "LINENO",
        "EPOCHSECONDS",
        "EPOCHREALTIME",
        "UID",
        "EUID",
        "PPID",
        "BASHPID",
        "COLUMNS",
        "LINES",
        "USER",
        "LOGNAME",
        "HOSTNAME",
        "SRANDOM",
        "BASH_VERSION",
        "OSTYPE",
        "HOSTTYPE",
        "MACHTYPE",
        "SHLVL",
        "PIPESTATUS",
        "LANG",
        "TERM",
    ]
)


def _word(text: str, glob: bool, start: int, end: int) -> Word:
    return Word(text, not glob and UNKNOWN not in text and TAME not in text, glob, start, end)


def _split(value: str) -> list[str]:
    """Split as bash splits an unquoted expansion; a blank at an edge separates from the neighbour."""
    pieces = value.split()
    if not pieces:
        return ["", ""]
    if value[0] in " \t\n":
        pieces.insert(0, "")
    if value[-1] in " \t\n":
        pieces.append("")
    return pieces


def _trim(value: str, pattern: str, *, end: bool, longest: bool) -> str:
    """`${x%pattern}` and its kin, for known values and simple patterns."""
    if TAME in value and not any(mark in value + pattern for mark in (UNKNOWN, "[")) and TAME not in pattern:
        return _trim_tame(value, pattern, end=end, longest=longest)
    if UNKNOWN in value or TAME in value or UNKNOWN in pattern or TAME in pattern:
        return UNKNOWN
    if not any(mark in pattern for mark in "*?["):
        return value.removesuffix(pattern) if end else value.removeprefix(pattern)
    if "[" in pattern:
        return UNKNOWN
    literal = pattern[1:] if pattern[0] == "*" else pattern[:-1]
    if "*" not in literal and "?" not in literal and "*" in (pattern[0], pattern[-1]):
        # `${x##*/}`, `${x%.*}`: nearly all there are.
        return _trim_at(value, literal, end=end, longest=longest, star_first=pattern[0] == "*")
    if len(value) > MAX_TRIMMED or pattern.count("*") > 2:
        return UNKNOWN  # an expression tries every way to share the value among its stars
    translated = "".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    compiled = re.compile(translated, re.DOTALL)
    cuts = range(len(value) + 1)
    if end:
        order = cuts if longest else reversed(cuts)
        return next((value[:cut] for cut in order if compiled.fullmatch(value[cut:])), value)
    order = reversed(cuts) if longest else cuts
    return next((value[cut:] for cut in order if compiled.fullmatch(value[:cut])), value)


def _trim_tame(value: str, pattern: str, *, end: bool, longest: bool) -> str:
    """The same for a path whose last name is not known: what is cut from that name's end leaves a name."""
    folder, slash, name = value.rpartition("/")
    if TAME in folder:
        return UNKNOWN
    if not end:
        return name if pattern == "*/" and longest else UNKNOWN
    literal = pattern.strip("*?")
    if name.endswith(pattern):
        return value.removesuffix(pattern)
    if not literal or "/" in literal or any(mark in folder for mark in (literal, *"*?")):
        return UNKNOWN
    return folder + slash + TAME


def _trim_at(value: str, literal: str, *, end: bool, longest: bool, star_first: bool) -> str:
    """Trim by a pattern that is a text behind, or in front of, one star."""
    if (
        end == star_first
    ):  # `%*x` and `#x*`: the text must stand at the edge, and the star takes nothing or all
        found = value.endswith(literal) if end else value.startswith(literal)
        if not found:
            return value
        return "" if longest else (value.removesuffix(literal) if end else value.removeprefix(literal))
    at = value.find(literal) if end == longest else value.rfind(literal)
    if at < 0:
        return value
    return value[:at] if end else value[at + len(literal) :]


_ANSI = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
}
_ANSI_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|c(.)|(.))", re.DOTALL
)


def decode_ansi(text: str) -> str:
    """Decode the inside of `$'…'`."""

    def one(match: re.Match[str]) -> str:
        octal, hexadecimal, short, long, control, other = match.groups()
        if octal:
            return _char(int(octal, 8) & 0xFF)
        if hexadecimal:
            return _char(int(hexadecimal, 16))
        if short or long:
            code = int(short or long, 16)
            return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else UNKNOWN
        if control:
            return chr(ord(control.upper()) & 0x1F)
        return _ANSI.get(other, other if other in "\\'\"?" else "\\" + other)

    # bash ends the string at a NUL.
    return _ANSI_ESCAPE.sub(one, text).split("\0", 1)[0]


def _char(byte: int) -> str:
    return chr(byte) if byte < 0x80 else bytes((byte,)).decode("utf-8", "surrogateescape")
