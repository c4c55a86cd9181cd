"""Step 2: judge a call by its entry alone, sub-commands included."""

from __future__ import annotations

from broker.classify.call import Call
from broker.classify.entries import Entry, sub_entry
from broker.classify.grammar import Parsed, parse
from broker.classify.readers import reader_named
from broker.classify.risk import Risk
from broker.classify.roles import WHY, default_why, judge_operands, judge_options_of
from broker.classify.scope import shown
from broker.classify.word import Word


def by_grammar(call: Call, entry: Entry | None = None, words: list[Word] | None = None) -> None:
    """Judge a call by its entry alone."""
    entry = entry or call.entry
    words = call.words[1:] if words is None else words
    parsed = parse(call, words, entry)
    judge_parsed(call, entry, parsed)


def judge_parsed(call: Call, entry: Entry, parsed: Parsed) -> None:
    """Add the effects of the entry, of its options, and of its operands or sub-command."""
    if entry.commands or entry.sub:
        judge_options_of(call, entry, parsed)
        _sub_command(call, entry, parsed)
    else:
        judge_operands(call, entry, parsed)


def _sub_command(call: Call, entry: Entry, parsed: Parsed) -> None:
    rest = parsed.rest
    if not rest:
        for risk in entry.effects:
            if risk is not Risk.SAFE:
                call.add(
                    risk, f"program.{entry.name.replace(' ', '.')}", entry.why or default_why(entry, risk)
                )
        return
    first = rest[0]
    if not first.known:
        call.add(Risk.UNKNOWN, "program.dynamic", f"Which command of {entry.name} runs cannot be known.")
        return
    # The longest name that the table has: `container ls` before `container`.
    for length in (3, 2, 1):
        if len(rest) < length:
            continue
        name = " ".join(word.text for word in rest[:length])
        own = sub_entry(entry, name)
        if own is not None:
            judge_sub(call, own, rest[length:])
            return
        risks = entry.commands.get(name)
        if risks is not None:
            _compact(call, entry, name, risks, rest[length:])
            return
    fallback = entry.commands.get("*")
    if fallback is not None:
        _compact(call, entry, first.text, fallback, rest[1:])
        return
    own = sub_entry(entry, "*")
    if own is not None:
        judge_sub(call, own, rest)
        return
    call.add(
        Risk.UNKNOWN,
        "program.unknown_command",
        f"{entry.name} has no command {shown(first.text)} that we know.",
    )


def judge_sub(call: Call, entry: Entry, words: list[Word]) -> None:
    """Judge a sub-command that has an entry of its own."""
    if words and words[-1].text in ("--help", "-h") and len(words) == 1 and not entry.reader:
        return
    outer = call.entry
    call.entry = entry
    if entry.reader:
        saved = call.words
        call.words = [saved[0], *words]
        reader_named(entry.reader)(call)
        call.words = saved
    else:
        by_grammar(call, entry, words)
    call.entry = outer


def _compact(call: Call, entry: Entry, name: str, risks: tuple[Risk, ...], rest: list[Word]) -> None:
    """A sub-command of which the table says the effects only."""
    if len(rest) == 1 and rest[0].text in ("--help", "-h"):
        return
    for risk in risks:
        if risk is not Risk.SAFE:
            call.add(
                risk,
                f"program.{entry.name}.{name}".replace(" ", "."),
                WHY[risk].format(f"{entry.name} {name}"),
            )
    for word in rest:
        # Whatever the grammar is: a path that is a secret is one.
        if word.text and word.text[0] in "./~" and word.known:
            call.read(word)
