"""Step 5: secrets are left out of the record, and what is left still says the same.

In: an event's plain fields, before it is written. Out: the same with each secret replaced by the beginning of its
SHA-256 and its length: `--token=redacted-sha256-2bb80d537b1d-6`. So the same secret can be told from another.

INVARIANT: a recorded operation classifies as the one that was judged (test_redact.py). The mark has no character that means
anything to a shell; what a shell would expand is no secret, and neither is a path; and a value that decides what a
command *is* (`token=curl; $token …`) is none, or an agent could hide what it does behind a name.

What has the look of a secret is found (redact_rules.py), and where a reason quotes it; what has not, is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any

from broker.record.needles import OURS, in_small_letters, may_hold
from broker.record.redact_rules import (
    ASK_FOR_PASSWORD,
    FLAGS,
    NAME,
    OPTION,
    QUOTES,
    RULES,
    VALUE,
    Flag,
    Rule,
)
from broker.sha256 import sha256
from broker.values import dataclass

MARK = re.compile(r"redacted[ -]sha256-[0-9a-f]{12}-[0-9]+")
_NOT_YET = rf"(?!['\"]?{MARK.pattern}(?![\w-]))"
_HARMLESS = frozenset({"", "true", "false", "yes", "no", "none", "null", "on", "off", "0", "1", "*", "-"})
_PROGRAM = re.compile(r"(?<![^\s;|&('\"`])(?:[\w./][\w./-]*/|/)?([\w.-]+)(?=[ \t])")  # a word that may name one, before another word
_UNQUOTE = re.compile(r"\\(.)|['\"]")
# After these a word is a text that a shell reads: what looks like one variable may be a whole program.
_TAKES_TEXT = re.compile(r"-[A-Za-z]*c|-S|--split-string|--command|-e|--eval|eval")
_SETS_VARIABLE = re.compile(r"-e|--env|env|export|--build-arg")
_SENTENCES = frozenset({"text", "reason", "hint", "error"})  # ours, and they may quote a word
_TELLING = 6  # a shorter secret cannot be told from other text
_TRIED = 8  # values that a command's class may hang on, looked at one by one
# Where a name says that a value is secret, the value can be the name of the file that holds it.
_NAMED = frozenset({"option", "variable", "field"})
_PATH = re.compile(
    r"(?:~[\w-]*|\.[\w.-]*|/?(?:etc|home|root|run|var|tmp|usr|opt|srv|mnt|proc|dev|sys|secrets|keys))/"
    r"|(?:id|src)=|id_[a-z0-9]+$|[\w-]+\.(?:pem|key|crt|pub|p12|json|ya?ml|toml|conf|ini|env|txt)$",
)


@dataclass(slots=True)
class Found:
    """What was found in one event: the ids of the rules, each secret that is long enough to be told from other text.

    `seen`: all that look like one. `spared`: values of those that stay.
    """

    rules: set[str] = field(default_factory=set)
    secrets: dict[str, str] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()

    def mark(self, secret: str, rule: str) -> str:
        """Return what is written in a secret's place; what is none stays."""
        if secret.lower() in _HARMLESS or MARK.fullmatch(secret) or (rule in _NAMED and _PATH.match(secret)):
            return secret
        self.seen[secret] = None
        if secret in self.spared:
            return secret
        self.rules.add(rule)
        told = mark(secret)
        if len(secret) >= _TELLING:
            self.secrets[secret] = told
        return told


def mark(secret: str) -> str:
    """Return the mark of a secret. Anybody who has the secret can tell whether this is it.

    One with white space in it has white space in its mark: a word that has some cannot be a program's name.
    """
    data = secret.encode("utf-8", "surrogatepass")
    space = " " if any(character.isspace() for character in secret) else "-"
    return f"redacted{space}sha256-{sha256(data).hexdigest()[:12]}-{len(data)}"


