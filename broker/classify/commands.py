"""Step 2: judge a call by its entry alone, sub-commands included."""

from __future__ import annotations

from dataclasses import replace

from broker.classify.call import Call
from broker.classify.entries import Entry, parse_options, sub_entry
from broker.classify.grammar import Parsed, parse
from broker.classify.readers import reader_named
from broker.classify.risk import Risk
from broker.classify.roles import WHY, apply_role, default_why, judge_operands, judge_options_of
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
        # A rule's id is one of a known set: the word, which can be anything, a secret included, is no part of it.
        _compact(call, entry, "", fallback, rest[1:])
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
                f"program.{entry.name} {name}".strip().replace(" ", "."),
                WHY[risk].format(f"{entry.name} {name}".strip()),
            )
    if any(word.text[:1] == "-" for word in rest):
        _options_behind(call, entry, risks, rest)
    role = "either" if Risk.LOCAL_WRITE in risks else "read"
    for word in rest:
        # Whatever the grammar is: a path that is a secret is one, and so is one that runs later.
        if word.text and word.text[0] in "./~" and word.known:
            apply_role(call, role, word, entry.name)


_AS_BAD = frozenset(
    (Risk.CODE_EXECUTION, Risk.NETWORK_EGRESS, Risk.INSTALL, Risk.SYSTEM_WRITE, Risk.DESTRUCTIVE)
)


def _options_behind(call: Call, entry: Entry, risks: tuple[Risk, ...], rest: list[Word]) -> None:
    """Options behind a sub-command of which the table says the effects only.

    Long ones that the program knows in front of it mean the same behind it; `behind` in the table lists those that are
    the sub-commands' own. Of a harmless sub-command any other is unknown, unless the table vouches for the rest
    (`*` in `behind`, or `loose`).
    """
    behind: str = entry.raw.get("behind", "")
    lenient = bool(entry.raw.get("loose")) or "*" in behind.split() or not _AS_BAD.isdisjoint(risks)
    key = "*lenient" if lenient else "*strict"
    own = entry.subs.get(key)
    if own is None:
        options = {
            name: option
            for name, option in entry.options.items()
            if name[:2] == "--" or entry.style == "single"
        }
        options |= parse_options(f"-h --help {behind}")
        own = entry.subs[key] = replace(
            entry,
            options=options,
            numbers="-NUM" in options,
            commands={},
            sub={},
            prefix=(),
            repeated="text",
            style=entry.style if entry.style == "single" else "gnu",
            loose=lenient,
        )
    judge_options_of(call, own, parse(call, rest, own))
