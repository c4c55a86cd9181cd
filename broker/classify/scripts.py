"""Step 2: the little languages inside arguments: sed and awk programs. In goes the program; out come effects."""

from __future__ import annotations

import re

from broker.classify.call import Call
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN
from broker.classify.secret_names import is_secret_name
from broker.classify.word import Word


def judge_sed(call: Call, program: Word, *, sandboxed: bool) -> None:
    """A sed program: `w` and `s///w` write files, `e` and `s///e` run commands, `r` reads files."""
    text = program.text
    if sandboxed:
        return
    at, length = 0, len(text)
    while at < length:
        char = text[at]
        if char in " \t\n;{}":
            at += 1
        elif char == "#":
            at = _line_end(text, at)
        elif char.isdigit() or char in "$,!+~" or char in (UNKNOWN, TAME):
            at += 1
        elif char == "/":
            at = _delimited(text, at + 1, "/")
            while at < length and text[at] in "IM":
                at += 1
        elif char == "\\" and at + 1 < length:
            at = _delimited(text, at + 2, text[at + 1])
        elif char in "sy":
            at = _substitution(call, text, at)
        elif char in "wW":
            end = _line_end(text, at)
            _writes(call, program, text[at + 1 : end].strip())
            at = end
        elif char in "rR":
            end = _line_end(text, at)
            call.read(Word(text[at + 1 : end].strip(), False, False, program.start, program.end))
            at = end
        elif char == "e":
            end = _line_end(text, at)
            command = text[at + 1 : end].strip()
            call.add(Risk.CODE_EXECUTION, "sed.e", "sed's e command runs a command.")
            if command and UNKNOWN not in command:
                call.shell_text(command, at=call.place_of(program, program))
            at = end
        elif char in "aic":
            at = _text_end(text, at)
        elif char in "btT:":
            while at < length and text[at] not in "\n;":
                at += 1
        elif char in "qQlLpPdDgGhHnNxzF=v":
            at += 1
        else:
            call.add(Risk.UNKNOWN, "sed.unreadable", f"sed's command {char!r} is not one that we know.")
            return


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _text_end(text: str, at: int) -> int:
    """a, i, c: the text goes to the end of the line that no backslash continues."""
    while True:
        at = _line_end(text, at)
        if at >= len(text) or text[at - 1] != "\\":
            return at
        at += 1


def _delimited(text: str, at: int, delimiter: str) -> int:
    """Return the index behind the next delimiter; backslashes and bracket expressions protect it."""
    length = len(text)
    bracket = False
    while at < length:
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if bracket:
            bracket = char != "]"
        elif char == "[":
            bracket = True
            following = text[at + 1 : at + 3]
            if following.startswith("^"):
                at += 1
            if text[at + 1 : at + 2] == "]":
                at += 1
            if "]" not in text[at + 1 :]:
                bracket = False
        elif char == delimiter:
            return at + 1
        at += 1
    return length


def _plain_delimited(text: str, at: int, delimiter: str) -> int:
    length = len(text)
    while at < length:
        if text[at] == "\\":
            at += 2
        elif text[at] == delimiter:
            return at + 1
        else:
            at += 1
    return length


def _substitution(call: Call, text: str, at: int) -> int:
    kind, delimiter = text[at], text[at + 1 : at + 2]
    if not delimiter:
        return len(text)
    at = _delimited(text, at + 2, delimiter)
    at = _plain_delimited(text, at, delimiter)
    if kind == "y":
        return at
    while at < len(text):
        char = text[at]
        if char == "e":
            call.add(Risk.CODE_EXECUTION, "sed.s_e", "sed's s///e runs the result as a command.")
            at += 1
        elif char in "wW":
            end = _line_end(text, at)
            _writes(call, None, text[at + 1 : end].strip())
            return end
        elif char in "gpiImM" or char.isdigit() or char in (UNKNOWN, TAME):
            at += 1
        else:
            break
    return at


def _writes(call: Call, program: Word | None, name: str) -> None:
    name = name.rstrip("} ") if name.endswith("}") else name
    if name and name not in ("/dev/stdout", "/dev/stderr"):
        if name.startswith("~"):
            pass  # sed knows no tilde: a file of that name
        call.write(Word(name, UNKNOWN not in name, False, 0, 0))


MAX_AWK = 16 * 1024
"""A longer awk program is not read: the expressions below take time that grows with its square."""

# One that is never closed ends with its line, and the program is none: it is not looked for again and again.
_AWK_STRING = re.compile(r'"((?:[^"\\\n]++|\\.)*+)(?:"|(?=\n)|\Z)')
_AWK_REGEX = re.compile(r"(?:(?<=[(,!~&|{};])|(?<=^)|(?<=\n))[ \t\r]*/(?:[^/\\\n]|\\.)+/")
_AWK_SYSTEM = re.compile(r"\bsystem\s*\(")
_AWK_LOAD = re.compile(r"@(?:load|include)\b")
_AWK_INDIRECT = re.compile(r"@\w+\s*\(")


