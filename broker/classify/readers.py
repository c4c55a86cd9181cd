"""Step 2: readers for programs whose arguments are a language of their own. The tables name them (`reader = …`).

Each takes a Call and adds to its finding. Most use the entry's grammar for options and only say what the
operands mean.
"""

from __future__ import annotations

import re

from broker.classify import environment, paths, scripts
from broker.classify.programs import (
    Call,
    Parsed,
    apply_operands,
    by_grammar,
    entry_of,
    judge_parsed,
    known_name,
    parse,
    reader,
    secrets_in_code,
    set_variable,
    unknown_word,
)
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN, Scope, Stdin, shown
from broker.classify.words import Word, is_secret_name

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.S)


def _like(word: Word, text: str) -> Word:
    return Word(text, word.static and UNKNOWN not in text, False, word.start, word.end)


# -- the shell's own commands --------------------------------------------------------------------------


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
    functions = False
    names = 0
    for word in call.words[1:]:
        text = word.text
        if text[:1] in "-+" and len(text) > 1 and "=" not in text:
            exports |= text[0] == "-" and "x" in text
            prints |= "p" in text
            functions |= "f" in text or "F" in text
            continue
        names += 1
        match = _ASSIGNMENT.fullmatch(text)
        if match is None:
            if "[" in text:
                _subscript(call, text)
            if prints and is_secret_name(text):
                call.add(Risk.SYSTEM_WRITE, "secret.variable", f"It prints ${text}, named like a secret.")
            if exports and text in scope.variables:
                scope.exported.add(text)
                set_variable(call, text, scope.variables[text])
            continue
        name, value = match.groups()
        scope.variables[name] = value if "+=" not in text[: len(name) + 2] else UNKNOWN
        set_variable(call, name, value)
        if exports:
            scope.exported.add(name)
    if not names and not functions and (prints or len(call.words) == 1 or exports):
        call.add(Risk.SYSTEM_WRITE, "secret.environment", f"{call.name} prints the environment, secrets included.")


@reader("set")
def _set(call: Call) -> None:
    if len(call.words) == 1:
        call.add(Risk.SYSTEM_WRITE, "secret.environment", "set prints every variable, secrets included.")


@reader("unset")
def _unset(call: Call) -> None:
    for word in call.words[1:]:
        call.scope.variables[word.text] = ""


@reader("read")
def _read(call: Call) -> None:
    names = [word.text for word in call.words[1:] if not word.text.startswith("-")]
    stdin = call.scope.stdin
    if stdin is not None and len(stdin.names) == 1 and len(names) == 1 and "$" not in names[0]:
        call.scope.variables[names[0]] = stdin.names[0]
        return
    for name in names or ["REPLY"]:
        _subscript(call, name)
        call.scope.variables[name] = UNKNOWN


def _subscript(call: Call, text: str) -> None:
    """bash evaluates a subscript again, even a quoted one: a substitution inside it runs."""
    if "$(" not in text and "`" not in text:
        return
    call.add(Risk.CODE_EXECUTION, "shell.subscript", "A subscript runs the command inside it.")
    for inner in re.findall(r"\$\(([^()]*)\)|`([^`]*)`", text)[:8]:
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
    from broker.classify.shell import read_text

    read_text(call.inquiry, text, call.scope, call.index, call.span)


@reader("source")
def _source(call: Call) -> None:
    if len(call.words) > 1:
        call.read(call.words[1])
        call.add(
            Risk.CODE_EXECUTION, "interpreter.script", f"The shell runs the code in {shown(call.words[1].text)}."
        )
        # What it sets is unknown from here on; what it defines cannot hide a program from the gate.


@reader("trap")
def _trap(call: Call) -> None:
    operands = [word for word in call.words[1:] if word.text != "--"]
    if not operands or operands[0].text in ("-l", "-p") or len(operands) < 2 or operands[0].text == "-":
        return
    text = operands[0]
    if not text.known:
        call.add(Risk.CODE_EXECUTION, "shell.dynamic_text", "trap runs a text that cannot be known before.")
        return
    from broker.classify.shell import read_text

    read_text(call.inquiry, text.text, call.scope.copy().guess_all(), call.index, call.span)


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
        if not equals:
            continue
        if UNKNOWN in text or TAME in text:
            call.add(Risk.CODE_EXECUTION, "shell.dynamic_text", f"The alias {name} is a text that cannot be known.")
            continue
        from broker.classify.shell import read_text

        read_text(call.inquiry, text, call.scope.copy(), call.index, call.span)


@reader("hash")
def _hash(call: Call) -> None:
    if any("p" in word.text for word in call.words[1:] if word.text.startswith("-")):
        call.add(Risk.CODE_EXECUTION, "shell.hash", "hash -p makes a name mean another program.")


@reader("enable")
def _enable(call: Call) -> None:
    if any("f" in word.text for word in call.words[1:] if word.text.startswith("-")):
        call.add(Risk.CODE_EXECUTION, "shell.enable", "enable -f loads a library into the shell.")


@reader("let")
def _let(call: Call) -> None:
    for word in call.words[1:]:
        _subscript(call, word.text)


