"""Step 2: what options and operands do, by the roles that the tables give them."""

from __future__ import annotations

from broker.classify import paths
from broker.classify.call import Call, code_in, set_variable
from broker.classify.entries import Entry, operand_roles
from broker.classify.grammar import Parsed
from broker.classify.risk import Risk
from broker.classify.scope import Finding, shown
from broker.classify.word import Word

WHY = {
    Risk.LOCAL_WRITE: "{} changes files.",
    Risk.CODE_EXECUTION: "{} runs code that this text does not show.",
    Risk.INSTALL: "{} brings in packages or tool chains.",
    Risk.NETWORK_EGRESS: "{} reaches out to the network.",
    Risk.SYSTEM_WRITE: "{} works on the system itself, or on what is not the task's own.",
    Risk.PERSISTENCE: "{} plants something that runs later.",
    Risk.DESTRUCTIVE: "{} can lose data for good.",
    Risk.UNKNOWN: "What {} does here cannot be known.",
    Risk.BLOCKED: "{} is never allowed.",
}


def default_why(entry: Entry, risk: Risk) -> str:
    """The sentence for an entry that has none of its own."""
    return WHY[risk].format(entry.name)


def judge_options_of(call: Call, entry: Entry, parsed: Parsed) -> None:
    """Add what the options given do, by an entry's grammar."""
    for option, value in parsed.options:
        for risk in option.effects:
            if risk is not Risk.SAFE:
                call.add(
                    risk,
                    f"option.{entry.name.replace(' ', '.')}{option.name}",
                    WHY[risk].format(f"{entry.name} {option.name}"),
                )
        if value is not None and option.role:
            apply_role(call, option.role, value, f"{entry.name} {option.name}")


def judge_options(call: Call, parsed: Parsed) -> None:
    """Add the options' effects and roles only: a reader says what the operands mean."""
    judge_options_of(call, call.entry, parsed)


def judge_operands(call: Call, entry: Entry, parsed: Parsed) -> None:
    """Add what an entry without sub-commands does: its own effects, its options', its operands'."""
    for risk in entry.effects:
        if risk is not Risk.SAFE:
            call.add(risk, f"program.{entry.name.replace(' ', '.')}", entry.why or default_why(entry, risk))
    judge_options_of(call, entry, parsed)
    prefix, repeated, suffix = entry.prefix, entry.repeated, entry.suffix
    if parsed.pattern:
        prefix, repeated, suffix = operand_roles(parsed.pattern)
    for word in parsed.stray:
        apply_role(call, "either" if Risk.LOCAL_WRITE in entry.effects else "read", word, entry.name)
    if parsed.rest:
        _operands_before_command(call, prefix, repeated, parsed.rest)
    else:
        apply_operands(call, prefix, repeated, suffix, parsed.operands)


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


ROLES = frozenset(
    [
        "text",
        "list",
        "two",
        "read_kind",
        "read",
        "tree",
        "write",
        "fill",
        "unpack",
        "delete",
        "deletetree",
        "shred",
        "branch",
        "sets_name",
        "clock",
        "fetch",
        "move",
        "dest",
        "link",
        "run",
        "program",
        "script",
        "code",
        "config",
        "library",
        "either",
        "host",
        "url",
        "assignment",
        "command",
        "sed",
        "awk",
    ]
)
"""Every role that a table may name. `command`, `sed` and `awk` are read by the grammar and by readers."""


def apply_role(call: Call, role: str, word: Word, what: str) -> None:
    """Judge one value by its role."""
    whole = "whole" in call.marks
    match role:
        case "" | "text" | "list" | "two" | "awk" | "sed":
            return
        case "read_kind":
            return  # what kind of file it is, not what is in it
        case "read":
            call.read(word, whole=whole)
        case "tree":
            call.read(word, whole=True)
        case "either":
            _read_or_written(call, word)
        case "write":
            call.write(word, whole=whole)
        case "fill":
            if word.text:
                paths.judge_write(
                    call.finding, word.text, call.scope.cwd, call.inquiry.context, call.span, folder=True
                )
        case "unpack":
            unnamed_files(call, word)
        case "delete":
            call.delete(word, whole=whole)
        case "deletetree":
            call.delete(word, whole=True)
        case "shred":
            _shredded(call, word)
        case "branch":
            call.add(
                Risk.LOCAL_WRITE,
                f"program.{call.entry.name.replace(' ', '.')}",
                f"{what} changes a reference.",
            )
        case "clock":  # `date MMDDhhmm`
            if word.known and word.text[:1].isdigit():
                call.add(Risk.SYSTEM_WRITE, "option.clock", "It sets the machine's clock.")
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
            if "://" in word.text:
                call.add(Risk.NETWORK_EGRESS, "network.host", f"{what} fetches {shown(word.text)}.")
            call.read(word)
            call.add(Risk.CODE_EXECUTION, "interpreter.script", f"{what} runs {code_in(word)}.")
        case "code":
            call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{what} runs code given as text.")
            from broker.classify.code import secrets_in_code

            secrets_in_code(call, word.text)
        case "config":
            call.read(word)
            call.add(
                Risk.CODE_EXECUTION,
                "option.config",
                f"{what} reads {shown(word.text)}, which can name code to run.",
            )
        case "library":
            _library(call, word, what)
        case "host" | "url":
            call.add(Risk.NETWORK_EGRESS, "network.host", f"{what} reaches {shown(word.text)}.")
        case "assignment":
            name, _, value = word.text.partition("=")
            set_variable(call, name, value)
        case _:
            raise ValueError(f"the tables name a role that does not exist: {role!r}")


