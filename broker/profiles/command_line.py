"""Read an allowlist or denylist entry: a command line that means exactly one argv.

In: what the operator wrote. Out: the argv, or CommandLineError with the reason. Quoting is the shell's
(single, double, backslash). Whatever a shell would expand, join or redirect is refused, because an entry
is compared word by word and expands nothing: an entry that looks like a pattern would never match.
"""

from __future__ import annotations

import re

_ASSIGNMENT = r"[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?="
_OPERATORS = {
    "|": "a pipe",
    "&": "'&'",
    ";": "';'",
    "<": "a redirection",
    ">": "a redirection",
    "(": "a parenthesis",
    ")": "a parenthesis",
    "`": "a command substitution",
    "$": "an expansion",
}
_WILDCARDS = {"*": "'*'", "?": "'?'", "[": "'['"}


class CommandLineError(ValueError):
    """The text is not one exact command. The message is a sentence without a full stop."""


class _Word:
    __slots__ = ("plain", "started", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.started = False  # '' is a word too
        self.plain = ""  # the unquoted characters, a space for each quoted one

    def add(self, char: str, *, quoted: bool) -> None:
        self.text.append(char)
        self.plain += " " if quoted else char
        self.started = True


def parse_command_line(text: str) -> tuple[str, ...]:
    """Return the argv that the text means. Raises CommandLineError if it is not one exact command."""
    _refuse_control_characters(text)
    words = _split(text)
    if not words:
        raise CommandLineError("it is empty")
    first = words[0]
    if re.match(_ASSIGNMENT, first.plain):
        raise CommandLineError(
            f"it begins with the assignment {''.join(first.text)!r}; an entry is a command and its "
            "arguments, and a command with assignments in front of it never matches"
        )
    if not "".join(first.text):
        raise CommandLineError("the program's name is empty")
    for word in words:
        _refuse_expansions(word)
    return tuple("".join(word.text) for word in words)


def _refuse_control_characters(text: str) -> None:
    for char in text:
        if (not char.isprintable() and char != "\t") or 0xD800 <= ord(char) <= 0xDFFF:
            raise CommandLineError(f"it holds the control character {char!a}")


def _split(text: str) -> list[_Word]:
    words: list[_Word] = []
    word = _Word()
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t":
            if word.started:
                words.append(word)
                word = _Word()
            position += 1
        elif char in "'\"":
            position = _quoted(text, position, word)
        elif char == "\\":
            if position + 1 == len(text):
                raise CommandLineError("it ends in a backslash")
            word.add(text[position + 1], quoted=True)
            position += 2
        else:
            _refuse_special(char, text)
            word.add(char, quoted=False)
            position += 1
    if word.started:
        words.append(word)
    return words


def _quoted(text: str, start: int, word: _Word) -> int:
    """Add the quoted text that begins at `start` to the word. Return the position after it."""
    quote = text[start]
    word.started = True
    position = start + 1
    while position < len(text):
        char = text[position]
        if char == quote:
            return position + 1
        if quote == '"' and char == "\\" and text[position + 1 : position + 2] in {'"', "\\", "$", "`"}:
            position += 1
            char = text[position]
        elif quote == '"' and char in "$`":
            _refuse_special(char, text)
        word.add(char, quoted=True)
        position += 1
    raise CommandLineError(f"a {quote} is not closed")


def _refuse_special(char: str, text: str) -> None:
    if char in _WILDCARDS:
        raise CommandLineError(
            f"it holds {_WILDCARDS[char]}, but entries are exact: there are no wildcards and no prefixes. "
            "List each command with its arguments (and quote the character if it is meant literally)"
        )
    if char in _OPERATORS:
        raise CommandLineError(
            f"it holds {_OPERATORS[char]} ({char!r}), but an entry is one command. List each command of "
            f"{text!r} by itself: a shell text is permitted if each of its commands is"
        )


def _refuse_expansions(word: _Word) -> None:
    plain = word.plain
    shown = "".join(word.text)
    if plain.startswith("~"):
        raise CommandLineError(f"{shown!r} begins with '~', which is not expanded here. Write the whole path")
    if plain.startswith("#"):
        raise CommandLineError(f"{shown!r} would be a comment to a shell. Quote it if it is meant")
    if plain == "!":
        raise CommandLineError("'!' is an operator of the shell; an entry is one command")
    if re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", plain) or plain in {"{", "}"}:
        raise CommandLineError(
            f"{shown!r} holds braces that a shell would expand. List each command by itself"
        )
