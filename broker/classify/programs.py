"""Step 2: what a command does, by its program's entry in the tables.

In goes a command's words and the Scope; out come parts in the Inquiry. An entry (tables/*.toml) says which
options a program knows and what each does, what its operands are, and which effects it has. Programs whose
arguments are a language of their own (find, sed, git …) name a reader (readers.py).

A program is safe only with options known to be safe: any other option is `unknown`, unless the program
already has effects that make it no worse (an interpreter's options, say).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from broker.classify import environment, paths
from broker.classify.risk import PartKind, Reason, Risk
from broker.classify.scope import TAME, UNKNOWN, Finding, Inquiry, Scope, TooMuch, shown
from broker.classify.tables import load
from broker.classify.words import Word

MAX_COMMAND_DEPTH = 24

Span = tuple[int, int] | None


# -- entries -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One option: whether it takes a value (`=`, or `?`: only attached), what the value is, what it does."""

    name: str
    takes: str  # "", "=", "?"
    role: str
    effects: tuple[Risk, ...]
    marks: frozenset[str]
    operands: str  # replaces the entry's operand pattern when this option is given


@dataclass(slots=True)
class Entry:
    """A program, or one of its sub-commands."""

    name: str
    effects: tuple[Risk, ...]
    why: str
    options: dict[str, Option]
    numbers: bool  # -5 is fine, as in `head -5`
    prefix: tuple[str, ...]
    repeated: str
    suffix: tuple[str, ...]
    style: str
    loose: bool
    reader: str
    commands: dict[str, tuple[Risk, ...]]
    sub: dict[str, Any]
    subs: dict[str, Entry] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def stops_at_operand(self) -> bool:
        """Whether option parsing ends at the first operand, because a command follows."""
        return self.style == "posix" or "command" in self.prefix or self.repeated == "command" or bool(
            self.commands or self.sub
        )


_OPTION = re.compile(r"([^=?!>]+)(?:([=?])([a-z_]*))?((?:![a-z_]+)*)(?:>(\S*))?")
_NOT_WORSE = {Risk.CODE_EXECUTION, Risk.NETWORK_EGRESS, Risk.INSTALL, Risk.SYSTEM_WRITE, Risk.DESTRUCTIVE}


def _risks(text: str) -> tuple[Risk, ...]:
    return tuple(Risk.parse(label) for label in text.split())


def parse_options(text: str) -> dict[str, Option]:
    """Read the little language of the tables: `-o,--output=write`, `-i?!local_write`, `-e=>read...`."""
    options: dict[str, Option] = {}
    for token in text.split():
        match = _OPTION.fullmatch(token)
        if match is None:
            raise ValueError(f"cannot read the option {token!r}")
        names, takes, role, tail, operands = match.groups()
        marks = [mark for mark in (tail or "").split("!") if mark]
        risks = tuple(Risk.parse(mark) for mark in marks if mark.upper() in Risk.__members__)
        others = frozenset(mark for mark in marks if mark.upper() not in Risk.__members__)
        for name in names.split(","):
            options[name] = Option(
                name, takes or "", role or "", risks, others, (operands or "").replace(",", " ")
            )
    return options


def _operands(text: str) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """`text read... write` → what comes first, what repeats, what comes last."""
    prefix: list[str] = []
    suffix: list[str] = []
    repeated = ""
    for role in text.split():
        if role.endswith("..."):
            repeated = role[:-3]
        elif repeated:
            suffix.append(role)
        else:
            prefix.append(role)
    return tuple(prefix), repeated, tuple(suffix)


def parse_entry(name: str, raw: dict[str, Any]) -> Entry:
    """Turn a table's entry into what the judge reads."""
    effects = _risks(raw.get("effects", "safe"))
    prefix, repeated, suffix = _operands(raw.get("operands", "text..."))
    commands: dict[str, tuple[Risk, ...]] = {}
    for labels, names in raw.get("commands", {}).items():
        risks = _risks(labels)
        for one in names.split():
            commands[one.replace("~", " ")] = risks
    options = parse_options(raw.get("options", ""))
    numbers = options.pop("-NUM", None) is not None
    return Entry(
        name=name,
        effects=effects,
        why=raw.get("why", ""),
        options=options,
        numbers=numbers,
        prefix=prefix,
        repeated=repeated,
        suffix=suffix,
        style=raw.get("style", "gnu"),
        loose=raw.get("loose", "options" not in raw or bool(_NOT_WORSE & set(effects))),
        reader=raw.get("reader", ""),
        commands=commands,
        sub=raw.get("sub", {}),
        raw=raw,
    )