@reader("printf")
def _printf(call: Call) -> None:
    words = call.words[1:]
    if words and words[0].text.startswith("-v"):
        name = words[0].text[2:] or (words[1].text if len(words) > 1 else "")
        _subscript(call, name)
        call.scope.variables[name] = UNKNOWN


@reader("test")
def _test(call: Call) -> None:
    for word in call.words[1:]:
        if "[" in word.text[1:]:
            _subscript(call, word.text)


# -- shells and interpreters ---------------------------------------------------------------------------

_SHELL_VALUES = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file", "--emulate", "-C", "--init-command"))


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
                call.add(Risk.CODE_EXECUTION, "interpreter.script", f"The shell runs the code in {shown(value.text)}.")
            if flag in ("-C", "--init-command") and call.name == "fish" and value is not None:
                call.shell(value)
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
        call.add(Risk.CODE_EXECUTION, "interpreter.script", f"{call.name} runs the code in {shown(script.text)}.")
        return
    _shell_stdin(call)


def _shell_command(call: Call, rest: list[Word]) -> None:
    text = rest[0]
    if call.name in ("fish", "nu", "elvish", "xonsh", "pwsh", "tcsh", "csh"):
        call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code in a language of its own.")
    if call.name == "zsh" and text.known and re.search(r"\(\s*[#^.\w/@,-]*[e+][:'\"\[{<]", text.text):
        call.add(Risk.CODE_EXECUTION, "shell.glob_qualifier", "A zsh glob qualifier runs code for each name.")
    call.shell(text)


def _shell_stdin(call: Call) -> None:
    stdin = call.scope.stdin
    if stdin is not None and stdin.text is not None:
        call.add(Risk.CODE_EXECUTION, "interpreter.stdin", f"{call.name} runs the text on its input.")
        text = stdin.text
        call.scope.stdin = None
        call.shell_text(text)
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
    rest = parsed.rest
    if not ended:
        if rest:
            script = rest[0]
            if script.text == "-":
                _interpreter_stdin(call)
            else:
                call.read(script)
                call.add(
                    Risk.CODE_EXECUTION, "interpreter.script", f"{call.name} runs the code in {shown(script.text)}."
                )
        else:
            _interpreter_stdin(call)
    if not call.finding.effects:
        call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code.")


def judge_options(call: Call, parsed: Parsed) -> None:
    """The options' effects and roles only."""
    from broker.classify.programs import _options

    _options(call, call.entry, parsed)


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
                value = (
                    _like(words[at], tail) if tail else (words[at + 1] if at + 1 < len(words) else None)
                )
                following = words[at + 1 :] if tail else words[at + 2 :]
                if value is None:
                    return
                if letter == "c":
                    call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code given as text.")
                    secrets_in_code(call, value.text)
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
    call.read(rest[0])
    call.add(Risk.CODE_EXECUTION, "interpreter.script", f"{call.name} runs the code in {shown(rest[0].text)}.")


_SAFE_MODULES = frozenset("json.tool this platform sysconfig tokenize ast calendar tabnanny".split())
_PROGRAM_MODULES = frozenset(
    "pip pytest mypy black ruff flake8 pylint isort coverage tox nox build twine virtualenv venv pipx poetry uv "
    "ensurepip pyright bandit autopep8 yapf pre_commit".split()
)


def _python_module(call: Call, module: Word, rest: list[Word]) -> None:
    name = module.text
    if name in _SAFE_MODULES:
        for word in rest:
            if not word.text.startswith("-"):
                call.read(word)
        return
    if name in _PROGRAM_MODULES and entry_of(name.replace("_", "-")) is not None:
        call.command([_like(module, name.replace("_", "-")), *rest])
        return
    if name in ("http.server", "SimpleHTTPServer"):
        call.add(Risk.NETWORK_EGRESS, "network.listen", "It serves files to the network.")
    if name in ("py_compile", "compileall"):
        call.add(Risk.LOCAL_WRITE, "interpreter.compile", "Python writes compiled files.")
        return
    call.add(Risk.CODE_EXECUTION, "interpreter.module", f"{call.name} runs the module {shown(name)}.")


# -- wrappers ------------------------------------------------------------------------------------------


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
        match = _ASSIGNMENT.fullmatch(rest[0].text)
        if match is None:
            break
        set_variable(call, match.group(1), match.group(2))
        rest = rest[1:]
    if rest:
        call.command(rest)
    elif call.name == "env" or not rest:
        call.add(Risk.SYSTEM_WRITE, "secret.environment", "env prints the environment, secrets included.")


def split_like_env(value: Word) -> list[Word]:
    """env -S: blanks separate, quotes group, backslashes escape."""
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
                out.append(_like(value, "".join(current)))
            current, seen = [], False
        elif char == "#" and not current:
            break
        else:
            current.append(char)
        at += 1
    if current or seen:
        out.append(_like(value, "".join(current)))
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
    if replace:
        item = (_fed(call) or [UNKNOWN])[0]
        words = [
            _like(word, word.text.replace(replace, item)) if replace in word.text else word for word in rest
        ]
        words = [Word(word.text, word.static and word.known, word.glob, word.start, word.end) for word in words]
        if not words[0].known:
            call.add(Risk.CODE_EXECUTION, "program.dynamic", "The input says which program runs.")
    else:
        fed = _fed(call)
        words = [*rest, *(Word(text, False, False, 0, 0) for text in fed or [UNKNOWN])]
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
    call.command(words)
    call.scope.stdin = saved


