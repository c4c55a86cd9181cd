"""Readers for build tools, compilers, formatters and package managers."""

from __future__ import annotations

from broker.classify.call import ASSIGNMENT, Call, like, reader, set_variable
from broker.classify.commands import by_grammar, judge_sub
from broker.classify.entries import entry_of, sub_entry
from broker.classify.grammar import Parsed, parse
from broker.classify.names import known_name
from broker.classify.risk import Risk
from broker.classify.roles import WHY, apply_role, default_why, judge_options, judge_options_of
from broker.classify.word import Word


@reader("asks")
def _asks(call: Call) -> None:
    """A program that is harmless when it is asked only for its version, in words of its own."""
    words = call.words[1:]
    if not words or any(word.text not in call.entry.raw["harmless"].split() for word in words):
        by_grammar(call)


@reader("toolchain")
def _toolchain(call: Call) -> None:
    """`cargo +nightly …`: the tool chain comes before everything."""
    if len(call.words) > 1 and call.words[1].text.startswith("+"):
        call.words = [call.words[0], *call.words[2:]]
    by_grammar(call)


@reader("goals")
def _goals(call: Call) -> None:
    """Build tools whose operands are goals, each with effects of its own: mvn, gradle, ant, sbt …"""
    entry = call.entry
    words = call.words[1:]
    first = True
    while words:
        parsed = parse(call, words)
        judge_options(call, parsed)
        if first and _only_asked(parsed, words):
            return
        first = False
        if not parsed.rest:
            break
        goal, words = parsed.rest[0].text, parsed.rest[1:]
        # A goal may name its project or plugin: `:app:publish`, `release:perform`.
        for risk in entry.commands.get(goal) or entry.commands.get(goal.rpartition(":")[2], ()):
            call.add(risk, f"program.{entry.name}.{goal}", WHY[risk].format(f"{entry.name} {goal}"))
    for risk in entry.effects:
        call.add(risk, f"program.{entry.name}", entry.why or default_why(entry, risk))


@reader("make")
def _make(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    if _only_asked(parsed, call.words[1:]):
        return
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


def _only_asked(parsed: Parsed, words: list[Word]) -> bool:
    """Whether all that is on the command line asks the program about itself."""
    flags = sum(word.text.startswith("-") for word in words)  # those that nobody knows are not in `parsed`
    return (
        len(parsed.options) == flags > 0
        and not parsed.operands
        and not parsed.rest
        and all("asks" in option.marks for option, _ in parsed.options)
    )


@reader("cmake")
def _cmake(call: Call) -> None:
    """With -E, cmake is a box of tools; everything else runs the project's CMake files."""
    words = call.words[1:]
    tools = sub_entry(call.entry, "-E")
    if words and words[0].text == "-E" and tools is not None:
        judge_sub(call, tools, words[1:])
        return
    words = _detached(call)
    parsed = parse(call, words)
    if _only_asked(parsed, words):
        return
    call.add(Risk.CODE_EXECUTION, "program.cmake", call.entry.why)
    judge_options(call, parsed)


_PASSED_ON = {"l": "ld", "a": "as", "p": "cc1"}


@reader("compiler")
def _compiler(call: Call) -> None:
    """Compilers and linkers: what they write, which code they load, and what they hand to the next tool."""
    words = _detached(call)
    parsed = parse(call, words)
    if _only_asked(parsed, words):
        return
    judge_options(call, parsed)
    for_linker: list[Word] = []
    for option, value in parsed.options:
        if value is None:
            continue
        # -Wl,-plugin,X hands `-plugin X` to the linker, as -Xlinker does word by word.
        if option.name == "-W" and value.text[1:2] == "," and value.text[0] in _PASSED_ON:
            _options_of(call, _PASSED_ON[value.text[0]], [like(value, t) for t in value.text[2:].split(",")])
        elif option.name == "-Xlinker":
            for_linker.append(value)
        elif option.name == "-f" and value.text.startswith(("dump-", "opt-info")) and "=" in value.text:
            call.write(like(value, value.text.partition("=")[2]))
    _options_of(call, "ld", for_linker)
    for word in parsed.operands:
        call.read(word)  # what it cannot compile it quotes
        _response_file(call, word)
    writes = any(option.role == "write" for option, _ in parsed.options)
    if not writes and "check" not in call.marks:
        call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name}", f"{call.name} writes its output.")