@cache
def entry_of(name: str) -> Entry | None:
    """The entry of a program, parsed once."""
    raw = load()["programs"].get(name)
    if raw is None:
        return None
    if "same" in raw:
        base = entry_of(raw["same"])
        if base is None or len(raw) == 1:
            return base
        return parse_entry(name, {**base.raw, **{key: value for key, value in raw.items() if key != "same"}})
    return parse_entry(name, raw)


def sub_entry(entry: Entry, name: str) -> Entry | None:
    """The entry of a sub-command that has one of its own."""
    if name in entry.subs:
        return entry.subs[name]
    raw = entry.sub.get(name)
    if raw is None:
        return None
    if "same" in raw:
        base = entry.sub[raw["same"]]
        raw = {**base, **{key: value for key, value in raw.items() if key != "same"}}
    parsed = parse_entry(f"{entry.name} {name}", raw)
    entry.subs[name] = parsed
    return parsed


# -- names ---------------------------------------------------------------------------------------------

_VERSIONED = re.compile(r"(.+?)[-.]?\d+(?:\.\d+)*(?:-(?:config|dbg))?")
_TRIPLET = re.compile(r"(?:x86_64|i[3-6]86|aarch64|arm|armv7l|riscv64|powerpc64le|s390x)(?:-[a-z0-9_]+)*-(?:linux|elf|eabi)(?:-[a-z0-9]+)?-")


@cache
def known_name(name: str) -> str:
    """Reduce a program's file name to the name that its entry has: python3.11 → python3, x-y-linux-gnu-gcc-12 → gcc."""
    programs = load()["programs"]
    if name in programs:
        return name
    short = _TRIPLET.sub("", name, count=1)
    if short in programs:
        return short
    for suffix in (".exe", ".real", ".distrib"):
        if short.endswith(suffix):
            short = short.removesuffix(suffix)
    while short not in programs:
        match = _VERSIONED.fullmatch(short)
        if match is None or not match.group(1):
            return name
        short = match.group(1)
    return short


_TOOL_CHAIN = re.compile(
    r"/usr/(?:local/)?lib(?:exec)?(?:64|32)?/(?:gcc|llvm-[\d.]+|clang|go[-\d.]*|git-core|rustlib|jvm|node_modules|python3?[\d.]*"
    r"|[a-z0-9_]+-linux-gnu/[\w.-]+|cargo|ruby|perl[\d.]*|php|dotnet|coreutils|apt|klibc|sftp-server|openssh|file)?"
)


def _internal(path: str) -> str | None:
    """Programs that tool chains start for themselves, by where they are: what they count as."""
    name = path.rsplit("/", 1)[-1]
    table: dict[str, str] = load()["programs"].get("_internal", {}).get("folders", {})
    for folder, counts_as in table.items():
        if paths.star_match(path, folder):
            if counts_as == "*git":
                return name if name.startswith("git-") else None
            return counts_as
    return None


