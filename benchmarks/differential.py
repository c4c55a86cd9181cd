"""Compare the classifier's reading of shell text with bash's, and with shfmt's.

    python -m benchmarks.differential bash  [--count 5000] [--seed 1] [FILE…]     what bash really starts
    python -m benchmarks.differential shfmt [--count 2000] [--seed 1] [FILE…]     what another parser finds

`bash` runs each text in one sandbox whose exec gate sees every program start, and looks for each start among the
commands that the classifier said could start: known words must be equal, and of what it calls static every word.
The programs are shims that only print their words. Texts come from a grammar (seeded: the same ones each time) and
from JSON-lines files of `op`; of a file's texts only those are run whose programs are all shims.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.sandboxes import ALLOWED, folders, profile
from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, PartKind, Risk
from broker.decide.envelope import Envelope
from broker.decide.trust import Trust
from broker.enforce import confinement, wire
from broker.enforce.choose import engine_named
from broker.enforce.runtime import make_task_folder, remove_task_folder, runtime_base
from broker.enforce.sandbox import Command, Sandbox
from broker.enforce.workspace import survey
from broker.request.operation import ShellText

SHIMS = {"p1": "echo", "p2": "echo", "p3": "cat", "p4": "false", "p-5": "true", "p6": "printf", "p7": "head"}
"""The harmless programs that texts start, and what each is a link to."""

PATIENCE = 5.0

SAYS_SO = frozenset(
    "program.dynamic shell.dynamic_text shell.arithmetic_value shell.subscript shell.prompt_expansion shell.alias "
    "shell.dialect shell.glob_qualifier shell.zsh_evaluates interpreter.script interpreter.stdin wrapper.input_decides".split()
)
"""Rules that say: here runs something that this text does not show. Then no list of commands is claimed complete."""


ENDS_OF_BODIES = ("\nE", "\tE")


# -- texts -------------------------------------------------------------------------------------------------


class Grammar:
    """Makes shell texts out of chance. Loops end, and nothing but shims and printers of text runs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = ["x", "y", "z"]
        self.functions: list[str] = []

    def text(self) -> str:
        """One text of one to four commands."""
        self.functions = []
        separators = [
            "; ",
            "\n",
            " && ",
            " || ",
            " & ",
            "\n\n# a comment (it's `odd\n",
            " &&\n",
            ";\n",
            " |\n",
        ]
        out = self.command(3)
        for _ in range(self.chance.choice((0, 0, 1, 2, 3))):
            out += self.separator(out, separators) + self.command(3)
        return out

    def separator(self, before: str, separators: list[str]) -> str:
        """What stands between two commands; behind a here-document it is a newline."""
        return "\n" if before.endswith(ENDS_OF_BODIES) else self.chance.choice(separators)

    def pick(self, *choices: Callable[[], str] | str) -> str:
        """One of the choices."""
        choice = self.chance.choice(choices)
        return choice if isinstance(choice, str) else choice()

    # -- words

    def plain(self) -> str:
        return self.pick(
            "a",
            "b",
            "foo",
            "a.txt",
            "-n",
            "src/x",
            "a=b",
            "1",
            "--opt=v",
            "x",
            "..",
            "{}",
            "%s",
            "a:b",
            "@",
            "^",
        )

    def word(self, depth: int = 2) -> str:
        """One word in any spelling."""
        if depth <= 0:
            return self.plain()
        return self.pick(
            self.plain,
            self.plain,
            self.plain,
            lambda: f"'{self.pick('a b', 'x', '', '$x', '`p1`', 'it', ';', '# no', 'a|b', '(')}'",
            lambda: (
                f'"{self.pick("a b", "x", "", ";", "it" + chr(39) + "s", "# no", "a)b", "(", chr(92) + chr(34))}"'
            ),
            lambda: f'"{self.expansion(depth - 1)}"',
            lambda: f'"a {self.expansion(depth - 1)} b"',
            lambda: self.expansion(depth - 1),
            lambda: self.plain() + self.expansion(depth - 1),
            lambda: (
                f"$'{self.pick('a', chr(92) + 'n', chr(92) + 'x41', chr(92) + 'u00e9', 'it' + chr(92) + chr(39) + 's', chr(92) + '101')}'"
            ),
            lambda: f'$"{self.pick("a", "$x")}"',
            lambda: f"{self.plain()}{{{self.plain()},{self.plain()}}}",
            lambda: self.pick(
                "{1..3}",
                "{c..a}",
                "a{,b}",
                "{a,{b,c}}d",
                "{01..03}",
                "{a}",
                "{,}",
                "x{1..5..2}y",
                "{a,b}{1,2}",
            ),
            lambda: self.pick("~", "~/a", "~+", "a~", "~/'b c'", "x=~"),
            lambda: self.pick("*.txt", "a?b", "[ab]c", "no*match", "\\*", "'*'", "?"),
            lambda: self.pick(
                "\\a", "a\\ b", "\\;", "a\\\nb", "\\'", '\\"', "\\$x", "\\\\", "a''b", 'a""', "p\\1"
            ),
            lambda: "<(" + self.simple(depth - 1) + ")",
        )

    def expansion(self, depth: int) -> str:
        """Something that starts with a dollar sign or a backquote."""
        name = self.chance.choice(self.names)
        return self.pick(
            f"${name}", f"${{{name}}}", f"${{{name}}}", "$HOME", "$1", "$#", "$?", "$$", "$@", "${#" + name + "}", "$unset",
            lambda: f"${{{name}{self.pick(':-', '-', ':=', '=', ':+', '+')}{self.word(depth - 1)}}}",
            lambda: f"${{{name}{self.pick('%', '%%', '#', '##')}{self.pick('*', 'a', '*/', '.*', '?', '[a-b]', 'b*')}}}",
            lambda: f"${{{name}/{self.pick('a', '*', '#a', '%b', '/a')}/{self.pick('b', '', '$y')}}}",
            lambda: f"${{{name}:{self.pick('0:1', '1', ' -1', '0:-1', '1:$y')}}}",
            lambda: f"${{{name}{self.pick('^', '^^', ',', ',,', '@Q', '@U', '@a')}}}",
            lambda: f"${{!{name}}}", lambda: f"${{!{name}@}}", "${arr[0]}", "${arr[@]}", "${#arr[@]}", "${arr[${#arr[@]}-1]}",
            lambda: f"$(( {self.pick('1+2', 'x', 'y+1', '(1+2)*3', '1<<2', 'x=3', '1?2:3')} ))",
            lambda: f"$({self.list_of(depth - 1)})", lambda: f"$({self.simple(depth - 1)})",
            lambda: "`" + self.simple(0).replace("\\", "\\\\").replace("`", "\\`") + "`",
            lambda: "$(echo " + self.plain() + ")", lambda: "$(printf %s " + self.plain() + ")",
            "$(pwd)", "$(basename a/b.c)", "$(dirname a/b.c)", "$(echo p1)", "$[1+2]", "$(<a.txt)", "$(cat <<F\nq r\nF\n)",
        )  # fmt: skip

    def program(self) -> str:
        """A program's name, in any spelling that means it."""
        name = self.chance.choice(list(SHIMS))
        return self.pick(name, name, name, f"'{name}'", f'"{name}"', name[0] + "''" + name[1:], "\\" + name, f"$'{name}'",
                         name[:-1] + "\\\n" + name[-1], f"command {name}", f"env {name}", f"nice {name}", f"timeout 9 {name}",
                         f"nohup {name}", f"exec -a q {name}" if self.chance.random() < 0.1 else name)  # fmt: skip

    def words(self, depth: int) -> str:
        return "".join(" " + self.word(depth) for _ in range(self.chance.choice((0, 1, 1, 2, 3))))

    # -- commands

    def assignment(self, depth: int) -> str:
        name = self.chance.choice(self.names)
        return self.pick(
            lambda: f"{name}={self.plain()}", lambda: f"{name}={self.word(depth - 1)}", lambda: f"{name}=p1", f"{name}='a b'",
            f"{name}=", f"{name}+=c", lambda: f"arr=({self.plain()} {self.word(depth - 1)})", f"arr[1]={self.plain()}",
            "arr+=(q)", f"{name}=~/a:~/b", "IFS=:", lambda: f"{name}=$({self.simple(depth - 1)})",
        )  # fmt: skip

    def redirection(self, depth: int) -> str:
        return self.pick(">out", ">>out", "2>/dev/null", "</dev/null", "2>&1", ">&2", "&>out", ">|out", "<>out", "3>out",
                         ">&-", "{fd}>out", lambda: "<<< " + self.word(depth - 1), lambda: "< <(" + self.simple(depth - 1) + ")",
                         lambda: "> >(p3)", lambda: "2> " + self.pick("out", '"$x.log"', "out$y"))  # fmt: skip

    def simple(self, depth: int) -> str:
        """A simple command."""
        out = ""
        if self.chance.random() < 0.1:
            out += self.assignment(depth) + " "
        if self.chance.random() < 0.05:
            out += self.redirection(depth) + " "
        out += self.program() + self.words(depth)
        if self.chance.random() < 0.2:
            out += " " + self.redirection(depth)
        return out

    def list_of(self, depth: int) -> str:
        out = self.command(depth)
        if self.chance.random() < 0.4:
            out += self.separator(out, ["; ", "\n", " && ", " || ", " | ", " |& "]) + self.command(depth)
        return out

    def body(self, depth: int) -> str:
        out = self.list_of(depth)
        return out + ("\n" if out.endswith(ENDS_OF_BODIES) else self.pick("; ", "\n", " ;\n"))

    def command(self, depth: int) -> str:
        """Any command."""
        if depth <= 0:
            return self.simple(1)
        inner = depth - 1
        name = self.chance.choice(self.names)
        return self.pick(
            lambda: self.simple(2), lambda: self.simple(2), lambda: self.simple(2), lambda: self.assignment(2),
            lambda: self.assignment(1) + "; " + self.simple(2), lambda: f"{name}=p1; ${name} {self.plain()}",
            lambda: f'{name}={self.plain()}; {self.program()} ${name} "${name}"',
            lambda: f"! {self.simple(1)}", lambda: f"time {self.command(inner)}", lambda: f"{{ {self.body(inner)}}}",
            lambda: f"({self.list_of(inner)}\n)", lambda: f"{self.command(inner).replace(chr(10) + 'E', '')} | {self.simple(1)}"
            if depth == 1 else f"{self.simple(1)} | {self.simple(1)}",
            lambda: f"if {self.body(inner)}then {self.body(inner)}{self.pick('', lambda: 'else ' + self.body(inner), lambda: 'elif ' + self.body(inner) + 'then ' + self.body(inner))}fi{self.pick('', ' >out', ' | p3')}",
            lambda: f"for {name} in {self.word(1)} {self.word(1)}; do {self.body(inner)}done",
            lambda: f"for {name} in a b\ndo p1 ${name}\n{self.body(inner)}done", lambda: f"for {name}; do {self.body(inner)}done",
            lambda: f"for ((i=0; i<2; i++)); do {self.body(inner)}done", lambda: f"for {name} in p1 p2; do ${name} q; done",
            lambda: f"while {self.body(inner)}do {self.body(inner)}break; done", lambda: f"until {self.body(inner)}do break; done",
            lambda: f"while read -r {name}; do p1 ${name}; done <<< {self.word(1)}",
            lambda: f"while IFS= read -r {name}; do {self.body(0)}done < <({self.simple(1)})",
            lambda: f"case {self.word(1)} in a|{self.word(1)}) {self.body(inner)};; (*) {self.simple(1)};; esac".replace("; ;;", " ;;").replace(" ;\n;;", ";;"),
            lambda: f"select {name} in a b; do {self.body(inner)}break; done <<< 1", lambda: self.function(inner),
            lambda: f"[[ {self.pick('-n', '-z', '-f')} {self.word(1)} ]] && {self.simple(1)}",
            lambda: f"[[ {self.word(1)} {self.pick('==', '!=', '=~', '-eq')} {self.pick('a*', 'b', '$x', '(a|b)')} ]] || {self.simple(1)}",
            lambda: f"(( {self.pick('x++', '1', 'x = $(p1 1)', 'y > 0')} )); {self.simple(1)}",
            lambda: f"[ {self.word(1)} = a ]; {self.simple(1)}", lambda: f"eval {shlex.quote(self.list_of(inner))}",
            lambda: f"eval {self.program()} {self.plain()}", lambda: f"eval \"{self.pick('p1 $x', 'p1 ' + chr(92) + '$x', '$x a')}\"",
            lambda: f"{self.pick('sh', 'bash', 'bash -e', 'bash -o pipefail', 'bash --norc', 'dash')} -c {shlex.quote(self.portable(inner))} {self.pick('', 'arg0 arg1')}",
            lambda: f"{self.pick('bash', 'sh', 'bash -s', 'bash /dev/stdin')} <<'E'\n{self.portable(0)}\nE",
            lambda: f"p3 <<E\na $x {self.expansion(1)}\nit's \"{self.expansion(1)}\n\\$x \\`p1\\`\nE",
            lambda: "p3 <<'E' && p1 q\n$(p2 no) `p2 no`\nE", lambda: f"p3 <<-E\n\ta {self.expansion(0)}\n\tE",
            lambda: f"{self.pick('echo', 'printf')} {shlex.quote(self.portable(0))} | {self.pick('sh', 'bash')}",
            lambda: f"echo a b | xargs {self.pick('', '-n1 ', '-r ', '-0 ', '-P2 ')}{self.chance.choice(list(SHIMS))} {self.plain()}",
            lambda: f"printf 'a\\nb\\n' | xargs -I{{}} {self.chance.choice(list(SHIMS))} {{}} x{{}}",
            lambda: f"find . -maxdepth 1 -name 'a*' -exec {self.chance.choice(list(SHIMS))} {{}} {self.pick(';', '+', chr(92) + ';')}".replace("} ;", "} \\;"),
            lambda: f"trap {shlex.quote(self.simple(0))} {self.pick('EXIT', '0', 'ERR', 'DEBUG')}",
            lambda: f"shopt -s expand_aliases\nalias {self.pick('k', 'p1')}='p2 al'\nk {self.plain()}",
            lambda: f"coproc {self.simple(1)}; wait", lambda: f"coproc cp {{ {self.body(0)}}}; wait",
            lambda: f"{self.simple(1)} & wait", lambda: f'set -- {self.word(1)} {self.word(1)}; p1 "$@" $1 "$*" ${{@:2}}',
            lambda: f"export {name}={self.word(1)}; sh -c 'p1 ${name}'", lambda: f'declare -a arr=(a {self.word(1)}); p1 "${{arr[@]}}"',
            lambda: f"local_={self.plain()} p1 $local_", lambda: f"printf -v {name} %s {self.plain()}; p1 ${name}",
            lambda: f"read {name} <<< {self.plain()}; p1 ${name}", lambda: f"unset {name}; p1 ${{{name}-p}}",
            lambda: f"cd {self.pick('src', '.', '/tmp', '~')} && p1 $PWD", lambda: 'mapfile -t arr < <(p1 a); p1 "${arr[0]}"',
            lambda: f"builtin echo {self.word(2)}", lambda: f": {self.word(2)} {self.word(2)}", lambda: f"let {name}=1+1; p1 ${name}",
            lambda: f"{name}=({self.plain()} b); p1 ${{{name}[@]}} ${{{name}}}", lambda: f"p1 ${{{name}:={self.plain()}}} ${name}",
        )  # fmt: skip

    def portable(self, depth: int) -> str:
        """A text for any shell."""
        return self.pick(
            lambda: f"p1 {self.plain()}", lambda: f"p1 $1 $0; p2 {self.plain()}", lambda: 'p1 "$@"; p3 </dev/null',
            lambda: "for i in a b; do p1 $i; done", lambda: f"x={self.plain()}; p2 $x && p1 '$x'", lambda: f"p1 `p2 {self.plain()}`",
            lambda: f"exec p1 {self.plain()}", lambda: f"sh -c 'p1 {self.plain()}'", lambda: "eval 'p1 \"$0\"'",
        )  # fmt: skip

    def function(self, depth: int) -> str:
        name = self.pick("f", "g", "h-x", "p7")
        head = self.pick(f"{name}() {{ ", f"function {name} {{ ", f"{name} ()\n{{ ")
        body = self.pick(
            lambda: self.body(depth),
            'p1 "$1" $2 "$@"; ',
            "local x=q; p1 $x; ",
            "x=changed; ",
            'command p7 "$@"; ',
            "return 1; ",
        )
        return f"{head}{body}}}; {name}{self.words(1)}; p1 $x"


