"""Step 2: what a command does, by its program's entry in the tables.

In goes a command's words and the Scope; out come parts in the Inquiry. An entry (tables/*.toml) says which
options a program knows and what each does, what its operands are, and which effects it has. Programs whose
arguments are a language of their own (find, sed, git …) name a reader (readers/).

A program is safe only with options known to be safe: any other option is `unknown`, unless the program
already has effects that make it no worse (an interpreter's options, say).
"""

from __future__ import annotations

from broker.classify import paths
from broker.classify.call import Call, Span
from broker.classify.commands import by_grammar
from broker.classify.entries import entry_of
from broker.classify.names import internal_name, known_name
from broker.classify.readers import reader_named
from broker.classify.risk import PartKind, Reason, Risk
from broker.classify.scope import Finding, Inquiry, Scope, TooMuch, shown
from broker.classify.word import Word

MAX_COMMAND_DEPTH = 24
SCRIPTS = frozenset("sh bash zsh ksh fish py pl rb js mjs cjs ts php lua tcl ps1 cmd bat".split())
"""How the names of scripts end: starting one is what `sh FILE` or `python3 FILE` is, code and no more."""


def judge(
    inquiry: Inquiry,
    words: list[Word],
    scope: Scope,
    *,
    span: Span,
    within: int | None = None,
    depth: int = 0,
    assigned: bool = False,
    notes: list[Reason] | None = None,
    path: str = "",
    program: str = "",
) -> int:
    """Judge one simple command, append its part (and those of the commands it starts), return its place."""
    if depth > MAX_COMMAND_DEPTH:
        raise TooMuch("Commands start commands too deeply.", "text.too_deep")
    inquiry.count(len(words))
    index = inquiry.open()
    finding = Finding()
    if notes:
        for note in notes:
            finding.effects.add(note.risk)
            finding.reasons.append(note)
    _judge_into(inquiry, words, scope, finding, index, span, depth, path, program)
    static = not assigned and all(word.static for word in words)
    inquiry.close(index, PartKind.COMMAND, finding, words=words, static=static, span=span, within=within)
    return index


def _judge_into(
    inquiry: Inquiry,
    words: list[Word],
    scope: Scope,
    finding: Finding,
    index: int,
    span: Span,
    depth: int,
    path: str,
    program: str,
) -> None:
    first = words[0]
    if not first.known or (first.glob and not path):
        finding.add(
            Risk.UNKNOWN,
            "program.dynamic",
            f"Which program {shown(first.text)} is cannot be known before it runs.",
            span,
        )
        return
    text = first.text
    if not path and depth == 0 and text in scope.functions:  # `command f` and `env f` find no functions
        finding.add(
            Risk.SAFE, "shell.function", f"{text} is a function of this text; its body is judged.", span
        )
        return
    name = _resolve_name(inquiry, text, scope, finding, span, path, program)
    if name is None:
        return
    entry = entry_of(name)
    if entry is None:
        if text in inquiry.functions and depth == 0 and not path:
            finding.add(
                Risk.SAFE,
                "shell.function",
                f"{text} is defined elsewhere in this text; its body is judged there.",
                span,
            )
        elif name.rpartition(".")[2].lower() in SCRIPTS:
            finding.add(
                Risk.CODE_EXECUTION,
                "program.script",
                f"{shown(name)} is a script, by its name: it runs code that this text does not show.",
                span,
            )
        else:
            finding.add(
                Risk.UNKNOWN, "program.unrecognised", f"{shown(name)} is not a program that we know.", span
            )
        return
    call = Call(inquiry, scope, entry, name, words, finding, index, span, depth=depth)
    if _only_asks_for_help(words) and entry.reader not in ("echo", "test"):
        finding.add(Risk.SAFE, "program.help", f"{name} only prints its help or version.", span)
        return
    run(call)


def _only_asks_for_help(words: list[Word]) -> bool:
    if len(words) == 2:
        return words[1].text in ("--help", "--version")
    return len(words) == 3 and words[2].text == "--help" and words[1].text[:1].isalpha() and words[1].known


def run(call: Call) -> None:
    """Read a call by its entry: with its own reader, or by its grammar."""
    entry = call.entry
    if entry.reader:
        reader_named(entry.reader)(call)
    else:
        by_grammar(call)


def _resolve_name(
    inquiry: Inquiry, text: str, scope: Scope, finding: Finding, span: Span, path: str, program: str
) -> str | None:
    """Return the name whose entry says what the program does; None when that is already said."""
    context = inquiry.context
    if not path and "/" not in text:
        return known_name(text)
    named = path or paths.resolve(text, scope.cwd, context)
    if named is None:
        finding.add(Risk.UNKNOWN, "program.dynamic", f"Where {shown(text)} lies cannot be known.", span)
        return None
    if path.startswith("/memfd:") or program.startswith("/memfd:"):
        finding.add(
            Risk.CODE_EXECUTION, "program.memfd", "It runs a program that exists in memory only.", span
        )
        finding.add(Risk.UNKNOWN, "program.memfd", "It runs a program that exists in memory only.", span)
        return None
    named = paths.normalise(named)
    if program and named.startswith("/proc/"):
        named = paths.normalise(program)  # /proc/self/exe, /proc/self/fd/3: another name for the program
    made = paths.in_writable(named, context)
    target = paths.normalise(program) if program else ""
    if not made and target and paths.in_writable(target, context):
        made, named = True, target  # a link outside that leads to what the task can write
    elif made and target and not paths.in_writable(target, context):
        made, named = False, target  # a link that the task made, to a program of the system
    if made:
        finding.add(
            Risk.CODE_EXECUTION,
            "program.task_made",
            f"{shown(named)} lies where the task can write, so it may be any program.",
            span,
        )
        name = known_name(named.rsplit("/", 1)[-1])
        in_environment = any(mark in named for mark in ("/.venv/bin/", "/venv/bin/", "/node_modules/.bin/"))
        return name if in_environment and entry_of(name) is not None else None
    internal = internal_name(named)
    if internal is not None:
        return internal
    return known_name(named.rsplit("/", 1)[-1])