# -- judging -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """One command while it is judged: what the readers work with."""

    inquiry: Inquiry
    scope: Scope
    entry: Entry
    name: str
    words: list[Word]
    finding: Finding
    index: int
    span: Span
    marks: set[str] = field(default_factory=set)
    depth: int = 0

    def add(self, risk: Risk, rule: str, text: str) -> None:
        """Record an effect of this command."""
        self.finding.add(risk, rule, text, self.span)

    def read(self, word: Word, *, whole: bool = False) -> None:
        """The command reads this path."""
        paths.judge_read(self.finding, word.text, self.scope.cwd, self.inquiry.context, self.span, whole=whole)

    def write(self, word: Word, *, whole: bool = False) -> None:
        """The command creates or changes this path. `-` is the standard output."""
        if word.text and word.text != "-":
            paths.judge_write(
                self.finding, word.text, self.scope.cwd, self.inquiry.context, self.span, whole=whole
            )

    def delete(self, word: Word, *, whole: bool = False) -> None:
        """The command deletes this path."""
        if word.text:
            paths.judge_delete(
                self.finding, word.text, self.scope.cwd, self.inquiry.context, self.span, whole=whole
            )

    def command(self, words: list[Word], *, rule: str = "") -> None:
        """The command starts this one."""
        if words:
            judge(self.inquiry, words, self.scope, span=self.span, within=self.index, depth=self.depth + 1)

    def shell(self, word: Word, dialect: str = "sh") -> None:
        """The command has a shell read this text."""
        if not word.known or word.glob and not word.static:
            self.add(
                Risk.CODE_EXECUTION, "shell.dynamic_text", "A shell runs a text that cannot be known before."
            )
            return
        self.shell_text(word.text)

    def shell_text(self, text: str) -> None:
        """The command has a shell read this text (a new shell: it inherits no plain variable)."""
        read_text = _SHELL["read"]
        scope = Scope(self.scope.cwd, exported=set(), previous_cwd=self.scope.previous_cwd)
        for name in self.scope.exported:
            if name in self.scope.variables:
                scope.variables[name] = self.scope.variables[name]
        scope.stdin = self.scope.stdin
        read_text(self.inquiry, text, scope, self.index, self.span)


_SHELL: dict[str, Callable[..., None]] = {}
_READERS: dict[str, Callable[[Call], None]] = {}


def reader(name: str) -> Callable[[Callable[[Call], None]], Callable[[Call], None]]:
    """Register a reader under the name that tables use."""

    def register(function: Callable[[Call], None]) -> Callable[[Call], None]:
        _READERS[name] = function
        return function

    return register


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
    static = not assigned and all([word.static for word in words])
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
            Risk.UNKNOWN, "program.dynamic", f"Which program {shown(first.text)} is cannot be known before it runs.", span
        )
        return
    text = first.text
    if not path and text in scope.functions:
        finding.add(Risk.SAFE, "shell.function", f"{text} is a function of this text; its body is judged.", span)
        return
    name = _resolve_name(inquiry, text, scope, finding, span, path, program)
    if name is None:
        return
    entry = entry_of(name)
    if entry is None:
        if Risk.CODE_EXECUTION not in finding.effects:
            finding.add(Risk.UNKNOWN, "program.unrecognised", f"{shown(name)} is not a program that we know.", span)
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
    own = _READERS.get(entry.reader) if entry.reader else None
    if own is not None:
        own(call)
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
        finding.add(Risk.CODE_EXECUTION, "program.memfd", "It runs a program that exists in memory only.", span)
        finding.add(Risk.UNKNOWN, "program.memfd", "It runs a program that exists in memory only.", span)
        return None
    named = paths.normalise(named)
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
    internal = _internal(named)
    if internal is not None:
        return internal
    return known_name(named.rsplit("/", 1)[-1])


# -- by grammar ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Parsed:
    """A command line taken apart: (option, value) pairs, and operands."""

    options: list[tuple[Option, Word | None]]
    operands: list[Word]
    rest: list[Word]  # from the first operand on, where a command follows
    pattern: str = ""


def parse(call: Call, words: list[Word], entry: Entry | None = None) -> Parsed:
    """Take a command line apart by its entry's grammar. Unknown options are recorded on the call."""
    entry = entry or call.entry
    parsed = Parsed([], [], [])
    single = entry.style == "single"
    stops = entry.stops_at_operand
    at, length = 0, len(words)
    while at < length:
        word = words[at]
        text = word.text
        if len(text) < 2 or text[0] != "-" or entry.style == "words":
            if stops:
                parsed.rest = words[at:]
                break
            parsed.operands.append(word)
            at += 1
            continue
        if text == "--":
            if stops:
                parsed.rest = words[at + 1 :]
            else:
                parsed.operands += words[at + 1 :]
            break
        if single:
            at = _single(call, entry, words, at, parsed)
        elif text[1] == "-":
            at = _long(call, entry, words, at, parsed)
        else:
            at = _short(call, entry, words, at, parsed)
    return parsed


def _given(call: Call, parsed: Parsed, option: Option, value: Word | None) -> None:
    parsed.options.append((option, value))
    call.marks |= option.marks
    if option.operands:
        parsed.pattern = option.operands


def _unknown_option(call: Call, entry: Entry, text: str) -> None:
    if not entry.loose:
        call.add(Risk.UNKNOWN, "option.unrecognised", f"{entry.name} has no option {shown(text)} that we know.")


