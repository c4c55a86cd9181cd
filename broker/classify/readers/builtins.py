"""Readers for the shell's own commands. They change the Scope that the rest of the text is read with."""

from __future__ import annotations

import re

from broker.classify import paths
from broker.classify.call import ASSIGNMENT, Call, code_in, reader, set_variable
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN
from broker.classify.secret_names import is_secret_name
from broker.classify.subscripts import hides_a_command
from broker.classify.word import Word


@reader("cd")
def _cd(call: Call) -> None:
    scope = call.scope
    operands = [word for word in call.words[1:] if word.text not in ("-P", "-L", "-e", "-@", "--", "-n")]
    if call.name == "popd":
        scope.cwd = None
        return
    if not operands:
        target: str | None = scope.variables.get("HOME", call.inquiry.context.home)
    elif operands[0].text == "-":
        target = scope.previous_cwd
    elif not operands[0].known and operands[0].text[:1] not in ("/", "."):
        target = None
    else:
        target = operands[0].text
    if call.name == "pushd" and not operands:
        target = None
    previous = scope.cwd
    scope.cwd = None if not target else paths.resolve(target, scope.cwd, call.inquiry.context)
    if scope.cwd is not None and (UNKNOWN in scope.cwd or any(mark in scope.cwd for mark in "*?[")):
        scope.cwd = scope.cwd if TAME in scope.cwd else None
    scope.previous_cwd = previous


@reader("export")
def _export(call: Call) -> None:
    """export, declare, typeset, local, readonly."""
    scope = call.scope
    exports = call.name == "export"
    prints = False
    functions = reference = False
    names = 0
    for word in call.words[1:]:
        text = word.text
        if text[:1] in "-+" and len(text) > 1 and "=" not in text:
            exports |= text[0] == "-" and "x" in text
            prints |= "p" in text
            functions |= "f" in text or "F" in text
            reference |= "n" in text and call.name != "export"
            continue
        names += 1
        match = ASSIGNMENT.fullmatch(text)
        if match is None:
            if "[" in text:
                subscript(call, text)
            if prints and is_secret_name(text):
                call.add(Risk.SYSTEM_WRITE, "secret.variable", f"It prints ${text}, named like a secret.")
            if exports and text in scope.variables:
                scope.exported.add(text)
                set_variable(call, text, scope.variables[text])
            continue
        name, value = match.groups()
        if hides_a_command(value):
            subscript(call, value)
        # The value of a reference is another variable's.
        scope.variables[name] = UNKNOWN if reference or "+=" in text[: len(name) + 2] else value
        set_variable(call, name, value)
        if exports:
            scope.exported.add(name)
    if not names and not functions and (prints or len(call.words) == 1 or exports):
        call.add(
            Risk.SYSTEM_WRITE, "secret.environment", f"{call.name} prints the environment, secrets included."
        )


@reader("set")
def _set(call: Call) -> None:
    if len(call.words) == 1:
        call.add(Risk.SYSTEM_WRITE, "secret.environment", "set prints every variable, secrets included.")


@reader("unset")
def _unset(call: Call) -> None:
    for word in call.words[1:]:
        subscript(call, word.text)
        call.scope.functions.discard(word.text)
        call.scope.variables.pop(word.text, None)  # not "": `${x-default}` tells the two apart


@reader("read")
def _read(call: Call) -> None:
    names = [word.text for word in call.words[1:] if not word.text.startswith("-")]
    stdin = call.scope.stdin
    if stdin is not None and len(stdin.names) == 1 and len(names) == 1 and "$" not in names[0]:
        call.scope.variables[names[0]] = stdin.names[0]
        return
    for name in names or ["REPLY"]:
        subscript(call, name)
        call.scope.variables[name] = UNKNOWN


def subscript(call: Call, text: str) -> None:
    """A subscript is evaluated again by bash, even a quoted one: a substitution inside it runs."""
    if "$(" not in text and "`" not in text:
        return
    call.add(Risk.CODE_EXECUTION, "shell.subscript", "A subscript runs the command inside it.")
    for inner in re.findall(r"\$\(([^()]*)\)|`([^`]*)`", text):
        call.shell_text(inner[0] or inner[1])


@reader("eval")
def _eval(call: Call) -> None:
    words = [word for word in call.words[1:] if word.text != "--"]
    if not words:
        return
    text = " ".join([word.text for word in words])
    if UNKNOWN in text or TAME in text:
        call.add(Risk.CODE_EXECUTION, "shell.dynamic_text", "eval runs a text that cannot be known before.")
        return

    place = call.place_of(words[0], words[-1])
    call.inquiry.read_text(call.inquiry, text, call.scope, call.index, place)


@reader("source")
def _source(call: Call) -> None:
    if len(call.words) < 2:
        return
    script, stdin = call.words[1], call.scope.stdin
    call.read(script)
    call.add(Risk.CODE_EXECUTION, "interpreter.script", f"The shell runs {code_in(script)}.")
    if script.text in ("/dev/stdin", "/dev/fd/0") and stdin is not None and stdin.text is not None:
        call.inquiry.read_text(call.inquiry, stdin.text, call.scope, call.index, call.span)


