"""Readers for programs that start the command behind them."""

from __future__ import annotations

import re

from broker.classify import paths
from broker.classify.call import ASSIGNMENT, Call, like, reader, set_variable, unknown_word
from broker.classify.commands import judge_parsed
from broker.classify.entries import Option, entry_of
from broker.classify.grammar import parse
from broker.classify.names import known_name
from broker.classify.risk import Risk
from broker.classify.roles import judge_options
from broker.classify.scope import TAME, UNKNOWN
from broker.classify.word import Word


@reader("env")
def _env(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    rest = list(parsed.rest)
    judge_options(call, parsed)
    for option, value in parsed.options:
        if "chdir" in option.marks and value is not None:
            call.scope = call.scope.copy()
            call.scope.cwd = paths.resolve(value.text, call.scope.cwd, call.inquiry.context)
        if "split" in option.marks and value is not None:
            if not value.known:
                call.add(Risk.UNKNOWN, "program.dynamic", "env -S splits a text that cannot be known.")
                return
            rest = [*split_like_env(value), *rest]
    while rest:
        match = ASSIGNMENT.fullmatch(rest[0].text)
        if match is None:
            break
        set_variable(call, match.group(1), match.group(2))
        rest = rest[1:]
    if rest:
        call.command(rest)
    elif call.name == "env" or not rest:
        call.add(Risk.SYSTEM_WRITE, "secret.environment", "env prints the environment, secrets included.")


def split_like_env(value: Word) -> list[Word]:
    """As env -S does it: blanks separate, quotes group, backslashes escape."""
    text, out, current, quote, seen = value.text, [], [], "", False
    at = 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and at + 1 < len(text) and quote == '"':
                at += 1
                current.append(text[at])
            else:
                current.append(char)
        elif char in "'\"":
            quote, seen = char, True
        elif char == "\\" and at + 1 < len(text):
            at += 1
            current.append({"n": "\n", "t": "\t", "_": " "}.get(text[at], text[at]))
        elif char in " \t\n\r\v\f":
            if current or seen:
                out.append(like(value, "".join(current)))
            current, seen = [], False
        elif char == "#" and not current:
            break
        else:
            current.append(char)
        at += 1
    if current or seen:
        out.append(like(value, "".join(current)))
    return [word if "${" not in word.text else unknown_word(value) for word in out]


@reader("xargs")
def _xargs(call: Call) -> None:
    """xargs: the rest is a command, with operands that only the input knows."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    replace = ""
    for option, value in parsed.options:
        if "replace" in option.marks:
            replace = value.text if value is not None and value.text else "{}"
        if "file" in option.marks and value is not None:
            call.read(value)
    rest = parsed.rest
    if not rest:
        return  # it echoes
    items = _fed(call, lines=bool(replace), plain=not call.marks & {"separated", "file"})
    if replace:
        commands = [
            [like(word, word.text.replace(replace, item)) if replace in word.text else word for word in rest]
            for item in items
        ]
        if not commands[0][0].known:
            call.add(Risk.CODE_EXECUTION, "program.dynamic", "The input says which program runs.")
    else:
        size = _batch(parsed.options)
        if len(items) == 1 and size != 1 and (UNKNOWN in items[0] or TAME in items[0]):
            items *= 2  # it may stand for several: `xargs chgrp` gets its group and its files from there
        fed = [Word(item, False, False, 0, 0) for item in items]
        size = size or len(fed)
        commands = [[*rest, *fed[at : at + size]] for at in range(0, len(fed), size)]
    name = known_name(rest[0].text.rsplit("/", 1)[-1])
    entry = entry_of(name)
    if entry is not None and len(rest) == 1 and entry.commands.get("") is None:
        if entry.commands or entry.sub or entry.reader == "git":
            call.add(Risk.UNKNOWN, "wrapper.input_decides", f"The input says which command of {name} runs.")
            return
        if entry.reader in ("shell", "interpreter", "python") or entry.stops_at_operand:
            call.add(Risk.CODE_EXECUTION, "wrapper.input_decides", f"The input says what {name} runs.")
            if entry.reader not in ("shell", "interpreter", "python"):
                return
    saved = call.scope.stdin
    call.scope.stdin = None
    for words in commands:
        call.command(words)
    call.scope.stdin = saved


def _fed(call: Call, *, lines: bool, plain: bool) -> list[str]:
    """What the input holds, as far as it is known: words (or lines) of a known text, or names that something found.

    `plain`: blanks separate, and no option says otherwise. A text with quotes is not taken apart.
    """
    stdin = call.scope.stdin
    if stdin is None:
        return [UNKNOWN]
    if stdin.text is None:
        return list(stdin.names) or [UNKNOWN]
    if not plain or any(mark in stdin.text for mark in "'\"\\"):
        return [UNKNOWN]
    items = (
        [line.lstrip() for line in stdin.text.splitlines() if line.strip()] if lines else stdin.text.split()
    )
    return items if 0 < len(items) <= MAX_ITEMS else [UNKNOWN]


def _batch(options: list[tuple[Option, Word | None]]) -> int:
    """How many items each invocation gets; 0: as many as there are."""
    sizes = [value.text for option, value in options if "batches" in option.marks and value is not None]
    return int(sizes[-1]) if sizes and sizes[-1].isdecimal() else 0


MAX_ITEMS = 16
"""So many items of a known input are judged one by one; of more, any may be anything."""


MANY = 32  # so many names are judged one by one; more of them count as any
_A_NAME = re.compile(r"[\w*?][\w.*?-]*")  # or a pattern for names in this folder


@reader("parallel")
def _parallel(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    rest = parsed.rest
    stdin = call.scope.stdin
    fed = list(stdin.names) if stdin is not None and stdin.names else [UNKNOWN]
    for at, word in enumerate(rest):
        if word.text in (":::", "::::", ":::+", "::::+"):
            items = [other.text for other in rest[at + 1 :]]
            fed = [UNKNOWN]
            if at == 0 and word.text == ":::":  # no command: each item is one
                for other in rest[1:]:
                    call.shell(other)
                return
            if word.text == ":::" and all(_A_NAME.fullmatch(text) for text in items):
                fed = [TAME]
            rest = rest[:at]
            break
    if not rest:
        call.add(Risk.CODE_EXECUTION, "wrapper.input_decides", "The input says what parallel runs.")
        return
    text = " ".join(word.text for word in rest)
    text = re.sub(r"\{[#%.\d/]*\}", "$PARALLEL_ITEM", text)
    if UNKNOWN in text:
        call.add(
            Risk.CODE_EXECUTION, "shell.dynamic_text", "parallel runs a text that cannot be known before."
        )
        return
    call.scope = call.scope.copy()
    call.scope.exported.add("PARALLEL_ITEM")
    for item in fed if len(fed) <= MANY else [UNKNOWN]:
        call.scope.variables["PARALLEL_ITEM"] = item
        call.shell_text(text if "$PARALLEL_ITEM" in text else text + ' "$PARALLEL_ITEM"')


@reader("sudo")
def _sudo(call: Call) -> None:
    """sudo, doas, pkexec: the privilege is an effect of its own, and the command is judged."""
    parsed = parse(call, call.words[1:])
    call.add(Risk.SYSTEM_WRITE, "wrapper.privilege", f"{call.name} runs things with another user's rights.")
    judge_options(call, parsed)
    rest = parsed.rest
    while rest and (match := ASSIGNMENT.fullmatch(rest[0].text)):
        set_variable(call, match.group(1), match.group(2))
        rest = rest[1:]
    if "edit" in call.marks:
        for word in rest:
            call.write(word)
    elif rest:
        call.command(rest)
    elif "shell" in call.marks:
        _shell_that_reads(call)


def _shell_that_reads(call: Call) -> None:
    """A shell that is given nothing reads its input."""
    call.command([like(call.words[0], "sh")])


@reader("command_or_shell")
def _command_or_shell(call: Call) -> None:
    """unshare, fakeroot: without a command they start a shell."""
    parsed = parse(call, call.words[1:])
    judge_parsed(call, call.entry, parsed)
    if not parsed.rest and not parsed.pattern:
        _shell_that_reads(call)


@reader("su")
def _su(call: Call) -> None:
    """su, runuser: -c TEXT or arguments for another user's shell; behind `runuser -u USER` a command."""
    call.add(Risk.SYSTEM_WRITE, "wrapper.privilege", f"{call.name} runs things with another user's rights.")
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    rest = parsed.rest
    if "command" in call.marks and call.name == "runuser":
        call.command(rest)
        return
    rest = rest[1:] if rest and rest[0].text == "-" else rest
    parsed = parse(call, rest[1:])  # options may stand behind the user's name
    judge_options(call, parsed)
    if parsed.rest:
        call.add(Risk.CODE_EXECUTION, "interpreter.script", "The user's shell runs what it is given.")
    elif "text" not in call.marks:
        _shell_that_reads(call)


@reader("watch")
def _watch(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if not parsed.rest:
        return
    if "exec" in call.marks:
        call.command(parsed.rest)
        return
    shell_words(call, parsed.rest)


def shell_words(call: Call, words: list[Word]) -> None:
    """Words that the program joins and hands to a shell."""
    text = " ".join(word.text for word in words)
    if UNKNOWN in text or TAME in text:
        call.add(
            Risk.CODE_EXECUTION, "shell.dynamic_text", f"{call.name} runs a text that cannot be known before."
        )
    else:
        if len(words) == 1 and re.search(r"[;&|`$<>]", text):
            call.add(Risk.CODE_EXECUTION, "wrapper.shell", f"{call.name} hands its words to a shell.")
        call.shell_text(text)


@reader("flock")
def _flock(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    rest = parsed.rest
    if not rest:
        return
    if not rest[0].text.isdigit():
        call.write(rest[0])
        call.finding.effects.discard(Risk.LOCAL_WRITE)  # a lock file holds nothing
        call.finding.reasons[:] = [r for r in call.finding.reasons if r.risk is not Risk.LOCAL_WRITE]
    rest = rest[1:]
    if rest and rest[0].text in ("-c", "--command"):
        if len(rest) > 1:
            call.add(Risk.CODE_EXECUTION, "wrapper.shell", "flock -c hands its text to a shell.")
            call.shell(rest[1])
    elif rest:
        call.command(rest)


@reader("script")
def _script(call: Call) -> None:
    """script: -c TEXT (util-linux), or FILE COMMAND … (BSD); it writes a typescript."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    rest = parsed.rest
    given = any("command" in option.marks for option, _ in parsed.options)
    if given:
        call.add(Risk.CODE_EXECUTION, "wrapper.shell", "script -c hands its text to a shell.")
    if rest:
        call.write(rest[0])
        after = rest[1:]
        if after and after[0].text.startswith("-"):
            tail = parse(call, after)
            judge_options(call, tail)
            after = tail.rest
        if after:
            call.command(after)
    elif not given:
        call.add(Risk.LOCAL_WRITE, "path.write", "script writes a typescript.")
    if not given and len(rest) < 2:
        call.add(Risk.CODE_EXECUTION, "interpreter.stdin", "script starts an interactive shell.")


@reader("busybox")
def _busybox(call: Call) -> None:
    if len(call.words) > 1 and not call.words[1].text.startswith("--"):
        call.command(call.words[1:])
    elif len(call.words) > 1 and call.words[1].text == "--install":
        call.add(Risk.SYSTEM_WRITE, "option.busybox--install", "It links itself into folders of programs.")


@reader("ldso")
def _ldso(call: Call) -> None:
    """The dynamic loader as a program: it starts the program that it is given."""
    words = call.words[1:]
    while words and words[0].text.startswith("--"):
        flag = words[0].text
        if flag in (
            "--preload",
            "--audit",
            "--library-path",
            "--inhibit-rpath",
            "--argv0",
            "--glibc-hwcaps-prepend",
        ):
            if flag in ("--preload", "--audit", "--library-path"):
                call.add(Risk.CODE_EXECUTION, "wrapper.loader", f"The loader's {flag} loads other libraries.")
            words = words[2:]
        elif flag in ("--list", "--verify", "--list-tunables", "--help", "--list-diagnostics", "--version"):
            return
        else:
            words = words[1:]
    if words:
        call.add(Risk.CODE_EXECUTION, "wrapper.loader", "The dynamic loader starts a program by its file.")
        call.command(words)


@reader("command_after_dashes")
def _after_dashes(call: Call) -> None:
    """Tools that run a command in an environment of theirs: `mise exec -- CMD`, `direnv exec DIR CMD`."""
    skip = int(call.entry.raw.get("skip", 0))
    for risk in call.entry.effects:
        if risk is not Risk.SAFE:
            call.add(
                risk, f"program.{call.entry.name.replace(' ', '.')}", f"{call.entry.name} runs a command."
            )
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    rest = parsed.rest[skip:]
    for at, word in enumerate(rest):
        if word.text == "--":
            rest = rest[at + 1 :]
            break
    while rest and "versions" in call.entry.raw and re.fullmatch(r"[\w:/.-]+@[\w.-]+", rest[0].text):
        rest = rest[1:]
    if rest:
        call.command(rest)


@reader("nix-shell")
def _nix_shell(call: Call) -> None:
    for risk in call.entry.effects:
        call.add(risk, "program.nix.shell", "nix evaluates and builds what it is given.")
    words = call.words[1:]
    for at, word in enumerate(words):
        if word.text in ("-c", "--command"):
            call.command(words[at + 1 :])
            return
        if word.text == "--run" and at + 1 < len(words):
            call.shell(words[at + 1])