def _long(call: Call, entry: Entry, words: list[Word], at: int, parsed: Parsed) -> int:
    word = words[at]
    name, equals, value = word.text.partition("=")
    option = entry.options.get(name)
    options = [option] if option else []
    if option is None and len(name) > 3:
        # getopt_long takes any unambiguous beginning: `--compress-prog` is --compress-program.
        options = [found for key, found in entry.options.items() if key.startswith(name)]
    if not options:
        if entry.loose and entry.options.get("-") is None:
            return at + 1
        _unknown_option(call, entry, name)
        return at + 1
    step = at + 1
    for option in options:
        given: Word | None = None
        if equals:
            given = Word(value, word.static, word.glob, word.start, word.end)
        elif option.takes == "=":
            given = words[at + 1] if at + 1 < len(words) else None
            step = at + (3 if option.role == "two" else 2)
        _given(call, parsed, option, given)
    return step


def _short(call: Call, entry: Entry, words: list[Word], at: int, parsed: Parsed) -> int:
    word = words[at]
    text = word.text
    whole = entry.options.get(text)
    if whole is not None and len(text) > 2:  # an option such as `-name` among short ones
        if whole.takes == "=":
            _given(call, parsed, whole, words[at + 1] if at + 1 < len(words) else None)
            return at + 2
        _given(call, parsed, whole, None)
        return at + 1
    if entry.numbers and text[1:].isdigit():
        return at + 1
    cursor = 1
    while cursor < len(text):
        option = entry.options.get("-" + text[cursor])
        if option is None:
            if entry.numbers and text[cursor].isdigit():
                cursor += 1
                continue
            _unknown_option(call, entry, "-" + text[cursor])
            if not entry.loose:
                return at + 1
            cursor += 1
            continue
        cursor += 1
        if option.takes == "=":
            if cursor < len(text):
                attached = text[cursor:]
                _given(call, parsed, option, Word(attached, word.static, word.glob, word.start, word.end))
                return at + 1
            _given(call, parsed, option, words[at + 1] if at + 1 < len(words) else None)
            return at + 2
        if option.takes == "?":
            attached = text[cursor:]
            _given(
                call,
                parsed,
                option,
                Word(attached, word.static, word.glob, word.start, word.end) if attached else None,
            )
            return at + 1
        _given(call, parsed, option, None)
    return at + 1


def _single(call: Call, entry: Entry, words: list[Word], at: int, parsed: Parsed) -> int:
    """Options of one dash and a long name (Go's flag package, find, java): `-name value`, `--name=value`."""
    word = words[at]
    name, equals, value = word.text.partition("=")
    if name.startswith("--"):
        name = name[1:] if name[1:] in entry.options or name not in entry.options else name
    option = entry.options.get(name)
    if option is None:
        for key, found in entry.options.items():  # attached values: -Wall, -O2, -Ifolder
            if found.takes == "?" and len(key) == 2 and word.text.startswith(key):
                _given(call, parsed, found, Word(word.text[2:], word.static, word.glob, word.start, word.end))
                return at + 1
        if entry.numbers and name[1:].isdigit():
            return at + 1
        _unknown_option(call, entry, name)
        return at + 1
    if equals:
        _given(call, parsed, option, Word(value, word.static, word.glob, word.start, word.end))
        return at + 1
    if option.takes == "=":
        _given(call, parsed, option, words[at + 1] if at + 1 < len(words) else None)
        return at + 2
    _given(call, parsed, option, None)
    return at + 1


def by_grammar(call: Call, entry: Entry | None = None, words: list[Word] | None = None) -> None:
    """Judge a call by its entry alone."""
    entry = entry or call.entry
    words = call.words[1:] if words is None else words
    parsed = parse(call, words, entry)
    judge_parsed(call, entry, parsed)


def judge_parsed(call: Call, entry: Entry, parsed: Parsed) -> None:
    """Add the effects of the entry, of its options, and of its operands."""
    if entry.commands or entry.sub:
        _options(call, entry, parsed)
        _sub_command(call, entry, parsed)
        return
    for risk in entry.effects:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{entry.name.replace(' ', '.')}", entry.why or _default_why(entry, risk))
    _options(call, entry, parsed)
    prefix, repeated, suffix = entry.prefix, entry.repeated, entry.suffix
    if parsed.pattern:
        prefix, repeated, suffix = _operands(parsed.pattern)
    if parsed.rest:
        _operands_before_command(call, prefix, repeated, parsed.rest)
        return
    apply_operands(call, prefix, repeated, suffix, parsed.operands)