def redact(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return an event's fields without secrets, and the ids of the rules that found some."""
    found = Found()
    told = _mapping(fields, found)
    if found.seen and "operation" in fields:
        told, found = _as_it_was_judged(fields, told, found)
    if found.secrets:
        told = {name: item if name == "operation" else _elsewhere(name, item, found.secrets) for name, item in told.items()}
    return told, sorted(found.rules)


def _as_it_was_judged(
    fields: Mapping[str, Any], told: dict[str, Any], found: Found
) -> tuple[dict[str, Any], Found]:
    """Leave those values where they are without which the operation would be another."""
    before = _judged(fields["operation"])
    if before is None or _judged(told["operation"]) == before:
        return told, found
    spared = frozenset(found.seen)
    for value in list(found.seen)[:_TRIED]:
        attempt = Found(spared=spared - {value})
        if _judged(_value(fields["operation"], attempt)) == before:
            spared = attempt.spared
    found = Found(spared=spared)
    return _mapping(fields, found), found


def _judged(operation: Any) -> object:
    """Return what the classifier says of a recorded operation; None: it has no words to redact."""
    from broker.classify import classify
    from broker.classify.context import Context
    from broker.request.operation import Exec, ShellText

    match operation:
        case {"kind": "shell", "text": str(text)}:
            asked: Exec | ShellText = ShellText(text=text, dialect=operation.get("dialect", "bash"))
        case {"kind": "exec" | "delegation", "argv": [*words]}:
            env = tuple((str(name), str(value)) for name, value in operation.get("env", ()))
            asked = Exec(
                argv=tuple(words), path=operation.get("path", ""), program=operation.get("program", ""), cwd=operation.get("cwd", ""), env=env
            )
        case _:
            return None
    # Where it happened is not known here, and that the two are alike hardly ever depends on it.
    cwd = operation.get("cwd") or "/work"
    answer = classify(asked, Context(cwd=cwd, home="/home/agent", workspace=cwd))
    return answer.effects, [(reason.rule, reason.risk) for reason in answer.reasons]


def redact_text(text: str, found: Found | None = None) -> str:
    """Return a text without secrets. Adds the ids of the rules that found some."""
    if not may_hold(text):
        return text
    found = Found() if found is None else found
    return _flags_in_text(_shapes(text, found), found)


def redact_words(words: Iterable[str], found: Found | None = None) -> list[str]:
    """Return an argv without secrets: its words are known, so that a value is left out to its end."""
    found = Found() if found is None else found
    told: list[str] = []
    program, login, before = "", False, ""
    for word in words:
        told.append(_word(word, before, program, login=login, found=found))
        name = word.rpartition("/")[2]
        if name in _programs() or name in ASK_FOR_PASSWORD:
            program = name
        login = login or word == "login"
        before = word
    return told


# --- any value


def _value(value: Any, found: Found) -> Any:
    if isinstance(value, str):
        return redact_text(value, found)
    if isinstance(value, Mapping):
        return _mapping(value, found)
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value):
            return redact_words(value, found)
        return [_value(item, found) for item in value]
    return value


def _mapping(fields: Mapping[str, Any], found: Found) -> dict[str, Any]:
    return {name: item if name in OURS else _field(name, item, found) for name, item in fields.items()}


def _field(name: str, item: Any, found: Found) -> Any:
    if name == "env" and isinstance(item, (list, tuple)):
        return [_pair(pair, found) for pair in item]
    if isinstance(item, str) and _whole(NAME).fullmatch(name):
        return found.mark(item, "field")
    return _value(item, found)


def _pair(pair: Any, found: Found) -> Any:
    match pair:
        case [str(name), str(value)]:
            secret = _whole(NAME).fullmatch(name)
            return [name, found.mark(value, "variable") if secret else redact_text(value, found)]
        case _:
            return _value(pair, found)


