"""Reader for the commands of DOS, Windows and PowerShell: `/q` and `-Recurse`, in either case.

The tables list options in lower case. A slash option has its value behind a colon, a dash option as the next
word; a dash option may be abbreviated as long as its beginning is unambiguous.
"""

from __future__ import annotations

import re

from broker.classify.call import Call, like, reader
from broker.classify.entries import Option
from broker.classify.grammar import Parsed
from broker.classify.risk import Risk
from broker.classify.roles import judge_operands
from broker.classify.scope import shown
from broker.classify.word import Word

_SLASH = re.compile(r"/[A-Za-z?][\w-]*")
_ELSEWHERE = re.compile(r"[A-Za-z]:|\\\\|HK[A-Z]+[:\\]|(?:Env|Cert|WSMan|Function|Alias):", re.IGNORECASE)


@reader("windows")
def _windows(call: Call) -> None:
    entry = call.entry
    parsed = Parsed([], [], [])
    words = iter(call.words[1:])
    for word in words:
        text = word.text.lower()
        name, colon, _ = text.partition(":")
        option = None
        if _SLASH.fullmatch(name) and (name in entry.options or len(name) == 2):
            option = entry.options.get(name)
        elif re.match(r"-[a-z]", name):
            option = _dashed(entry.options, name)
        else:
            parsed.operands.append(word)
            continue
        if option is None:
            if not entry.loose:
                why = f"{entry.name} has no option {shown(word.text)} that we know."
                call.add(Risk.UNKNOWN, "option.unrecognised", why)
            continue
        given: Word | None = None
        if colon:
            given = like(word, word.text[len(name) + 1 :])
        elif option.takes == "=":
            given = next(words, None)
        parsed.options.append((option, given))
        call.marks |= option.marks
        parsed.pattern = option.operands or parsed.pattern
    changes = {option.role for option, _ in parsed.options} | {entry.repeated, *entry.prefix, *entry.suffix}
    if changes & {"write", "fill", "delete", "dest", "move"}:
        given_words = [value for _, value in parsed.options if value is not None]
        if any(_ELSEWHERE.match(word.text) for word in (*parsed.operands, *given_words)):
            call.add(
                Risk.SYSTEM_WRITE,
                "path.drive",
                "It changes something on a drive, a share or in the registry.",
            )
    judge_operands(call, entry, parsed)


def _dashed(options: dict[str, Option], name: str) -> Option | None:
    found = options.get(name)
    if found is not None:
        return found
    fitting = {id(option): option for key, option in options.items() if key.startswith(name)}
    return fitting.popitem()[1] if len(fitting) == 1 else None