def _detached(call: Call) -> list[Word]:
    """`-oFILE` and `-BFOLDER` as the two words that they stand for."""
    words: list[Word] = []
    for word in call.words[1:]:
        text = word.text
        options = call.entry.options
        if (
            text[:2] in ("-o", "-B")
            and len(text) > 2
            and text[:2] in options
            and text.partition("=")[0] not in options
        ):
            words += [like(word, text[:2]), like(word, text[2:])]
        else:
            words.append(word)
    return words


def _options_of(call: Call, program: str, words: list[Word]) -> None:
    """The options that a tool hands to another one."""
    entry = entry_of(program)
    if words and entry is not None:
        parsed = parse(call, words, entry)
        judge_options_of(call, entry, parsed)
        for word in parsed.operands:
            _response_file(call, word)


def _response_file(call: Call, word: Word) -> None:
    """`@file`: more options, which no one can see here, and which can name programs and plugins."""
    if word.text.startswith("@"):
        apply_role(call, "config", like(word, word.text[1:]), call.name)


@reader("ar")
def _ar(call: Call) -> None:
    """The first word of ar is a bundle of letters, with or without a dash: an operation, and how to do it."""
    words = call.words[1:]
    for at, word in enumerate(words):
        if word.text[:1] == "-" and word.text[1:2] not in ("", "-"):
            words[at] = like(word, word.text[1:])
            break
    parsed = parse(call, words)
    judge_options(call, parsed)
    if not parsed.operands:
        return
    letters = parsed.operands[0].text
    operands = parsed.operands[1:]
    if "M" in letters:
        call.add(
            Risk.LOCAL_WRITE, "program.ar", "ar -M obeys a script on its input, which names what it writes."
        )
    if set(letters) & set("abiN"):
        operands = operands[1:]  # where in the archive, or the how manieth
    archive, members = operands[:1], operands[1:]
    for word in archive:
        if set(letters) & set("tpx"):
            call.read(word)
        else:
            call.write(word)
    if "x" in letters:
        call.add(Risk.LOCAL_WRITE, "program.ar", "ar unpacks the archive's members into the folder.")
        return
    if set(letters) & set("rq"):
        for word in members:
            call.read(word)


@reader("formatter")
def _formatter(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "check" in call.marks or _only_asked(parsed, call.words[1:]):
        return
    call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name}", f"{call.name} rewrites files.")
    for word in parsed.operands:
        call.write(word)


@reader("prettier")
def _prettier(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "writes" in call.marks:
        call.add(Risk.LOCAL_WRITE, "option.prettier-w", "prettier --write changes files.")
        for word in parsed.operands:
            call.write(word)


@reader("tsc")
def _tsc(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "check" not in call.marks:
        call.add(Risk.LOCAL_WRITE, "program.tsc", "tsc writes what it compiles.")


@reader("in-environment")
def _in_environment(call: Call) -> None:
    """`uv run …`, `npx …`: a command that the project or a package may bring, or a program that we know."""
    entry, words = call.entry, call.words[1:]
    parsed = parse(call, words)
    if _only_asked(parsed, words):
        return
    judge_options(call, parsed)
    for risk in entry.effects:
        call.add(risk, f"program.{entry.name.replace(' ', '.')}", entry.why or default_why(entry, risk))
    rest = parsed.rest
    if rest:
        program = rest[0].text
        bare = program[:1] + program[1:].partition("@")[0]  # eslint@9: npx, uvx and pipx take a version
        if not rest[0].known or "/" in program or entry_of(known_name(bare)) is not None:
            call.command([like(rest[0], bare) if rest[0].known else rest[0], *rest[1:]])


@reader("go-run")
def _go_run(call: Call) -> None:
    by_grammar(call)
    package = next((word.text for word in parse(call, call.words[1:]).operands), "")
    if "@" in package:
        call.add(Risk.INSTALL, "program.go.run", "go run fetches a program.")


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
