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
    if any(word.text.startswith("{") or "$(" in word.text for word in call.words[1:]):
        call.add(Risk.CODE_EXECUTION, "powershell.block", f"{call.name} runs a block of code.")
    judge_operands(call, entry, parsed)


def _dashed(options: dict[str, Option], name: str) -> Option | None:
    found = options.get(name)
    if found is not None:
        return found
    fitting = {id(option): option for key, option in options.items() if key.startswith(name)}
    return fitting.popitem()[1] if len(fitting) == 1 else None


@reader("powershell")
def _powershell(call: Call) -> None:
    """`pwsh -Command …`, `-File …`, `-EncodedCommand …`: code, of which the commands that can be seen are judged too."""
    call.add(
        Risk.CODE_EXECUTION, f"program.{call.name}", "PowerShell runs a text, a script or what it is typed."
    )
    words = call.words[1:]
    for at, word in enumerate(words):
        text = word.text.lower().replace("/", "-", 1)
        if not text.startswith("-"):
            if at == 0 or words[at - 1].text.lower()[1:3] not in (
                "ex",
                "ep",
                "wi",
                "wo",
                "ou",
                "in",
                "ve",
                "cu",
                "se",
            ):
                _statements(call, words[at:])
                return
        elif ("-encodedcommand".startswith(text) and text.startswith("-e")) or text == "-ec":
            call.add(Risk.UNKNOWN, "shell.encoded", "What an encoded command says is not looked at.")
            return
        elif "-file".startswith(text) and len(text) > 1:
            for script in words[at + 1 : at + 2]:
                call.read(script)
            return
        elif "-command".startswith(text) and len(text) > 1:
            _statements(call, words[at + 1 :])
            return


_STATEMENT = re.compile(r"[;|&\n{}()]+")
_TOKEN = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s'\"]+)")
_COMMAND = re.compile(r"[A-Za-z][\w.-]*")


def _statements(call: Call, words: list[Word]) -> None:
    for statement in _STATEMENT.split(" ".join(word.text for word in words)):
        tokens = ["".join(found) for found in _TOKEN.findall(statement)]
        if tokens and _COMMAND.fullmatch(tokens[0]):
            call.command([like(words[0], token) for token in tokens])