def texts_of(files: Iterable[Path]) -> Iterator[str]:
    """The shell texts of JSON-lines files."""
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line) if line.strip() else {}
            if isinstance(row.get("op"), str) and row.get("kind", "shell") == "shell":
                yield row["op"]


# -- what bash starts --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recorder:
    """A judge that allows everything, and keeps what was started for whom."""

    starts: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def exec_asked(self, asked: wire.ExecAsked) -> wire.Answer:
        with self.lock:
            # `exec -a NAME` gives a program another name for itself; what counts is the program.
            program = os.path.basename(asked.path)
            argv = asked.argv if os.path.basename(asked.argv[0]) == program else (program, *asked.argv[1:])
            argv = tuple(word.replace("/proc/self/fd/", "/dev/fd/") for word in argv)  # as zsh calls them
            self.starts.setdefault(asked.spawn, []).append(argv)
        return wire.Answer(request=asked.request, allow=True)

    def file_asked(self, asked: wire.FileAsked) -> wire.Answer:
        return wire.Answer(request=asked.request, allow=True)

    def noted(self, message: wire.Note | wire.Executed) -> None:
        """Nothing to keep."""


_NO_STARTUP_FILES = {"zsh": ("-f",)}


class Bash:
    """bash (or another shell) in a sandbox, with the shims in its PATH."""

    def __init__(self, running: Sandbox, recorder: Recorder, context: Context, shims: str) -> None:
        self.running, self.recorder, self.context = running, recorder, context
        self.environment = (
            f"PATH={shims}:/usr/bin:/bin",
            f"HOME={context.home}",
            "TMPDIR=/tmp",
            "LANG=C.UTF-8",
        )
        self.null = os.open("/dev/null", os.O_RDWR)

    def run(self, text: str, shell: str = "bash") -> list[tuple[str, ...]]:
        """Run a text, and return what it started."""
        command = Command(
            argv=(f"/bin/{shell}", *_NO_STARTUP_FILES.get(shell, ()), "-c", text),
            cwd=self.context.cwd,
            env=self.environment,
        )
        process = self.running.spawn(ALLOWED, command, (self.null, self.null, self.null))
        if process.wait(PATIENCE) is None and self.running.failure is not None:
            raise self.running.failure
        self.running.kill_process(process)
        with self.recorder.lock:
            starts = list(self.recorder.starts.pop(process.number, []))
        process.close()
        return starts[1:]

    def agrees(self, text: str) -> bool:
        """Run a text, and say whether it started nothing that was not foreseen."""
        return not unforeseen(classify(ShellText(text=text), self.context), self.run(text))