_WHY = {
    Risk.LOCAL_WRITE: "{} changes files.",
    Risk.CODE_EXECUTION: "{} runs code that this text does not show.",
    Risk.INSTALL: "{} brings in packages or tool chains.",
    Risk.NETWORK_EGRESS: "{} reaches out to the network.",
    Risk.SYSTEM_WRITE: "{} changes, or reads secrets of, the system.",
    Risk.PERSISTENCE: "{} plants something that runs later.",
    Risk.DESTRUCTIVE: "{} can lose data for good.",
    Risk.UNKNOWN: "What {} does here cannot be known.",
    Risk.BLOCKED: "{} is never allowed.",
}


def _default_why(entry: Entry, risk: Risk) -> str:
    return _WHY[risk].format(entry.name)


def _options(call: Call, entry: Entry, parsed: Parsed) -> None:
    for option, value in parsed.options:
        for risk in option.effects:
            if risk is not Risk.SAFE:
                call.add(
                    risk,
                    f"option.{entry.name.replace(' ', '.')}{option.name}",
                    _WHY[risk].format(f"{entry.name} {option.name}"),
                )
        if value is not None and option.role:
            apply_role(call, option.role, value, f"{entry.name} {option.name}")


def _operands_before_command(call: Call, prefix: tuple[str, ...], repeated: str, rest: list[Word]) -> None:
    for at, role in enumerate(prefix):
        if role == "command":
            call.command(rest[at:])
            return
        if at >= len(rest):
            return
        apply_role(call, role, rest[at], call.entry.name)
    if repeated == "command":
        call.command(rest[len(prefix) :])
    elif repeated:
        for word in rest[len(prefix) :]:
            apply_role(call, repeated, word, call.entry.name)


def apply_operands(
    call: Call, prefix: tuple[str, ...], repeated: str, suffix: tuple[str, ...], operands: list[Word]
) -> None:
    """Give each operand its role and judge it."""
    count = len(operands)
    last = count - len(suffix) if count > len(prefix) else count
    last = max(last, min(len(prefix), count))
    for at, word in enumerate(operands):
        if at >= last:
            role = suffix[at - last]
        elif at < len(prefix):
            role = prefix[at]
        else:
            role = repeated
        if role == "dest":
            destination(call, operands[len(prefix) : last], word)
        elif role and role != "text":
            apply_role(call, role, word, call.entry.name)
    if count <= len(prefix) and suffix and suffix[-1] == "dest" and not call.marks & {"target"}:
        return


def destination(call: Call, sources: list[Word], target: Word) -> None:
    """Where cp, mv, ln and install put things: at the target, or in it under the source's name."""
    whole = "whole" in call.marks
    text = target.text
    path = paths.resolve(text, call.scope.cwd, call.inquiry.context)
    context = call.inquiry.context
    roots = {context.home, context.workspace, "/", *context.scratch}
    folder = text.endswith(("/", "/.", "/..")) or text in (".", "..", "~") or len(sources) > 1 or path in roots
    if not folder:
        call.write(target, whole=whole)
    for source in sources:
        name = source.text.rstrip("/").rsplit("/", 1)[-1]
        if not name or name in (".", ".."):
            continue
        inner = Word(text.rstrip("/") + "/" + name, False, source.glob, target.start, target.end)
        if folder:
            call.write(inner, whole=whole)
        elif path is not None and text:
            # It may be a folder: then the name in it counts, if it is protected.
            found = paths.find_entry(
                "persistence", paths.normalise(path + "/" + name), inner.text, context, inside=whole
            )
            if found is not None:
                call.write(inner, whole=whole)
    if folder and not sources:
        call.write(target, whole=whole)