def _fed(call: Call) -> list[str]:
    """What the input holds, as far as it is known: words of a known text, or names that something found."""
    stdin = call.scope.stdin
    if stdin is None:
        return []
    if stdin.text is not None:
        return stdin.text.split()[:32]
    return list(stdin.names)


@reader("parallel")
def _parallel(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    rest = parsed.rest
    item = UNKNOWN
    for at, word in enumerate(rest):
        if word.text in (":::", "::::", ":::+", "::::+"):
            items = [other.text for other in rest[at + 1 :]]
            if word.text == ":::" and all(re.fullmatch(r"\w[\w.-]*", text) for text in items):
                item = TAME
            rest = rest[:at]
            break
    if not rest:
        call.add(Risk.CODE_EXECUTION, "wrapper.input_decides", "The input says what parallel runs.")
        return
    text = " ".join(word.text for word in rest)
    text = re.sub(r"\{[#%.\d/]*\}", "$PARALLEL_ITEM", text)
    if UNKNOWN in text:
        call.add(Risk.CODE_EXECUTION, "shell.dynamic_text", "parallel runs a text that cannot be known before.")
        return
    call.scope = call.scope.copy()
    call.scope.variables["PARALLEL_ITEM"] = item
    call.scope.exported.add("PARALLEL_ITEM")
    call.shell_text(text if "$PARALLEL_ITEM" in text else text + ' "$PARALLEL_ITEM"')


@reader("sudo")
def _sudo(call: Call) -> None:
    """sudo, doas, su, runuser, pkexec: the privilege is an effect of its own, and the command is judged."""
    parsed = parse(call, call.words[1:])
    call.add(Risk.SYSTEM_WRITE, "wrapper.privilege", f"{call.name} runs things with another user's rights.")
    judge_options(call, parsed)
    rest = parsed.rest
    if call.name in ("su", "runuser"):
        return
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0].text)):
        set_variable(call, match.group(1), match.group(2))
        rest = rest[1:]
    if "edit" in call.marks:
        for word in rest:
            call.write(word)
    elif rest:
        call.command(rest)


