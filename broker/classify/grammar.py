"""Step 2: take a command line apart by its entry's grammar: short, bundled, long, abbreviated, attached."""

from __future__ import annotations

from dataclasses import field

from broker.classify.call import Call
from broker.classify.entries import Entry, Option
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN, shown
from broker.classify.word import Word
from broker.values import dataclass


@dataclass(slots=True)
class Parsed:
    """A command line taken apart: (option, value) pairs, and operands."""

    options: list[tuple[Option, Word | None]]
    operands: list[Word]
    rest: list[Word]  # from the first operand on, where a command follows
    pattern: str = ""
    stray: list[Word] = field(
        default_factory=list
    )  # values of options that the entry does not list: `--any=VALUE`


def parse(call: Call, words: list[Word], entry: Entry | None = None) -> Parsed:
    """Take a command line apart by its entry's grammar. Unknown options are recorded on the call."""
    entry = entry or call.entry
    parsed = Parsed([], [], [])
    single = entry.style == "single"
    stops = entry.stops_at_operand
    at, length = 0, len(words)
    while at < length:
        word = words[at]
        text = word.text
        if len(text) < 2 or text[0] != "-" or entry.style == "words":
            if stops:
                parsed.rest = words[at:]
                break
            parsed.operands.append(word)
            at += 1
            continue
        if text == "--":
            if stops:
                parsed.rest = words[at + 1 :]
            else:
                parsed.operands += words[at + 1 :]
            break
        if single:
            at = _single(call, entry, words, at, parsed)
        elif text[1] == "-":
            at = _long(call, entry, words, at, parsed)
        else:
            at = _short(call, entry, words, at, parsed)
    return parsed


def _given(call: Call, parsed: Parsed, option: Option, value: Word | None) -> None:
    parsed.options.append((option, value))
    call.marks |= option.marks
    if option.operands:
        parsed.pattern = option.operands


def _unknown_option(call: Call, entry: Entry, text: str) -> None:
    if not entry.loose:
        call.add(
            Risk.UNKNOWN, "option.unrecognised", f"{entry.name} has no option {shown(text)} that we know."
        )


def _values(option: Option) -> int:
    """How many words an option is with its value: jq's `--arg NAME VALUE` has two of them."""
    return 3 if option.role == "two" else 2


def _may_be_number(entry: Entry, text: str) -> bool:
    """Whether a piece that only the run will tell stands where a number may: `head -$n`.

    As a number it is harmless, and as anything else it is an option: so are all of these programs'.
    """
    if not text.strip("0123456789") or text.strip(f"0123456789{UNKNOWN}{TAME}"):
        return False
    return not any(option.effects or option.role not in _HARMLESS for option in entry.options.values())


_HARMLESS = frozenset(("", "text", "list", "read", "read_kind"))


def _long(call: Call, entry: Entry, words: list[Word], at: int, parsed: Parsed) -> int:
    word = words[at]
    name, equals, value = word.text.partition("=")
    option = entry.options.get(name)
    options = [option] if option else []
    if option is None and len(name) > 3:
        # getopt_long takes any unambiguous beginning: `--compress-prog` is --compress-program.
        options = [found for key, found in entry.options.items() if key.startswith(name)]
    if not options:
        if entry.loose and entry.options.get("-") is None:
            if equals:
                parsed.stray.append(Word(value, word.static, word.glob, word.start, word.end))
            return at + 1
        _unknown_option(call, entry, name)
        return at + 1
    step = at + 1
    for option in options:
        given: Word | None = None
        if equals:
            given = Word(value, word.static, word.glob, word.start, word.end)
        elif option.takes == "=":
            given = words[at + 1] if at + 1 < len(words) else None
            step = at + _values(option)
        _given(call, parsed, option, given)
    return step


def _short(call: Call, entry: Entry, words: list[Word], at: int, parsed: Parsed) -> int:
    word = words[at]
    text = word.text
    whole = entry.options.get(text)
    if whole is not None and len(text) > 2:  # an option such as `-name` among short ones
        if whole.takes == "=":
            _given(call, parsed, whole, words[at + 1] if at + 1 < len(words) else None)
            return at + _values(whole)
        _given(call, parsed, whole, None)
        return at + 1
    if entry.numbers and (text[1:].isdigit() or _may_be_number(entry, text[1:])):
        return at + 1
    cursor = 1
    while cursor < len(text):
        option = entry.options.get("-" + text[cursor])
        if option is None:
            if entry.numbers and text[cursor].isdigit():
                cursor += 1
                continue
            _unknown_option(call, entry, "-" + text[cursor])
            if not entry.loose:
                return at + 1
            if not text[cursor + 1 :].isalnum():  # `-l=FILE`, `-lfolder/FILE`; letters may be more options
                value = text[cursor + 1 :].removeprefix("=")
                parsed.stray.append(Word(value, word.static, word.glob, word.start, word.end))
            cursor += 1
            continue
        cursor += 1
        if option.takes == "=":
            if cursor < len(text):
                attached = text[cursor:]
                _given(call, parsed, option, Word(attached, word.static, word.glob, word.start, word.end))
                return at + 1
            _given(call, parsed, option, words[at + 1] if at + 1 < len(words) else None)
            return at + _values(option)
        if option.takes == "?":
            attached = text[cursor:]
            _given(
                call,
                parsed,
                option,
                Word(attached, word.static, word.glob, word.start, word.end) if attached else None,
            )
            return at + 1
        _given(call, parsed, option, None)
    return at + 1


def _single(call: Call, entry: Entry, words: list[Word], at: int, parsed: Parsed) -> int:
    """Options of one dash and a long name (Go's flag package, find, java): `-name value`, `--name=value`."""
    word = words[at]
    name, equals, value = word.text.partition("=")
    if name.startswith("--"):
        name = name[1:] if name[1:] in entry.options or name not in entry.options else name
    option = entry.options.get(name)
    if option is None:
        found = entry.options.get(word.text[:2])  # attached values: -Wall, -O2, -Ifolder
        if found is not None and found.takes == "?":
            _given(call, parsed, found, Word(word.text[2:], word.static, word.glob, word.start, word.end))
            return at + 1
        if entry.numbers and name[1:].isdigit():
            return at + 1
        _unknown_option(call, entry, name)
        if equals:
            parsed.stray.append(Word(value, word.static, word.glob, word.start, word.end))
        return at + 1
    if equals:
        _given(call, parsed, option, Word(value, word.static, word.glob, word.start, word.end))
        return at + 1
    if option.takes == "=":
        _given(call, parsed, option, words[at + 1] if at + 1 < len(words) else None)
        return at + _values(option)
    _given(call, parsed, option, None)
    return at + 1