def apply_role(call: Call, role: str, word: Word, what: str) -> None:
    """Judge one value by its role."""
    whole = "whole" in call.marks
    match role:
        case "" | "text" | "list" | "two":
            return
        case "read_kind":
            return  # what kind of file it is, not what is in it
        case "read":
            call.read(word, whole=whole)
        case "tree":
            call.read(word, whole=True)
        case "write":
            call.write(word, whole=whole)
        case "fill":
            if word.text:
                paths.judge_write(
                    call.finding, word.text, call.scope.cwd, call.inquiry.context, call.span, folder=True
                )
        case "delete":
            call.delete(word, whole=whole)
        case "deletetree":
            call.delete(word, whole=True)
        case "shred":
            _shredded(call, word)
        case "branch":
            call.add(Risk.LOCAL_WRITE, f"program.{call.entry.name.replace(' ', '.')}", f"{what} changes a reference.")
        case "sets_name":
            call.add(Risk.SYSTEM_WRITE, "option.hostname", "It names the machine.")
        case "fetch":
            if "://" in word.text:
                call.add(Risk.NETWORK_EGRESS, "network.host", f"{what} reaches {shown(word.text)}.")
            else:
                call.read(word)
        case "move":
            _moved(call, word)
        case "dest":
            destination(call, [], word)
        case "link":
            _linked(call, word)
        case "run":
            call.shell(word)
        case "program":
            call.add(Risk.CODE_EXECUTION, "option.program", f"{what} runs the program {shown(word.text)}.")
            if word.known:
                call.shell_text(word.text)
        case "script":
            call.read(word)
            call.add(Risk.CODE_EXECUTION, "interpreter.script", f"{what} runs the code in {shown(word.text)}.")
        case "code":
            call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{what} runs code given as text.")
            secrets_in_code(call, word.text)
        case "config":
            call.read(word)
            call.add(
                Risk.CODE_EXECUTION, "option.config", f"{what} reads {shown(word.text)}, which can name code to run."
            )
        case "host" | "url":
            call.add(Risk.NETWORK_EGRESS, "network.host", f"{what} reaches {shown(word.text)}.")
        case "assignment":
            name, _, value = word.text.partition("=")
            set_variable(call, name, value)
        case _:
            raise ValueError(f"the tables name a role that does not exist: {role!r}")


def _moved(call: Call, word: Word) -> None:
    """mv's sources: they are gone from where they were, but not lost."""
    context = call.inquiry.context
    path = paths.resolve(word.text, call.scope.cwd, context)
    if path is None:
        return
    call.read(word)
    if paths.under(context.workspace, path) or paths.under(context.home, path) or path in ("/home", "/usr", "/etc"):
        call.add(Risk.DESTRUCTIVE, "path.delete_root", f"It moves {shown(path)}, with all that is in it.")
    else:
        call.write(word)


def _shredded(call: Call, word: Word) -> None:
    """shred: what it overwrites outside the task's own places nobody gets back."""
    path = paths.resolve(word.text, call.scope.cwd, call.inquiry.context)
    if path is not None and paths.is_raw_device(path):
        call.add(Risk.DESTRUCTIVE, "path.raw_device", f"It overwrites the device {shown(path)}.")
        return
    call.delete(word, whole=True)


def _linked(call: Call, word: Word) -> None:
    """What a new link points to."""
    context = call.inquiry.context
    call.read(word, whole=True)
    path = paths.resolve(word.text, call.scope.cwd, context)
    if path is None or not word.text.startswith(("/", "..")):
        return
    if paths.place_of(path, context) is paths.Place.OUTSIDE and not path.startswith(
        ("/usr/", "/opt/", "/bin/", "/lib", "/nix/", "/dev/null")
    ):
        call.add(Risk.SYSTEM_WRITE, "path.link_outside", f"A link makes {shown(path)} reachable from inside.")


def set_variable(call: Call, name: str, value: str) -> None:
    """A variable is set for what follows, or for the command that this one starts."""
    why = environment.why_it_matters(name, value, call.inquiry.context)
    if why is not None:
        call.add(Risk.CODE_EXECUTION, f"environment.{name}", f"It sets {name}: {why}.")


_ENVIRON = re.compile(r"environ|getenv|process\.env|ENV\[|ENVIRON|%ENV|\benv\.", re.I)
_NAMES = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_QUOTED_PATH = re.compile(r"""['"`]((?:~|/|\.)[^'"`\s]{2,200})['"`]""")