@reader("trap")
def _trap(call: Call) -> None:
    operands = [word for word in call.words[1:] if word.text != "--"]
    if not operands or operands[0].text in ("-l", "-p") or len(operands) < 2 or operands[0].text == "-":
        return
    text = operands[0]
    if not text.known:
        call.add(Risk.CODE_EXECUTION, "shell.dynamic_text", "trap runs a text that cannot be known before.")
        return

    place = call.place_of(text, text)
    call.inquiry.read_text(call.inquiry, text.text, call.scope.copy().guess_all(), call.index, place)


@reader("exec")
def _exec(call: Call) -> None:
    """exec, command, builtin: the rest is a command, behind a few options."""
    words = call.words[1:]
    while words and words[0].text.startswith("-") and len(words[0].text) > 1:
        flag = words[0].text
        words = words[1:]
        if flag == "--":
            break
        if call.name == "command" and set(flag[1:]) & set("vV"):
            return
        if call.name == "exec" and "a" in flag:
            words = words[1:]
    call.command(words)


@reader("alias")
def _alias(call: Call) -> None:
    """An alias is a text that runs later: judged as if it ran now, and its name means nothing else any more."""
    for word in call.words[1:]:
        name, equals, text = word.text.partition("=")
        if not equals and word.known and word.text not in ("-g", "-s"):
            continue
        if not equals or not _ALIAS.fullmatch(name) or name in _RESERVED:
            call.add(
                Risk.CODE_EXECUTION,
                "shell.alias",
                "An alias for another word than a program's changes how text is read.",
            )
            continue
        call.inquiry.aliases.add(name)
        if UNKNOWN in text or TAME in text:
            call.add(
                Risk.CODE_EXECUTION, "shell.dynamic_text", f"The alias {name} is a text that cannot be known."
            )
            continue

        call.inquiry.read_text(call.inquiry, text, call.scope.copy(), call.index, call.place_of(word, word))


_ALIAS = re.compile(r"[A-Za-z0-9_.+-]+")
_RESERVED = frozenset(
    "if then else elif fi for while until do done case esac in select function time coproc alias unalias".split()
)


@reader("hash")
def _hash(call: Call) -> None:
    if any("p" in word.text for word in call.words[1:] if word.text.startswith("-")):
        call.add(Risk.CODE_EXECUTION, "shell.hash", "hash -p makes a name mean another program.")


@reader("compgen")
def _compgen(call: Call) -> None:
    for at, word in enumerate(call.words[1:], 1):
        flag = word.text[:1] == "-" and "C" in word.text
        if flag and at + 1 < len(call.words):
            call.shell(call.words[at + 1])
        if flag or not word.known or "$" in word.text or "`" in word.text:
            call.add(
                Risk.CODE_EXECUTION,
                "shell.completion",
                "compgen expands its word list, and runs what -C names.",
            )


@reader("fc")
def _fc(call: Call) -> None:
    if not any(word.text[:1] == "-" and "l" in word.text for word in call.words[1:]):
        call.add(Risk.CODE_EXECUTION, "shell.history", "fc runs commands of the history again.")


@reader("history")
def _history(call: Call) -> None:
    """-w and -a write a file: the one named, or $HISTFILE."""
    words = [word.text for word in call.words[1:]]
    if not any(text[:1] == "-" and set("wa") & set(text) for text in words):
        return
    files = [word for word in call.words[1:] if not word.text.startswith("-")]
    usual = call.scope.variables.get("HISTFILE", call.inquiry.context.home + "/.bash_history")
    for file in files or [Word(usual, False, False, 0, 0)]:
        call.write(file)


@reader("wait")
def _wait(call: Call) -> None:
    for word in call.words[1:]:
        subscript(call, word.text)


@reader("enable")
def _enable(call: Call) -> None:
    if any("f" in word.text for word in call.words[1:] if word.text.startswith("-")):
        call.add(Risk.CODE_EXECUTION, "shell.enable", "enable -f loads a library into the shell.")


@reader("let")
def _let(call: Call) -> None:
    for word in call.words[1:]:
        subscript(call, word.text)
        name = re.match(r"\W*([A-Za-z_]\w*)", word.text)
        if name is not None:
            call.scope.variables[name.group(1)] = TAME


@reader("printf")
def _printf(call: Call) -> None:
    words = call.words[1:]
    if words and words[0].text.startswith("-v"):
        name = words[0].text[2:] or (words[1].text if len(words) > 1 else "")
        subscript(call, name)
        call.scope.variables[name] = UNKNOWN


@reader("test")
def _test(call: Call) -> None:
    for word in call.words[1:]:
        if "[" in word.text[1:]:
            subscript(call, word.text)


@reader("echo")
def _echo(call: Call) -> None:
    return