@reader("watch")
def _watch(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if not parsed.rest:
        return
    if "exec" in call.marks:
        call.command(parsed.rest)
        return
    _shell_words(call, parsed.rest)


def _shell_words(call: Call, words: list[Word]) -> None:
    """Words that the program joins and hands to a shell."""
    text = " ".join(word.text for word in words)
    if UNKNOWN in text or TAME in text:
        call.add(Risk.CODE_EXECUTION, "shell.dynamic_text", f"{call.name} runs a text that cannot be known before.")
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


@reader("ldso")
def _ldso(call: Call) -> None:
    """The dynamic loader as a program: it starts the program that it is given."""
    words = call.words[1:]
    while words and words[0].text.startswith("--"):
        flag = words[0].text
        if flag in ("--preload", "--audit", "--library-path", "--inhibit-rpath", "--argv0", "--glibc-hwcaps-prepend"):
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
            call.add(risk, f"program.{call.entry.name.replace(' ', '.')}", f"{call.entry.name} runs a command.")
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


# -- files ---------------------------------------------------------------------------------------------


@reader("find")
def _find(call: Call) -> None:
    words = call.words[1:]
    at = 0
    while at < len(words) and words[at].text in ("-H", "-L", "-P"):
        at += 1
    roots: list[Word] = []
    while at < len(words) and not (
        words[at].text.startswith("-") and len(words[at].text) > 1 or words[at].text in ("(", ")", "!", ",")
    ):
        roots.append(words[at])
        at += 1
    roots = roots or [Word(".", True, False, 0, 0)]
    narrowed = False
    options = call.entry.options
    while at < len(words):
        text = words[at].text
        if text in ("(", ")", "!", ",", "-o", "-a", "-or", "-and", "-not"):
            at += 1
            continue
        if text in ("-exec", "-execdir", "-ok", "-okdir"):
            at = _find_exec(call, words, at, roots, narrowed=narrowed)
            continue
        if text == "-delete":
            for root in roots:
                _find_delete(call, root, narrowed=narrowed)
            at += 1
            continue
        option = options.get(text)
        if option is None:
            if words[at].known:
                call.add(Risk.UNKNOWN, "option.unrecognised", f"find has no test {shown(text)} that we know.")
            at += 1
            continue
        if option.takes == "=":
            value = words[at + 1] if at + 1 < len(words) else None
            if option.role == "write" and value is not None:
                call.write(value)
            elif option.role == "read" and value is not None:
                call.read(value)
            if "narrows" in option.marks:
                narrowed = True
            at += 2
            if text == "-fprintf":
                at += 1
        else:
            narrowed |= "narrows" in option.marks
            at += 1
    call.scope.stdin = call.scope.stdin


def _find_delete(call: Call, root: Word, *, narrowed: bool) -> None:
    if narrowed:
        call.delete(_like(root, root.text.rstrip("/") + "/" + TAME))
        path = paths.resolve(root.text, call.scope.cwd, call.inquiry.context)
        if path is None or paths._holds_more_than_its_own(path, call.inquiry.context, is_contents=True):
            call.add(Risk.DESTRUCTIVE, "path.delete_root", f"It deletes files anywhere below {shown(root.text)}.")
    else:
        call.delete(root, whole=True)


def _find_exec(call: Call, words: list[Word], at: int, roots: list[Word], *, narrowed: bool) -> int:
    end = at + 1
    while end < len(words) and words[end].text != ";" and not (
        words[end].text == "+" and words[end - 1].text == "{}"
    ):
        end += 1
    inner = words[at + 1 : end]
    call.add(Risk.CODE_EXECUTION, "option.find-exec", f"find {words[at].text} starts a program for what it finds.")
    if inner:
        piece = TAME if narrowed else UNKNOWN
        for root in roots[:4]:
            found = (root.text.rstrip("/") or "") + "/" + piece
            call.command(
                [_like(word, word.text.replace("{}", found)) if "{}" in word.text else word for word in inner]
            )
    return end + 1


@reader("fd")
def _fd(call: Call) -> None:
    words = call.words[1:]
    for at, word in enumerate(words):
        if word.text in ("-x", "-X", "--exec", "--exec-batch") or re.fullmatch(r"-[HIsiagltLp0uE]*[xX]", word.text):
            call.add(Risk.CODE_EXECUTION, "option.fd-x", "fd starts a program for what it finds.")
            inner = words[at + 1 :]
            call.command([unknown_word(w) if "{" in w.text else w for w in inner] + [unknown_word(word)])
            words = words[:at]
            break
        if word.text.startswith(("--exec=", "--exec-batch=")):
            call.add(Risk.CODE_EXECUTION, "option.fd-x", "fd starts a program for what it finds.")
    judge_parsed(call, call.entry, parse(call, words))


@reader("sed")
def _sed(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    programs: list[Word] = []
    for option, value in parsed.options:
        if option.role == "sed" and value is not None:
            programs.append(value)
        elif option.role == "script" and value is not None:
            call.read(value)
            call.add(Risk.CODE_EXECUTION, "interpreter.script", f"sed runs the commands in {shown(value.text)}.")
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
        elif option.role == "script":
            given = True
    if "in_place" in call.marks:
        for word in operands[0 if given else 1 :]:
            call.write(word)
    if not given and operands:
        scripts.judge_awk(call, operands[0])
        operands = operands[1:]
    for word in operands:
        if not _ASSIGNMENT.fullmatch(word.text):
            call.read(word)


@reader("dd")
def _dd(call: Call) -> None:
    words = call.words[1:]
    for at, word in enumerate(words):
        key, _, value = word.text.partition("=")
        target = _like(word, value)
        if not value and at + 1 < len(words) and "=" not in words[at + 1].text:
            target = words[at + 1]  # `of= /dev/sda`: a slip that means it
        if target.text.startswith("~"):
            target = _like(word, call.inquiry.context.home + target.text[1:])
        if key == "of":
            call.write(target)
        elif key == "if":
            call.read(target)


@reader("tar")
def _tar(call: Call) -> None:
    words = list(call.words[1:])
    if words and words[0].known and not words[0].text.startswith("-") and re.fullmatch(r"[a-zA-Z]+", words[0].text):
        words = _old_style(call, words)
    parsed = parse(call, words)
    judge_options(call, parsed)
    marks = call.marks
    for option, value in parsed.options:
        if "checkpoint" in option.marks and value is not None and value.text.startswith("exec"):
            call.add(Risk.CODE_EXECUTION, "option.tar--checkpoint-action", "tar runs a program at each checkpoint.")
            if value.known:
                call.shell_text(value.text.partition("=")[2])
    folder = next((value for option, value in parsed.options if "chdir" in option.marks and value), None)
    archive = next((value for option, value in parsed.options if "archive" in option.marks and value), None)
    if archive is not None and re.match(r"[\w.-]+@?[\w.-]*:", archive.text) and "force_local" not in marks:
        call.add(Risk.NETWORK_EGRESS, "network.host", f"tar reaches {shown(archive.text)}.")
    if "create" in marks:
        if archive is not None and archive.text != "-":
            call.write(archive)
        for word in parsed.operands:
            call.read(word, whole=True)
    elif "extract" in marks:
        if archive is not None:
            call.read(archive)
        if "to_stdout" not in marks:
            call.write(folder or Word("./.", True, False, 0, 0))
            for word in parsed.operands:  # named members land under their names
                if "*" not in word.text:
                    call.write(_like(word, f"{folder.text.rstrip('/')}/{word.text}" if folder else word.text))
            if "absolute" in marks:
                call.add(Risk.SYSTEM_WRITE, "option.tar-P", "tar -P writes wherever the archive says.")
    elif archive is not None:
        call.read(archive)


def _old_style(call: Call, words: list[Word]) -> list[Word]:
    """`tar xzf FILE`: letters without a dash, their values in order behind them."""
    letters, rest = words[0].text, words[1:]
    out: list[Word] = []
    for letter in letters:
        option = call.entry.options.get("-" + letter)
        out.append(_like(words[0], "-" + letter))
        if option is not None and option.takes == "=" and rest:
            out.append(rest[0])
            rest = rest[1:]
    return out + rest


@reader("unzip")
def _unzip(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if parsed.operands:
        call.read(parsed.operands[0])
    if not call.marks & {"lists"} and not any(option.role == "write" for option, _ in parsed.options):
        call.write(Word("./.", True, False, 0, 0))


@reader("chmod")
def _chmod(call: Call) -> None:
    parsed = parse(call, _modes_are_no_options(call.words[1:]))
    judge_options(call, parsed)
    operands = list(parsed.operands)
    whole = "whole" in call.marks
    reference = "reference" in call.marks
    if operands and not reference:
        mode = operands.pop(0)
        if _sets_id(mode.text):
            call.add(Risk.SYSTEM_WRITE, "option.chmod-setuid", "It makes programs run with another user's rights.")
    for word in operands:
        path = paths.resolve(word.text, call.scope.cwd, call.inquiry.context)
        if whole and path is not None and (
            paths.under(call.inquiry.context.home, path)
            or path in ("/etc", "/usr", "/var", "/bin", "/lib", "/home", "/root", "/boot", "/dev", "/opt")
        ):
            call.add(Risk.DESTRUCTIVE, "path.mode_root", f"It changes rights on all of {shown(path)}.")
        else:
            call.write(word)


def _modes_are_no_options(words: list[Word]) -> list[Word]:
    """`chmod -x FILE`: a mode that starts with a dash."""
    return [
        Word("0" + word.text, word.static, word.glob, word.start, word.end)
        if re.fullmatch(r"-[rwxXst]+", word.text) and word.text != "-R"
        else word
        for word in words
    ]


def _sets_id(mode: str) -> bool:
    if re.fullmatch(r"[0-7]{4,5}", mode):
        return bool(int(mode[-4]) & 6)
    return any(
        "s" in clause and not clause.startswith("0-") and ("+" in clause or "=" in clause)
        for clause in mode.split(",")
    )


@reader("chown")
def _chown(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = parsed.operands if "reference" in call.marks else parsed.operands[1:]
    whole = "whole" in call.marks
    for word in operands:
        path = paths.resolve(word.text, call.scope.cwd, call.inquiry.context)
        if whole and path is not None and (paths.under(call.inquiry.context.home, path) or path.count("/") < 2):
            call.add(Risk.DESTRUCTIVE, "path.mode_root", f"It changes the owner of all of {shown(path)}.")
        else:
            call.write(word)


@reader("rsync")
def _rsync(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = parsed.operands
    remote = False
    for word in operands:
        if re.match(r"(?:rsync://|[^/:\s]+::?)", word.text) and not word.text.startswith(("./", "/")):
            call.add(Risk.NETWORK_EGRESS, "network.host", f"rsync reaches {shown(word.text)}.")
            remote = True
    if len(operands) < 2 or "dry" in call.marks:
        for word in operands:
            call.read(word, whole=True)
        return
    for word in operands[:-1]:
        call.read(word, whole=True)
        if "removes_sources" in call.marks:
            call.delete(word, whole=True)
    target = operands[-1]
    if ":" not in target.text.split("/", 1)[0]:
        if "delete" in call.marks:
            call.delete(target, whole=True)
        call.write(target)
        if not remote:
            apply_operands(call, (), "read", ("dest",), operands)


# -- git -----------------------------------------------------------------------------------------------

_HARMLESS_KEYS = re.compile(
    r"(?:user\.(?:name|email|signingkey)|author\.\w+|committer\.\w+|color\..*|advice\..*|column\..*|"
    r"core\.(?:quotepath|autocrlf|eol|filemode|ignorecase|precomposeunicode|abbrev|safecrlf|longpaths|symlinks|"
    r"untrackedcache|preloadindex|commentchar|compression|bigfilethreshold|whitespace|bare|logallrefupdates|"
    r"repositoryformatversion|checkstat|trustctime|fscache|splitindex|sparsecheckout\w*|usebuiltinfsmonitor)|"
    r"diff\.(?:renames|renamelimit|algorithm|context|noprefix|mnemonicprefix|colormoved\w*|ignoresubmodules|"
    r"suppressblankempty|wserrorhighlight|statgraphwidth|relative|orderfile|submodule)|"
    r"log\.(?:date|decorate|showsignature|follow|abbrevcommit)|status\..*|branch\..*\.(?:rebase|merge|remote|"
    r"description)|branch\.(?:sort|autosetup\w+)|"
    r"commit\.(?:gpgsign|verbose|status|cleanup)|tag\.(?:gpgsign|sort)|pull\.(?:rebase|ff)|push\.(?:default|"
    r"autosetupremote|followtags)|fetch\.(?:prune|parallel|writecommitgraph)|merge\.(?:conflictstyle|ff|stat|"
    r"renamelimit|renames)|rebase\.(?:autosquash|autostash|stat|updaterefs)|rerere\.\w+|init\.defaultbranch|"
    r"safe\.barerepository|gc\.auto\w*|maintenance\.auto|pack\.\w+|index\.\w+|feature\.\w+|http\.(?:postbuffer|"
    r"proxy|version|lowspeed\w+|followredirects|extraheader|sslverify|useragent)|protocol\.version|"
    r"submodule\.(?:recurse|fetchjobs)|blame\..*|format\.(?:pretty|signoff|notes)|grep\.(?:linenumber|patterntype|"
    r"fullname|column)|help\.autocorrect|i18n\..*|notes\.\w+|stash\.\w+|versionsort\..*|worktree\.\w+|"
    r"extensions\.\w+|checkout\.\w+|clone\.\w+|apply\.\w+|am\.threeway|add\.\w+|transfer\.fsckobjects|"
    r"receive\.\w+|uploadpack\.allow\w+|remote\.\w+\.(?:prune|tagopt|fetch)|lfs\.\w+)",
    re.I,
)
_DISARMING = frozenset(("", "false", "0", "cat", "/dev/null", "true", ":", "no", "off", "never"))


def _git_setting_runs(key: str, value: str) -> bool:
    """Whether a configuration key may name a program, or loosen what protects from one."""
    if _HARMLESS_KEYS.fullmatch(key):
        return False
    lowered = key.lower()
    if value.lower() in _DISARMING and lowered not in ("core.hookspath", "core.worktree"):
        return lowered.startswith(("protocol.", "safe.")) and value.lower() not in ("", "false", "never")
    return not (lowered == "core.hookspath" and value in ("/dev/null", ""))


@reader("git")
def _git(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    for option, value in parsed.options:
        if value is None:
            continue
        if "chdir" in option.marks:
            call.scope = call.scope.copy()
            call.scope.cwd = paths.resolve(value.text, call.scope.cwd, call.inquiry.context)
        elif "setting" in option.marks:
            key, _, setting = value.text.partition("=")
            if not value.known and UNKNOWN in key:
                call.add(Risk.CODE_EXECUTION, "git.setting", "git -c sets something that cannot be known.")
            elif key.lower().startswith("alias."):
                call.add(Risk.CODE_EXECUTION, "git.alias", f"The alias {key} makes a name mean another command.")
                if setting.startswith("!"):
                    call.shell_text(setting[1:])
            elif _git_setting_runs(key, setting):
                call.add(Risk.CODE_EXECUTION, "git.setting", f"git -c {key} can make git run a program.")
    rest = parsed.rest
    if not rest:
        return
    judge_parsed(call, call.entry, Parsed([], [], rest))
    _git_elsewhere(call)


def _git_elsewhere(call: Call) -> None:
    """A change to a repository outside the task's own places touches another project."""
    if Risk.LOCAL_WRITE in call.finding.effects and call.scope.cwd is not None:
        place = paths.place_of(call.scope.cwd, call.inquiry.context)
        if place is paths.Place.OUTSIDE:
            call.add(Risk.SYSTEM_WRITE, "path.outside", f"The repository in {shown(call.scope.cwd)} is another project's.")


@reader("git-external")
def _git_external(call: Call) -> None:
    """/usr/lib/git-core/git-NAME: the same as `git NAME`."""
    call.command([_like(call.words[0], "git"), _like(call.words[0], call.name.removeprefix("git-")), *call.words[1:]])


@reader("git-config")
def _git_config(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = parsed.operands
    marks = call.marks
    for option, value in parsed.options:
        if "file" in option.marks and value is not None and "reads" not in marks:
            call.write(value)
    if operands and operands[0].text in ("get", "list") and len(operands) < 4:
        return
    if operands and operands[0].text in ("set", "unset", "rename-section", "remove-section", "edit"):
        operands = operands[1:]
        marks.add("writes")
    if "reads" in marks or (len(operands) <= 1 and "writes" not in marks):
        return
    key = operands[0].text if operands else ""
    value = operands[1].text if len(operands) > 1 else ""
    elsewhere = marks & {"global"}
    if _HARMLESS_KEYS.fullmatch(key) and not elsewhere:
        call.add(Risk.LOCAL_WRITE, "git.config", f"It sets {shown(key)} for this repository.")
        return
    if value in ("", "cat", "false", "/dev/null") and not elsewhere and key.lower() != "core.worktree" and "!" not in value and not key.lower().startswith("alias."):
        call.add(Risk.LOCAL_WRITE, "git.config", f"It disarms {shown(key)} for this repository.")
        return
    call.add(Risk.PERSISTENCE, "git.config", f"It sets {shown(key) or 'git configuration'}, which later git commands obey.")


@reader("git-remote-url")
def _git_transport(call: Call) -> None:
    """fetch, clone, push …: the transport in a URL may run a program."""
    words = call.words[1:]
    by_grammar(call, call.entry, words)
    for word in words:
        if word.text.startswith("ext::") or "=ext::" in word.text or "::" in word.text.split("/", 1)[0] and word.known:
            call.add(Risk.CODE_EXECUTION, "git.transport", f"git runs the program named in {shown(word.text)}.")
            if word.text.startswith("ext::"):
                call.shell_text(word.text[5:])
    operands = parse(call, words).operands
    forced = [word for word in operands if word.text.startswith("+") and len(word.text) > 1]
    deleted = [word for word in operands[1:] if word.text.startswith(":")]
    if call.entry.name == "git push" and (forced or deleted):
        call.add(Risk.DESTRUCTIVE, "git.push_force", "It overwrites or deletes a branch of the remote.")
    if call.entry.name == "git clone" and operands:
        source = operands[0].text
        if len(operands) > 1:
            call.write(operands[-1])
        else:
            call.add(Risk.LOCAL_WRITE, "path.write", "git clone makes a folder.")
        if source.startswith(("/", "./", "../", "file://")) and Risk.CODE_EXECUTION not in call.finding.effects:
            call.finding.effects.discard(Risk.NETWORK_EGRESS)
            call.finding.reasons[:] = [r for r in call.finding.reasons if r.risk is not Risk.NETWORK_EGRESS]


@reader("git-checkout")
def _git_checkout(call: Call) -> None:
    """checkout, switch, restore: changing branches is local; throwing away everything that was not committed is not."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    operands = [word.text for word in parsed.operands]
    call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name.replace(' ', '.')}", f"{call.entry.name} changes files.")
    if "force" in call.marks:
        call.add(Risk.DESTRUCTIVE, "git.discards", "It throws away changes that were not committed.")
    everything = {".", "./", ":/", "*", ":/*"} & set(operands)
    if everything and "new" not in call.marks and "staged_only" not in call.marks:
        call.add(Risk.DESTRUCTIVE, "git.discards", "It throws away every change that was not committed.")


# -- others --------------------------------------------------------------------------------------------


@reader("curl")
def _curl(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if call.marks & {"local"} and not parsed.operands:
        return
    call.add(Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network.")
    for option, value in parsed.options:
        if value is not None and option.role == "" and "data" in option.marks and "@" in value.text[:64]:
            name = value.text.split("@", 1)[1].split(";", 1)[0]
            if name and name != "-":
                call.read(_like(value, name))
    for word in parsed.operands:
        if word.text.startswith("file://"):
            call.read(_like(word, word.text[7:]))


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
        match = _ASSIGNMENT.fullmatch(word.text)
        if match is not None:
            set_variable(call, match.group(1), match.group(2))


@reader("ps")
def _ps(call: Call) -> None:
    for word in call.words[1:]:
        text = word.text
        if not text.startswith("-") and re.fullmatch(r"[a-zA-Z]+", text) and "e" in text:
            call.add(Risk.SYSTEM_WRITE, "secret.environment", "ps e shows the environment of processes.")
        if re.search(r"\benviron\b", text):
            call.add(Risk.SYSTEM_WRITE, "secret.environment", "ps shows the environment of processes.")


@reader("printenv")
def _printenv(call: Call) -> None:
    names = [word.text for word in call.words[1:] if not word.text.startswith("-")]
    if not names:
        call.add(Risk.SYSTEM_WRITE, "secret.environment", "printenv prints the environment, secrets included.")
    for name in names:
        if is_secret_name(name) or UNKNOWN in name:
            call.add(Risk.SYSTEM_WRITE, "secret.variable", f"It prints ${shown(name)}, named like a secret.")


@reader("jq")
def _jq(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_parsed(call, call.entry, parsed)
    program = next((word.text for word in parsed.operands), "")
    for name in re.findall(r"(?:env\.|\$ENV\.|\$__prog_args\.)(\w+)", program):
        if is_secret_name(name):
            call.add(Risk.SYSTEM_WRITE, "secret.variable", f"The filter reads {name}, named like a secret.")
    if re.search(r"(?:^|[^\w.$])(?:env|\$ENV)(?:\s*$|[^\w.])", program):
        call.add(Risk.SYSTEM_WRITE, "secret.environment", "The filter reads the environment, secrets included.")


@reader("kill")
def _kill(call: Call) -> None:
    targets = [word.text for word in call.words[1:] if not word.text.startswith("-") or word.text == "-1"]
    if "-1" in targets[-1:] and len(call.words) > 2:
        call.add(Risk.DESTRUCTIVE, "process.kill_all", "It ends every process it may.")
    if targets[-1:] == ["1"] and call.name == "kill":
        call.add(Risk.SYSTEM_WRITE, "process.kill_init", "It signals process 1.")


@reader("crontab")
def _crontab(call: Call) -> None:
    texts = [word.text for word in call.words[1:]]
    if texts and all(text in ("-l", "-u") or not text.startswith("-") for text in texts) and "-l" in texts:
        return
    call.add(Risk.PERSISTENCE, "program.crontab", "crontab plants commands that cron runs later.")
    if "-r" in texts:
        call.add(Risk.DESTRUCTIVE, "program.crontab-r", "crontab -r removes a user's whole table.")


@reader("echo")
def _echo(call: Call) -> None:
    return


@reader("init")
def _init(call: Call) -> None:
    call.add(Risk.DESTRUCTIVE, "program.init", "It changes the machine's run level.")


@reader("npm-run")
def _npm_run(call: Call) -> None:
    if len(call.words) == 1:
        return  # it lists the scripts
    call.add(Risk.CODE_EXECUTION, f"program.{call.entry.name.replace(' ', '.')}", "It runs a script of package.json.")


@reader("npm-config")
def _npm_config(call: Call) -> None:
    texts = [word.text for word in call.words[1:] if not word.text.startswith("-")]
    if texts[:1] in (["set"], ["edit"], ["delete"], ["fix"]):
        call.add(Risk.PERSISTENCE, "npm.config", "It changes npm's configuration, which every later npm obeys.")


@reader("npm-pkg")
def _npm_pkg(call: Call) -> None:
    texts = [word.text for word in call.words[1:]]
    if texts[:1] in (["set"], ["delete"], ["fix"]):
        call.add(Risk.LOCAL_WRITE, "path.write", "It changes package.json.")
        if any(text.startswith("scripts.") for text in texts):
            call.add(Risk.PERSISTENCE, "npm.script", "It plants a script that npm runs later.")


@reader("ssh")
def _ssh(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "local" in call.marks:
        return
    for option, value in parsed.options:
        if "setting" in option.marks and value is not None and re.match(
            r"\s*(?:proxycommand|localcommand|permitlocalcommand|knownhostscommand|pkcs11provider|securitykeyprovider|include|match)\b",
            value.text,
            re.I,
        ):
            call.add(Risk.CODE_EXECUTION, "option.ssh-o", f"ssh -o {shown(value.text)} can run a program here.")
    if parsed.rest or parsed.operands:
        call.add(Risk.NETWORK_EGRESS, f"program.{call.entry.name}", f"{call.name} reaches out to the network.")


@reader("looks_or_changes")
def _looks_or_changes(call: Call) -> None:
    """Tools that show something when asked to, and change it otherwise: the table lists how they are asked."""
    looks = call.entry.raw["looks"].split()
    texts = [word.text for word in call.words[1:]]
    changing = call.entry.raw.get("changes", _CHANGING).split()
    if not any(text in changing for text in texts) and (not texts or any(text in looks for text in texts)):
        return
    by_grammar(call)


_CHANGING = "add del delete set change replace flush restart stop start enable disable -w --write down up append -D -A -I -F -j"


@reader("disk")
def _disk(call: Call) -> None:
    looks = call.entry.raw["looks"].split()
    texts = [word.text for word in call.words[1:]]
    if texts and (texts[0] in looks or texts[-1] in looks[:2]):
        return
    by_grammar(call)


@reader("tmux")
def _tmux(call: Call) -> None:
    texts = [word.text for word in call.words[1:]]
    if texts and texts[0] in ("ls", "list-sessions", "list-windows", "list-panes", "lsw", "lsp", "-V", "has-session", "has", "capture-pane", "capturep", "-ls", "-list", "list-keys", "show-options", "info", "display-message", "list-commands", "list-buffers", "show-buffer"):
        return
    call.add(Risk.CODE_EXECUTION, f"program.{call.name}", f"{call.name} types into, or starts, shells of its own.")
    from_command = [word for word in call.words[1:] if " " in word.text and word.known]
    for word in from_command[:4]:
        call.shell(word)


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


@reader("compiler")
def _compiler(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    asks = {"-v", "-V", "-dumpversion", "-dumpmachine", "-print-search-dirs", "-print-file-name"}
    if call.words[1:] and not parsed.operands and all(option.name in asks for option, _ in parsed.options):
        return
    judge_options(call, parsed)
    for word in parsed.operands:
        if word.text.startswith("@"):
            call.read(_like(word, word.text[1:]))
    if not any(option.role == "write" for option, _ in parsed.options):
        call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name}", f"{call.name} writes its output.")


@reader("compressor")
def _compressor(call: Call) -> None:
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    for word in parsed.operands:
        call.read(word)
        if "to_stdout" not in call.marks:
            call.write(word)


@reader("go-install")
def _go_install(call: Call) -> None:
    by_grammar(call)
    if any("@" in word.text for word in call.words[1:]):
        call.add(Risk.INSTALL, "program.go.install", "go install fetches a program.")
    call.add(Risk.LOCAL_WRITE, "path.write", "go install writes a program to GOBIN.")


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


@reader("socat")
def _socat(call: Call) -> None:
    by_grammar(call)
    for word in call.words[1:]:
        kind, _, rest = word.text.partition(":")
        if kind.upper() in ("EXEC", "SYSTEM", "SHELL"):
            call.add(Risk.CODE_EXECUTION, "option.socat-exec", f"socat starts {shown(rest)}.")
            if word.known:
                call.shell_text(rest.split(",", 1)[0])
        elif kind.upper() in ("OPEN", "FILE", "CREATE", "GOPEN"):
            call.write(_like(word, rest.split(",", 1)[0]))


def _register_environment() -> None:
    """Keep the import: the readers above judge variables through it."""
    assert environment


_register_environment()
assert Scope and Stdin