def _elsewhere(name: str, value: Any, secrets: Mapping[str, str]) -> Any:
    """Replace secrets that are known now where a sentence of ours quotes them; nothing else hangs on those."""
    if isinstance(value, str):
        if name in _SENTENCES:
            for secret, told in secrets.items():
                value = value.replace(secret, told)
        return value
    if isinstance(value, dict):
        return {key: _elsewhere(key, item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_elsewhere(name, item, secrets) for item in value]
    return value


# --- one word of an argv


def _word(word: str, before: str, program: str, *, login: bool, found: Found) -> str:
    if not word.startswith("-") and _whole(OPTION).fullmatch(before) and program not in ASK_FOR_PASSWORD:
        return found.mark(word, "option")
    for flag in _programs().get(program, ()):
        if (told := _flag_word(word, before, flag, login=login, found=found)) is not None:
            return told
    name, equals, value = word.partition("=")
    if equals and _whole(OPTION).fullmatch(name):
        return f"{name}={found.mark(value, 'option')}"
    whole = _SETS_VARIABLE.fullmatch(before) or not (_TAKES_TEXT.fullmatch(before) or re.search(r"\s", value))
    if equals and whole and _whole(NAME).fullmatch(name):
        return f"{name}={found.mark(value, 'variable')}"
    return redact_text(word, found)


def _flag_word(word: str, before: str, flag: Flag, *, login: bool, found: Found) -> str | None:
    if flag.needs and not login:
        return None
    if flag.apart and before in flag.flags and not word.startswith("-"):
        return _flag_value(word, flag, found)
    for option in flag.flags:
        joined = f"{option}=" if option.startswith("--") else option
        if flag.joined and word.startswith(joined) and word != joined:
            return joined + _flag_value(word[len(joined) :], flag, found)
    return None


def _flag_value(value: str, flag: Flag, found: Found) -> str:
    before, separator, secret = value.partition(flag.after) if flag.after else ("", "", value)
    return f"{before}{separator}{found.mark(secret, 'flag')}" if secret else value


# --- a text


def _shapes(text: str, found: Found) -> str:
    small = in_small_letters(text)
    rules = [rule for rule in RULES if any(needle in small for needle in rule.needles)]
    ahead = [(rule, match) for rule in rules if (match := _pattern(rule).search(text))]
    told, done = [], 0
    while ahead:
        rule, match = min(ahead, key=lambda pair: pair[1].start())  # at one place it is the first rule's
        begin, end = match.span("secret")
        replaced = _literal(text[begin:end], rule.id, found)
        if rule.id == "option" and replaced and _asks(text, match.start(), begin):
            end, replaced = begin, ""
        told += [text[done:begin], replaced]
        done = end
        at = max(end, match.start() + 1)
        ahead = [(one, next_) for one, seen in ahead if (next_ := seen if seen.start() >= at else _pattern(one).search(text, at))]
    return "".join([*told, text[done:]]) if told else text


def _asks(text: str, start: int, value: int) -> bool:
    """Tell whether this option's next word is none of its own, because of the program it is given to."""
    if text[value - 1] == "=":
        return False
    command = re.split(r"[;|&\n(]", text[max(0, start - 1024) : start])[-1]
    return any(word.rpartition("/")[2] in ASK_FOR_PASSWORD for word in command.split())


def _literal(value: str, rule: str, found: Found) -> str:
    """Return the mark of a value as it is written in a shell text; quotes around all of it stay."""
    for quote in QUOTES:
        inner = value[len(quote) : -len(quote)]
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote) and quote not in inner:
            return f"{quote}{found.mark(inner, rule)}{quote}"
    plain = _UNQUOTE.sub(r"\1", value)
    told = found.mark(plain, rule)
    return value if told == plain else told


def _flags_in_text(text: str, found: Found) -> str:
    """Look at what follows each program that has flags of its own, to the end of its command."""
    starts = [match.start(1) for match in _PROGRAM.finditer(text) if match[1] in _programs()]
    if not starts:
        return text
    told = [text[: starts[0]]]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:end]
        stop = re.search(r"[;|&\n]", piece)
        command, rest = (piece[: stop.start()], piece[stop.start() :]) if stop else (piece, "")
        program = re.match(r"[\w.-]+", command)
        for flag in _programs()[program[0]] if program else ():
            command = _flag_in_text(command, flag, found)
        told += [command, rest]
    return "".join(told)


def _flag_in_text(command: str, flag: Flag, found: Found) -> str:
    if flag.needs and flag.needs not in command.split():
        return command

    def replace(match: re.Match[str]) -> str:
        value = match["value"]
        if flag.after:
            before, separator, secret = value.partition(flag.after)
            quote = before[:1] if before[:1] in ("'", '"') else ""
            secret = secret.removesuffix(quote) if quote else secret
            return f"{match['flag']}{before}{separator}{_literal(secret, 'flag', found)}{quote}" if secret else match[0]
        return match["flag"] + _literal(value, "flag", found)

    return _flag_pattern(flag).sub(replace, command)


# --- compiled one by one at the first need: all at once take 20 ms, and most runs need a few


@lru_cache(maxsize=len(RULES))
def _pattern(rule: Rule) -> re.Pattern[str]:
    return re.compile(rule.pattern.replace("(?P<secret>", f"{_NOT_YET}(?P<secret>"), re.IGNORECASE)


@lru_cache(maxsize=8)
def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=1)
def _programs() -> dict[str, tuple[Flag, ...]]:
    table: dict[str, tuple[Flag, ...]] = {}
    for flag in FLAGS:
        for program in flag.programs:
            table[program] = (*table.get(program, ()), flag)
    return table


@lru_cache(maxsize=64)
def _flag_pattern(flag: Flag) -> re.Pattern[str]:
    forms = []
    for option in flag.flags:
        if flag.joined:
            forms.append(re.escape(f"{option}=" if option.startswith("--") else option))
        if flag.apart:
            forms.append(rf"{re.escape(option)}[ \t]+(?!-)")
    return re.compile(rf"(?P<flag>(?<=[ \t])(?:{'|'.join(forms)}))(?=[^\s]){_NOT_YET}(?P<value>{VALUE})")