@contextlib.contextmanager
def bash_in_sandbox() -> Iterator[Bash]:
    """A sandbox whose gate allows everything and records it."""
    with folders() as (workspace, _state):
        shims = os.path.join(os.path.dirname(workspace), "shims")
        os.mkdir(shims)
        for name, target in SHIMS.items():
            os.symlink(f"/usr/bin/{target}", os.path.join(shims, name))
        for name in ("a.txt", "b.txt", "src/x"):
            path = Path(workspace, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("p1 q\n")
        chosen = profile()
        chosen = replace(chosen, sandbox=replace(chosen.sandbox, read_only=(shims,)))
        space = survey(workspace, mode="direct")
        task = f"differential-{os.getpid()}"
        folder = make_task_folder(runtime_base(), task, space.uid, space.gid)
        confined = confinement.confine(
            Envelope(profile=chosen, trust=Trust.TRUSTED), space, task=task, run_dir=str(folder),
            engine="bubblewrap", command=(),
        )  # fmt: skip
        recorder = Recorder()
        try:
            running = Sandbox.start(engine_named("bubblewrap"), confined.plan, confined.setup, recorder)
            running.listen()
            try:
                yield Bash(running, recorder, confined.context, shims)
            finally:
                running.close()
        finally:
            remove_task_folder(folder)


# -- comparison --------------------------------------------------------------------------------------------


def pattern_of(part: Part) -> re.Pattern[str]:
    """An expression for the argv that a part says could start, its words ended by NULs."""
    if part.static:
        return re.compile("".join(re.escape(word) + "\0" for word in part.argv))
    out = []
    for word in part.argv:
        if not any(mark in word for mark in "…*?["):
            out.append(re.escape(word) + "\0")
        elif word.strip("…"):  # what is not known may be nothing, or several words
            out.append(
                re.sub(r"(?:…|\\\*|\\\?|\\\[.*)", lambda _: "[\0-\U0010ffff]*", re.escape(word)) + "\0"
            )
        else:
            out.append("(?:[\0-\U0010ffff]*\0)?")
    return re.compile("".join(out))


def said(answer: Assessment) -> list[re.Pattern[str]]:
    """The commands that an answer names."""
    return [pattern_of(part) for part in answer.parts if part.kind is PartKind.COMMAND and part.argv]


def is_open(answer: Assessment) -> bool:
    """Whether an answer says that it does not show everything that runs."""
    return is_unread(answer) or any(reason.rule in SAYS_SO for reason in answer.reasons)


def is_unread(answer: Assessment) -> bool:
    """Whether the text, or one within it, could not be read."""
    return any(reason.rule.startswith("text.") for reason in answer.reasons)


def unforeseen(answer: Assessment, starts: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return what was started and is not among the commands that the classifier named."""
    if is_open(answer):
        return []
    patterns = said(answer)
    return [
        argv for argv in starts
        if not any(pattern.fullmatch("".join(word + "\0" for word in argv)) for pattern in patterns)
    ]  # fmt: skip


HARMLESS = frozenset([*SHIMS, *"echo printf true false : [ [[ (( test seq basename dirname cat".split()])


def runs_shims(text: str) -> bool:
    """Whether nothing but shims and printers of text is named in a text that says what it runs."""
    answer = classify(ShellText(text=text), Context(cwd="/work", home="/home/dev", workspace="/work"))
    names = {part.argv[0] for part in answer.parts if part.kind is PartKind.COMMAND and part.argv}
    return not is_open(answer) and names <= HARMLESS


def against_shell(
    texts: Iterable[str], report: Callable[[str, str], None], shell: str = "bash"
) -> Counter[str]:
    """Run each text in the sandbox, and report those that started what was not foreseen."""
    figures: Counter[str] = Counter()
    with bash_in_sandbox() as bash:
        for text in texts:
            starts = bash.run(text, shell)
            answer = classify(ShellText(text=text, dialect=shell), bash.context)
            figures["texts"] += 1
            figures["program starts"] += len(starts)
            figures["texts that say they run what they do not show"] += is_open(answer)
            figures["texts that could not be read"] += is_unread(answer)
            wrong = unforeseen(answer, starts)
            if wrong:
                figures["texts that started what was not foreseen"] += 1
                report(text, f"not foreseen: {wrong}")
    return figures


# -- what shfmt finds --------------------------------------------------------------------------------------

NO_CALLS = frozenset(["[[", "((", "let", "export", "declare", "typeset", "local", "readonly", "nameref"])
"""What shfmt does not call a call."""


def calls_by_shfmt(text: str) -> list[list[str | None]] | None:
    """The commands that shfmt finds, None standing for a word that is not plain text; None if it cannot read it."""
    done = subprocess.run(
        [SHFMT, "-ln", "bash", "--to-json"], input=text.encode("utf-8", "surrogateescape"), capture_output=True, check=False
    )  # fmt: skip
    if done.returncode:
        return None
    found: list[list[str | None]] = []
    todo: list[object] = [json.loads(done.stdout)]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        elif isinstance(node, dict):
            if node.get("Type") == "CallExpr" and node.get("Args"):
                found.append([_literal(word.get("Parts", [])) for word in node["Args"]])
            todo += node.values()
    return found


SHFMT = os.path.join(os.path.dirname(sys.executable), "shfmt")


def _literal(parts: list[dict[str, object]]) -> str | None:
    out = []
    for part in parts:
        match part:
            case {"Type": "Lit", "Value": str(value)} if not re.search(r"[~{*?\[]", value):
                out.append(re.sub(r"\\(\n|.)", lambda found: found[1].strip("\n"), value))
            case {"Type": "SglQuoted", "Value": str(value)} if not part.get("Dollar"):
                out.append(value)
            case {"Type": "SglQuoted"} if not part.get("Dollar"):
                pass  # nothing between the quotes
            case {"Type": "DblQuoted"} if not part.get("Dollar"):
                for inner in part.get("Parts", []):  # type: ignore[attr-defined]
                    if inner.get("Type") != "Lit":
                        return None
                    out.append(re.sub(r'\\([$`"\\\n])', lambda found: found[1].strip("\n"), inner["Value"]))
            case _:
                return None
    return "".join(out)


def is_among(call: list[str | None], parts: Iterable[Part]) -> bool:
    """Whether a command that shfmt found is one of the classifier's: the words that both know, in order."""
    for part in parts:
        known = [word for word in part.argv if "…" not in word]
        more = len(known) < len(part.argv)  # words that it does not know may be any
        if call[0] is not None and part.argv[0] != call[0] and "…" not in part.argv[0]:
            continue
        rest = iter(known)
        if more or all(word is None or word in rest for word in call):
            return True
    return False


def against_shfmt(
    texts: Iterable[str],
    report: Callable[[str, str], None],
    context: Context,
    is_right: Callable[[str], bool],
) -> Counter[str]:
    """Compare the commands that both parsers find in each text; report where the answer is neither unknown nor right."""
    figures: Counter[str] = Counter()
    for text in texts:
        calls = calls_by_shfmt(text)
        answer = classify(ShellText(text=text), context)
        figures["texts"] += 1
        if calls is None:
            figures["texts that shfmt could not read"] += 1
            continue
        figures["commands that shfmt found"] += len(calls)
        if is_unread(answer):
            figures["texts that could not be read"] += 1
            continue
        commands = [part for part in answer.parts if part.kind is PartKind.COMMAND and part.argv]
        missing = [call for call in calls if not is_among(call, commands)]
        names = {call[0] for call in calls}
        extra = [
            part.argv for part in commands
            if part.within is None and None not in names and part.argv[0] not in names | NO_CALLS and "…" not in part.argv[0]
        ]  # fmt: skip
        if missing or extra:
            figures["texts that are read in two ways"] += 1
            unknown = any(
                reason.risk is Risk.UNKNOWN and reason.rule != "program.unrecognised"
                for reason in answer.reasons
            )
            if not unknown and not is_right(text):
                report(text, f"only shfmt: {missing}; only we: {extra}")
    return figures


def main() -> int:
    """Compare, and print what differs and the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("against", choices=["bash", "dash", "zsh", "shfmt"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--count", type=int, help="how many texts of the grammar (default: 5000; with files: none)"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    grammar = Grammar(args.seed)
    count = args.count if args.count is not None else 0 if args.files else 5000
    made = (grammar.text() for _ in range(count))
    differing = []

    def report(text: str, how: str) -> None:
        differing.append(text)
        print(f"{text!r}\n    {how}", flush=True)

    if args.against != "shfmt":
        texts = itertools.chain(made, filter(runs_shims, texts_of(args.files)))
        figures = against_shell(texts, report, args.against)
    else:
        with bash_in_sandbox() as bash:
            figures = against_shfmt(made, report, bash.context, bash.agrees)
            figures += against_shfmt(texts_of(args.files), report, bash.context, lambda _: False)
    for name, number in figures.items():
        print(f"{number:8,} {name}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
