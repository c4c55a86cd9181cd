"""Readers for shells and interpreters: code as an option, a script, a module, a program on the input."""

from __future__ import annotations

from broker.classify.call import Call, code_in, like, reader
from broker.classify.code import secrets_in_code
from broker.classify.commands import judge_sub
from broker.classify.entries import entry_of, sub_entry
from broker.classify.grammar import parse
from broker.classify.risk import Risk
from broker.classify.roles import WHY, judge_options
from broker.classify.scope import shown
from broker.classify.word import Word

_SHELL_VALUES = frozenset(
    ("-o", "+o", "-O", "+O", "--rcfile", "--init-file", "--emulate", "-C", "--init-command")
)


@reader("shell")
def _shell(call: Call) -> None:
    """sh, bash, zsh …: -c TEXT (in any bundle), a script, or a program on standard input."""
    words = call.words[1:]
    at = 0
    text_next = reads_stdin = dry = False
    while at < len(words):
        flag = words[at].text
        if flag in ("--help", "--version"):
            return
        if flag in ("--", "-"):
            at += 1
            break
        if len(flag) < 2 or flag[0] not in "-+" or not words[at].known:
            break
        if flag in _SHELL_VALUES:
            value = words[at + 1] if at + 1 < len(words) else None
            if flag in ("--rcfile", "--init-file") and value is not None:
                call.add(
                    Risk.CODE_EXECUTION,
                    "interpreter.script",
                    f"The shell runs {code_in(value)}.",
                )
            if flag in ("-C", "--init-command") and call.name == "fish" and value is not None:
                call.shell(value, call.name)
            at += 2
            continue
        if flag.startswith("--command") or (call.name == "fish" and flag == "--command"):
            text_next = True
        elif not flag.startswith("--"):
            letters = flag[1:]
            text_next |= "c" in letters and flag[0] == "-"
            reads_stdin |= "s" in letters
            dry |= "n" in letters and flag[0] == "-"
            if letters.endswith(("o", "O")):
                at += 1
        at += 1
    rest = words[at:]
    if text_next:
        if not rest:
            return
        _shell_command(call, rest)
        return
    if rest and not reads_stdin:
        script = rest[0]
        if dry:
            call.read(script)
            return
        call.read(script)
        call.add(Risk.CODE_EXECUTION, "interpreter.script", f"{call.name} runs {code_in(script)}.")
        return
    _shell_stdin(call)


def _shell_command(call: Call, rest: list[Word]) -> None:
    text = rest[0]
    if call.name in ("fish", "nu", "elvish", "xonsh", "pwsh", "tcsh", "csh"):
        call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code in a language of its own.")
    call.shell(text, call.name)


def _shell_stdin(call: Call) -> None:
    stdin = call.scope.stdin
    if stdin is not None and stdin.text is not None:
        call.add(Risk.CODE_EXECUTION, "interpreter.stdin", f"{call.name} runs the text on its input.")
        text = stdin.text
        call.scope.stdin = None
        call.shell_text(text, call.name)
        call.scope.stdin = stdin
        return
    if stdin is None:
        call.add(
            Risk.CODE_EXECUTION, "interpreter.stdin", f"{call.name} runs whatever it is given on its input."
        )
        return
    call.add(Risk.CODE_EXECUTION, "interpreter.stdin", f"{call.name} runs what comes in on its input.")


@reader("interpreter")
def _interpreter(call: Call) -> None:
    """python, node, perl, ruby …: code as an option, a script, a module, or a program on standard input."""
    entry = call.entry
    raw = entry.raw
    harmless = raw.get("harmless", "--version --help").split()
    words = call.words[1:]
    if words and all(word.text in harmless for word in words):
        return
    parsed = parse(call, words)
    judge_options(call, parsed)
    ended = any("ends" in option.marks for option, _ in parsed.options)
    rest = parsed.rest or parsed.operands
    if "check" in call.marks:
        for word in rest:
            call.read(word)
        return
    if ended:
        _arguments_of_code(call, rest)
    elif rest and rest[0].text != "-":
        _interpreter_script(call, rest)
    else:
        _interpreter_stdin(call)
    if not call.finding.effects:
        call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code.")


def _interpreter_script(call: Call, rest: list[Word]) -> None:
    """A script and its arguments. Some are programs that we know: `php artisan …`, `python manage.py …`."""
    script = rest[0]
    if "://" in script.text:
        call.add(Risk.NETWORK_EGRESS, "network.host", f"{call.name} fetches {shown(script.text)}.")
    call.read(script)
    call.add(Risk.CODE_EXECUTION, "interpreter.script", f"{call.name} runs {code_in(script)}.")
    name = script.text.rpartition("/")[2]
    if name in call.entry.raw.get("scripts", "").split() and entry_of(name) is not None:
        call.command([like(script, name), *rest[1:]])


def _arguments_of_code(call: Call, words: list[Word]) -> None:
    """The files behind `-e CODE`: with -i (perl, ruby) they are rewritten, else they are likely read."""
    for word in words:
        if "inplace" in call.marks:
            call.write(word)
        elif word.text.startswith(("/", "~", ".")):
            call.read(word)


def _interpreter_stdin(call: Call) -> None:
    call.add(Risk.CODE_EXECUTION, "interpreter.stdin", f"{call.name} runs the program on its input.")
    if call.scope.stdin is not None and call.scope.stdin.text:
        secrets_in_code(call, call.scope.stdin.text)


@reader("python")
def _python(call: Call) -> None:
    words = call.words[1:]
    at = 0
    while at < len(words):
        flag = words[at].text
        if flag in ("-V", "-VV", "--version", "-h", "--help", "--help-all", "--help-env") or flag == "-?":
            return
        if len(flag) < 2 or flag[0] != "-" or flag.startswith("--"):
            if flag.startswith("--") and len(flag) > 2:
                at += 2 if flag == "--check-hash-based-pycs" else 1
                continue
            break
        letters = flag[1:]
        for index, letter in enumerate(letters):
            tail = letters[index + 1 :]
            if letter in "cm":
                value = like(words[at], tail) if tail else (words[at + 1] if at + 1 < len(words) else None)
                following = words[at + 1 :] if tail else words[at + 2 :]
                if value is None:
                    return
                if letter == "c":
                    call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code given as text.")
                    secrets_in_code(call, value.text)
                    _arguments_of_code(call, following)
                else:
                    _python_module(call, value, following)
                return
            if letter in "WX":
                at += 0 if tail else 1
                break
        at += 1
    rest = words[at:]
    if not rest or rest[0].text == "-":
        _interpreter_stdin(call)
        return
    _interpreter_script(call, rest)


def _python_module(call: Call, module: Word, rest: list[Word]) -> None:
    """`-m NAME`: what the module is, by the sub-commands and the list of programs in python's entry."""
    name = module.text
    own = sub_entry(call.entry, name)
    if own is not None:
        judge_sub(call, own, rest)
        return
    risks = call.entry.commands.get(name)
    if risks is not None:
        for risk in set(risks) - {Risk.SAFE}:
            call.add(risk, "interpreter.module", WHY[risk].format(f"{call.name} -m {name}"))
        for word in rest:
            if not word.text.startswith("-"):
                call.read(word)
        return
    program = name.replace("_", "-")
    if name in call.entry.raw["programs"].split() and entry_of(program) is not None:
        call.command([like(module, program), *rest])
        return
    call.add(Risk.CODE_EXECUTION, "interpreter.module", f"{call.name} runs the module {shown(name)}.")