def destination(call: Call, sources: list[Word], target: Word) -> None:
    """Where cp, mv, ln and install put things: at the target, or in it under the source's name."""
    whole = "whole" in call.marks
    text = target.text
    path = paths.resolve(text, call.scope.cwd, call.inquiry.context)
    context = call.inquiry.context
    roots = {context.home, context.workspace, "/", *context.scratch}
    folder = (
        text.endswith(("/", "/.", "/..")) or text in (".", "..", "~") or len(sources) > 1 or path in roots
    )
    if not folder:
        call.write(target, whole=whole)
    for source in sources:
        name = source.text.rstrip("/").rsplit("/", 1)[-1]
        if not name or name in (".", ".."):
            unnamed_files(call, target)
            continue
        inner = Word(text.rstrip("/") + "/" + name, False, source.glob, target.start, target.end)
        if folder:
            call.write(inner, whole=whole)
        elif path is not None and text and not text.endswith(".sample"):
            # It may be a folder: then the name in it counts, if it is protected.
            found = paths.find_entry(
                "persistence", paths.normalise(path + "/" + name), inner.text, context, inside=whole
            )
            if found is not None:
                call.write(inner, whole=whole)
    if folder and not sources:
        call.write(target, whole=whole)


def unnamed_files(call: Call, target: Word) -> None:
    """Files under names that only an archive or another folder knows land here: what they could overwrite counts.

    In the workspace itself that would be everything that is protected in it, each time: there only its own
    name counts, as it does for `cp -r x .`.
    """
    call.write(target)
    context = call.inquiry.context
    path = paths.resolve(target.text, call.scope.cwd, context)
    if path is None or path == context.workspace:
        return
    if path == context.home:
        call.add(
            Risk.PERSISTENCE, "path.unnamed", f"Files land in {shown(path)}, where shells read profiles."
        )
    elif path == "/":
        call.add(Risk.PERSISTENCE, "path.unnamed", "Files land anywhere in the system, where services start.")
    elif (entry := paths.find_entry("persistence", path, target.text, context, inside=True)) is not None:
        call.add(Risk.PERSISTENCE, entry.rule, f"Files land in {shown(path)}: {entry.why}.")


def _library(call: Call, word: Word, what: str) -> None:
    """Code that a program loads into itself: the system's own is part of the program, any other is not."""
    path = paths.resolve(word.text, call.scope.cwd, call.inquiry.context)
    if path is None or not word.text.startswith("/") or paths.in_writable(path, call.inquiry.context):
        call.add(Risk.CODE_EXECUTION, "option.library", f"{what} loads code from {shown(word.text)}.")


def _moved(call: Call, word: Word) -> None:
    """The sources of mv: they are gone from where they were, but not lost."""
    context = call.inquiry.context
    path = paths.resolve(word.text, call.scope.cwd, context)
    if path is None:
        return
    call.read(word)
    if (
        paths.under(context.workspace, path)
        or paths.under(context.home, path)
        or path in ("/home", "/usr", "/etc")
    ):
        call.add(Risk.DESTRUCTIVE, "path.delete_root", f"It moves {shown(path)}, with all that is in it.")
    else:
        call.write(word)


def _read_or_written(call: Call, word: Word) -> None:
    """A path of which nobody said whether it is read or written: a secret, and what runs later, count either way."""
    call.read(word)
    if not word.known or not word.text:
        return
    written = Finding()
    paths.judge_write(written, word.text, call.scope.cwd, call.inquiry.context, call.span)
    for reason in written.reasons:
        if reason.risk is Risk.PERSISTENCE:
            call.add(reason.risk, reason.rule, reason.text)


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
    start = call.scope.cwd
    if word.text.startswith("..") and "symbolic" in call.marks and "relative" not in call.marks:
        # The kernel follows it from the folder that the link is in.
        folder, slash, _ = call.words[-1].text.rpartition("/")
        start = paths.resolve(folder or slash, start, context) if folder or slash else start
    path = paths.resolve(word.text, start, context)
    call.read(Word(path, False, False, word.start, word.end) if path is not None else word, whole=True)
    if path is None:
        return
    inside = paths.place_of(path, context) is not paths.Place.WORKSPACE
    entry = paths.find_entry("persistence", path, word.text, context, inside=inside)
    if entry is not None:
        call.add(
            Risk.PERSISTENCE, entry.rule, f"A link makes {shown(path)} writable by another name: {entry.why}."
        )
    if not word.text.startswith(("/", "..")):
        return
    if paths.place_of(path, context) is paths.Place.OUTSIDE and not path.startswith(
        ("/usr/", "/opt/", "/bin/", "/lib", "/nix/", "/dev/null")
    ):
        call.add(Risk.SYSTEM_WRITE, "path.link_outside", f"A link makes {shown(path)} reachable from inside.")