def judge_awk(call: Call, program: Word) -> None:
    """An awk program: system() and pipes run commands, `>` behind print writes files, getline reads them."""
    text = program.text
    if not program.known:
        # The shell's pieces are usually field numbers and values; what is known is judged, the rest noted.
        text = text.replace(UNKNOWN, "0").replace(TAME, "0")
        if not text.strip("0 "):
            call.add(Risk.CODE_EXECUTION, "awk.dynamic", "awk runs a program that cannot be known before.")
            return
    strings: list[str] = []

    def keep(match: re.Match[str]) -> str:
        strings.append(re.sub(r"\\(.)", r"\1", match.group(1)))
        return f'"{len(strings) - 1}"'

    if len(text) > MAX_AWK:
        call.add(Risk.UNKNOWN, "text.too_large", f"awk's program is longer than {MAX_AWK // 1024} KiB.")
        return
    text = "\n".join(map(_without_comment, text.split("\n")))
    bare = _AWK_STRING.sub(keep, text)
    bare = _AWK_REGEX.sub(" r ", bare)
    if _AWK_SYSTEM.search(bare):
        call.add(Risk.CODE_EXECUTION, "awk.system", "awk's system() runs a command.")
        for match in re.finditer(r'\bsystem\s*\(\s*"(\d+)"\s*\)', bare):
            call.shell_text(strings[int(match.group(1))], at=call.place_of(program, program))
    if _AWK_LOAD.search(bare):
        call.add(Risk.CODE_EXECUTION, "awk.load", "awk loads other code.")
    if _AWK_INDIRECT.search(bare):
        call.add(
            Risk.CODE_EXECUTION, "awk.indirect", "awk calls a function by a name that only the run knows."
        )
    _awk_pipes(call, program, bare, strings)
    _awk_files(call, program, bare, strings)
    if "ENVIRON" in bare:
        names = [name for name in strings if is_secret_name(name)]
        if names or not re.search(r'ENVIRON\s*\[\s*"', bare):
            call.add(
                Risk.SYSTEM_WRITE, "secret.variable", "The program reads the environment, secrets included."
            )
    if "/inet" in "".join(strings):
        call.add(Risk.NETWORK_EGRESS, "awk.inet", "awk opens a connection.")


def _without_comment(line: str) -> str:
    """Cut a comment that holds no quotation mark; any other could be the inside of a string."""
    at = line.find("#", line.rfind('"') + 1)
    return line if at < 0 else line[:at]


def _awk_pipes(call: Call, program: Word, bare: str, strings: list[str]) -> None:
    """`print | "sort"`, `"date" | getline`."""
    without_or = bare.replace("||", "  ")
    if "|" not in without_or:
        return
    call.add(Risk.CODE_EXECUTION, "awk.pipe", "awk's | runs a command.")
    for match in re.finditer(r'"(\d+)"\s*\|\s*getline|\|&?\s*"(\d+)"', without_or):
        call.shell_text(strings[int(match.group(1) or match.group(2))], at=call.place_of(program, program))


def _awk_files(call: Call, program: Word, bare: str, strings: list[str]) -> None:
    """`print > "file"` writes; `getline < "file"` reads. A bare `>` after print is a redirection, else a comparison."""
    for statement in re.split(r"[;{}\n]", bare):
        match = re.search(r"\bprintf?\b(.*)", statement)
        if match is not None:
            tail = _without_parentheses(match.group(1))
            redirect = re.search(r">>?\s*(.*)", tail)
            if redirect is not None:
                target = redirect.group(1).strip()
                literal = re.fullmatch(r'"(\d+)"', target)
                name = strings[int(literal.group(1))] if literal else _prefix(target, strings) + UNKNOWN
                if name not in ("/dev/stdout", "/dev/stderr", "/dev/tty", "-"):
                    call.write(Word(name, literal is not None, False, program.start, program.end))
        for literal in re.findall(r'getline(?:\s+\w+)?\s*<\s*"(\d+)"', statement):
            call.read(Word(strings[int(literal)], True, False, program.start, program.end))


def _prefix(expression: str, strings: list[str]) -> str:
    match = re.match(r'\(?\s*"(\d+)"', expression)
    return strings[int(match.group(1))] if match else ""


def _without_parentheses(text: str) -> str:
    """Comparisons inside parentheses are no redirections."""
    out: list[str] = []
    level = 0
    for char in text:
        if char == "(":
            level += 1
        elif char == ")":
            level = max(0, level - 1)
        elif level == 0:
            out.append(char)
    return "".join(out)
