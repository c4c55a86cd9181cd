"""Readers for sed, awk and jq. What their programs do is in scripts.py."""

from __future__ import annotations

import re

from broker.classify import scripts
from broker.classify.call import ASSIGNMENT, Call, reader
from broker.classify.commands import judge_parsed
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import judge_options
from broker.classify.scope import shown
from broker.classify.secret_names import is_secret_name
from broker.classify.word import Word


@reader("sed")
def _sed(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    programs: list[Word] = []
    for option, value in parsed.options:
        if option.role == "sed" and value is not None:
            programs.append(value)
        elif option.role == "script" and value is not None:
            call.read(value)
            call.add(
                Risk.CODE_EXECUTION, "interpreter.script", f"sed runs the commands in {shown(value.text)}."
            )
    operands = list(parsed.operands)
    in_place = "in_place" in call.marks
    if not programs and not any(option.role == "script" for option, _ in parsed.options):
        if in_place and len(operands) > 2 and operands[0].text == "":
            operands = operands[1:]  # BSD: -i takes a separate, often empty, suffix
        if operands:
            programs.append(operands[0])
            operands = operands[1:]
    for program in programs:
        scripts.judge_sed(call, program, sandboxed="sandbox" in call.marks)
    for word in operands:
        if in_place:
            call.write(word)
        call.read(word)
    if in_place and not operands:
        call.add(Risk.LOCAL_WRITE, "option.sed-i", "sed -i changes files.")


_IN_PLACE = re.compile(r"(?:^|/)inplace(?:\.awk)?$")


@reader("awk")
def _awk(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = list(parsed.operands)
    given = False
    for option, value in parsed.options:
        if option.role == "awk" and value is not None:
            scripts.judge_awk(call, value)
            given = True
        elif option.name in ("-f", "--file", "-E", "--exec"):
            given = True  # -i and -l only add to the program
    if any(
        option.name in ("-i", "--include") and _IN_PLACE.search(value.text)
        for option, value in parsed.options
        if value
    ):
        for word in operands[0 if given else 1 :]:
            call.write(word)
    if not given and operands:
        scripts.judge_awk(call, operands[0])
        operands = operands[1:]
    for word in operands:
        if not ASSIGNMENT.fullmatch(word.text):
            call.read(word)


@reader("jq")
def _jq(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_parsed(call, call.entry, parsed)
    program = next((word.text for word in parsed.operands), "")
    for name in re.findall(r"(?:env\.|\$ENV\.|\$__prog_args\.)(\w+)", program):
        if is_secret_name(name):
            call.add(Risk.SYSTEM_WRITE, "secret.variable", f"The filter reads {name}, named like a secret.")
    if re.search(r"(?:^|[^\w.$])(?:env|\$ENV)(?:\s*$|[^\w.])", program):
        call.add(
            Risk.SYSTEM_WRITE, "secret.environment", "The filter reads the environment, secrets included."
        )


_MLR_RUNS = re.compile(r"\b(?:system|exec|os\.execute)\s*\(|\|\s*\"")
_MLR_WRITES = re.compile(r"\b(?:tee|emit\w*|print\w*|dump)\b[^;{}]*>")


@reader("mlr")
def _mlr(call: Call) -> None:
    """Miller: verbs joined by `then`, then files. The programs of put and filter run commands and write files."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = parsed.operands
    verbs = {word.text for word in operands}
    if verbs & {"put", "filter"}:
        for word in operands:
            if _MLR_RUNS.search(word.text):
                call.add(Risk.CODE_EXECUTION, "mlr.command", "A program of mlr runs a command.")
            if _MLR_WRITES.search(word.text):
                call.add(Risk.LOCAL_WRITE, "mlr.output", "A program of mlr writes into files.")
    if verbs & {"split", "tee", "case-split"}:
        call.add(Risk.LOCAL_WRITE, "mlr.output", "A verb of mlr writes into files.")
    for word in operands:
        if "in_place" in call.marks or "tee" in verbs:
            call.write(word)
        else:
            call.read(word)


_EX_WRITES = re.compile(r":*[%.$\d,]*(?:w|wq|write|sav|saveas|x|r?update)!?\s+(?:>>\s*)?(?P<file>[^\s!|]\S*)")
_EX_RUNS = re.compile(r":*[%.$\d,]*(?:silent!?\s+|sil!?\s+)?(?:r(?:ead)?\s*|w(?:rite)?\s+)?!(?P<command>.+)")


@reader("ex")
def _ex(call: Call) -> None:
    """vi, ex, ed, less: files that are edited, and commands (-c, +, the input) that write others or run programs."""
    commands: list[str] = []
    words: list[Word] = []
    for word in call.words[1:]:
        if word.text.startswith("+") and len(word.text) > 1:
            commands.append(word.text[1:])
        else:
            words.append(word)
    parsed = parse(call, words)
    judge_parsed(call, call.entry, parsed)
    commands += [value.text for option, value in parsed.options if "ex" in option.marks and value is not None]
    stdin = call.scope.stdin
    edits = Risk.CODE_EXECUTION in call.entry.effects
    if edits and stdin is not None and stdin.text is not None:
        commands += stdin.text.splitlines()[:64]
    for command in commands:
        runs = _EX_RUNS.fullmatch(command)
        if runs is not None:
            call.add(Risk.CODE_EXECUTION, "editor.command", "A command of it runs a program.")
            call.shell_text(runs["command"])
            continue
        for part in command.split("|"):
            writes = _EX_WRITES.fullmatch(part.strip())
            if writes is not None:
                call.write(Word(writes["file"], False, False, 0, 0))
