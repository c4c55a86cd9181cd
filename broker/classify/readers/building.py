"""Readers for build tools, compilers, formatters and package managers."""

from __future__ import annotations

from broker.classify.call import ASSIGNMENT, Call, like, reader, set_variable
from broker.classify.commands import by_grammar
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import judge_options


@reader("make")
def _make(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if not call.marks & {"dry"} or "eval" in call.marks:
        call.add(Risk.CODE_EXECUTION, "program.make", "make runs the commands in its makefile.")
    else:
        # Even -n runs `+` lines and $(shell …).
        call.add(Risk.CODE_EXECUTION, "program.make", "make reads its makefile, and $(shell …) in it runs.")
    for word in parsed.operands:
        match = ASSIGNMENT.fullmatch(word.text)
        if match is not None:
            set_variable(call, match.group(1), match.group(2))


@reader("compiler")
def _compiler(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    asks = {"-v", "-V", "-dumpversion", "-dumpmachine", "-print-search-dirs", "-print-file-name"}
    if call.words[1:] and not parsed.operands and all(option.name in asks for option, _ in parsed.options):
        return
    judge_options(call, parsed)
    for word in parsed.operands:
        if word.text.startswith("@"):
            call.read(like(word, word.text[1:]))
    if not any(option.role == "write" for option, _ in parsed.options):
        call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name}", f"{call.name} writes its output.")


@reader("formatter")
def _formatter(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "check" in call.marks:
        return
    call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name}", f"{call.name} rewrites files.")


@reader("prettier")
def _prettier(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "writes" in call.marks:
        call.add(Risk.LOCAL_WRITE, "option.prettier-w", "prettier --write changes files.")


@reader("tsc")
def _tsc(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "check" not in call.marks:
        call.add(Risk.LOCAL_WRITE, "program.tsc", "tsc writes what it compiles.")


@reader("go-install")
def _go_install(call: Call) -> None:
    by_grammar(call)
    if any("@" in word.text for word in call.words[1:]):
        call.add(Risk.INSTALL, "program.go.install", "go install fetches a program.")
    call.add(Risk.LOCAL_WRITE, "path.write", "go install writes a program to GOBIN.")


@reader("npm-run")
def _npm_run(call: Call) -> None:
    if len(call.words) == 1:
        return  # it lists the scripts
    call.add(
        Risk.CODE_EXECUTION,
        f"program.{call.entry.name.replace(' ', '.')}",
        "It runs a script of package.json.",
    )


@reader("npm-config")
def _npm_config(call: Call) -> None:
    texts = [word.text for word in call.words[1:] if not word.text.startswith("-")]
    if texts[:1] in (["set"], ["edit"], ["delete"], ["fix"]):
        call.add(
            Risk.PERSISTENCE, "npm.config", "It changes npm's configuration, which every later npm obeys."
        )


@reader("npm-pkg")
def _npm_pkg(call: Call) -> None:
    texts = [word.text for word in call.words[1:]]
    if texts[:1] in (["set"], ["delete"], ["fix"]):
        call.add(Risk.LOCAL_WRITE, "path.write", "It changes package.json.")
        if any(text.startswith("scripts.") for text in texts):
            call.add(Risk.PERSISTENCE, "npm.script", "It plants a script that npm runs later.")