def secrets_in_code(call: Call, code: str) -> None:
    """Look through code given as text for the secrets and protected files that it names."""
    from broker.classify.words import is_secret_name

    if _ENVIRON.search(code):
        for name in _NAMES.findall(code):
            if is_secret_name(name):
                call.add(Risk.SYSTEM_WRITE, "secret.variable", f"The code reads {name}, named like a secret.")
                break
    if UNKNOWN in code:
        return
    for path in _QUOTED_PATH.findall(code)[:20]:
        resolved = paths.resolve(
            path.replace("~", call.inquiry.context.home, 1) if path[0] == "~" else path,
            call.scope.cwd,
            call.inquiry.context,
        )
        if resolved is None:
            continue
        entry = paths.is_secret_path(resolved, call.inquiry.context)
        if entry is not None:
            call.add(Risk.SYSTEM_WRITE, entry.rule, f"The code names {shown(path)}: {entry.why}.")
        found = paths.find_entry("persistence", resolved, path, call.inquiry.context)
        if found is not None and re.search(
            rf"(?:open\w*\(\s*['\"]{re.escape(path)}['\"]\s*,\s*['\"][wax+]"
            rf"|['\"]{re.escape(path)}['\"]\)?\.write_|>>?\s*['\"]?{re.escape(path)}|(?:write|append|copy|rename|symlink)\w*\([^)]*['\"]{re.escape(path)})",
            code,
        ):
            call.add(Risk.PERSISTENCE, found.rule, f"The code names {shown(path)}: {found.why}.")


# -- sub-commands --------------------------------------------------------------------------------------


def _sub_command(call: Call, entry: Entry, parsed: Parsed) -> None:
    rest = parsed.rest
    if not rest:
        for risk in entry.effects:
            if risk is not Risk.SAFE:
                call.add(risk, f"program.{entry.name.replace(' ', '.')}", entry.why or _default_why(entry, risk))
        return
    first = rest[0]
    if not first.known:
        call.add(Risk.UNKNOWN, "program.dynamic", f"Which command of {entry.name} runs cannot be known.")
        return
    # The longest name that the table has: `container ls` before `container`.
    for length in (3, 2, 1):
        if len(rest) < length:
            continue
        name = " ".join(word.text for word in rest[:length])
        own = sub_entry(entry, name)
        if own is not None:
            judge_sub(call, own, rest[length:])
            return
        risks = entry.commands.get(name)
        if risks is not None:
            _compact(call, entry, name, risks, rest[length:])
            return
    fallback = entry.commands.get("*")
    if fallback is not None:
        _compact(call, entry, first.text, fallback, rest[1:])
        return
    own = sub_entry(entry, "*")
    if own is not None:
        judge_sub(call, own, rest)
        return
    call.add(
        Risk.UNKNOWN, "program.unknown_command", f"{entry.name} has no command {shown(first.text)} that we know."
    )


def judge_sub(call: Call, entry: Entry, words: list[Word]) -> None:
    """Judge a sub-command that has an entry of its own."""
    if words and words[-1].text in ("--help", "-h") and len(words) == 1 and not entry.reader:
        return
    outer = call.entry
    call.entry = entry
    if entry.reader:
        saved = call.words
        call.words = [saved[0], *words]
        _READERS[entry.reader](call)
        call.words = saved
    else:
        by_grammar(call, entry, words)
    call.entry = outer


def _compact(call: Call, entry: Entry, name: str, risks: tuple[Risk, ...], rest: list[Word]) -> None:
    """A sub-command of which the table says the effects only."""
    if len(rest) == 1 and rest[0].text in ("--help", "-h"):
        return
    for risk in risks:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{entry.name}.{name}".replace(" ", "."), _WHY[risk].format(f"{entry.name} {name}"))
    for word in rest:
        # Whatever the grammar is: a path that is a secret is one.
        if word.text and word.text[0] in "./~" and word.known:
            call.read(word)


def mentions(words: list[Word], *names: str) -> bool:
    """Whether one of these words is among them, as it stands."""
    return any(word.text in names for word in words)


def unknown_word(at: Word) -> Word:
    """A word that only the run will tell."""
    return Word(UNKNOWN, False, False, at.start, at.end)


def tame_word(at: Word) -> Word:
    """A word that is not known but holds no slash."""
    return Word(TAME, False, False, at.start, at.end)
