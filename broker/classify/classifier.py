"""Step 2: operation + context -> Assessment. Pure: same input, version and tables, same answer, for ever."""

from __future__ import annotations

import stat
from dataclasses import replace
from typing import Any, assert_never

from broker.classify import environment, paths
from broker.classify.context import Context
from broker.classify.entries import entry_of
from broker.classify.names import known_name
from broker.classify.programs import judge
from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.classify.scope import Finding, Inquiry, Scope, TooMuch
from broker.classify.tables import tables_digest
from broker.classify.version import CLASSIFIER_VERSION
from broker.classify.word import Word
from broker.request.operation import (
    Connection,
    Delegation,
    Exec,
    FileAction,
    FileChange,
    FileRead,
    Operation,
    ShellText,
)


def classify(operation: Operation, context: Context) -> Assessment:
    """Say what an operation would do. Never raises for any operation: what cannot be read is `unknown`."""
    inquiry = Inquiry(context, _read_text, judge)
    try:
        match operation:
            case ShellText():
                _shell_text(inquiry, operation)
            case Exec():
                _exec(inquiry, operation)
            case FileChange():
                _file_change(inquiry, operation)
            case FileRead():
                finding = Finding()
                paths.judge_read(finding, operation.path, context.cwd, context, None)
                inquiry.add(PartKind.FILE, finding, None)
            case Connection():
                _connection(inquiry, operation)
            case Delegation():
                _delegation(inquiry, operation)
            case _:
                assert_never(operation)
    except (TooMuch, RecursionError) as error:
        finding = Finding()
        rule = error.rule if isinstance(error, TooMuch) else "text.too_deep"
        why = error.why if isinstance(error, TooMuch) else "It nests too deeply."
        finding.add(Risk.UNKNOWN, rule, why)
        inquiry.add(PartKind.WHOLE, finding, None)
    parts = tuple([part if part is not None else _unfinished() for part in inquiry.parts])
    if inquiry.aliases:
        parts = tuple([_if_no_alias(part, parts, inquiry.aliases) for part in parts])
    if not parts:
        parts = (Part(kind=PartKind.WHOLE, effects=frozenset((Risk.SAFE,)), reasons=()),)
    return Assessment(parts=parts, classifier=CLASSIFIER_VERSION, tables=tables_digest())


def _if_no_alias(part: Part, parts: tuple[Part, ...], aliases: set[str]) -> Part:
    """A command called like an alias of the text means another one, or ends inside a quotation mark of it.

    An alias is not expanded within its own definition: `alias rm='rm -i'` starts the program.
    """
    if part.kind is not PartKind.COMMAND or not part.argv or part.argv[0] not in aliases:
        return part
    around = parts[part.within].argv if part.within is not None else ()
    if around[:1] == ("alias",) and any(word.startswith(part.argv[0] + "=") for word in around):
        return part
    why = f"{part.argv[0]} is an alias, which can change how the rest of the text is read."
    reason = Reason(rule="shell.alias", risk=Risk.UNKNOWN, text=why, span=part.span)
    return replace(
        part, effects=(part.effects - {Risk.SAFE}) | {Risk.UNKNOWN}, reasons=(*part.reasons, reason)
    )


def _unfinished() -> Part:
    """A part that was being read when the limit was met. It is unknown, and keeps its place in the numbering."""
    finding = Finding()
    finding.add(Risk.UNKNOWN, "text.too_deep", "It was not read to its end.")
    return Part(kind=PartKind.WHOLE, effects=frozenset(finding.effects), reasons=tuple(finding.reasons))


def _shell_text(inquiry: Inquiry, operation: ShellText) -> None:
    if operation.dialect != "bash":
        from broker.classify.dialects import unlike_bash

        reason = unlike_bash(operation.dialect, operation.text)
        if reason is not None:
            finding = Finding()
            finding.add(reason.risk, reason.rule, reason.text)
            inquiry.add(PartKind.WHOLE, finding, None)
    _read_text(inquiry, operation.text, Scope(inquiry.context.cwd))


def _read_text(*inquiry_and_text: Any) -> object:
    """Read a shell text. What that takes is loaded with the first text: most programs start without one."""
    from broker.classify.shell import read_text

    return read_text(*inquiry_and_text)


def _exec(inquiry: Inquiry, operation: Exec) -> None:
    context = inquiry.context
    if not operation.argv and not operation.path:
        finding = Finding()
        finding.add(Risk.UNKNOWN, "program.none", "No program is named.")
        inquiry.add(PartKind.COMMAND, finding, None)
        return
    argv = operation.argv or (operation.path,)
    words = [Word(text, True, False, 0, 0) for text in argv]
    scope = Scope(operation.cwd or context.cwd)
    # The guard bounds a program start in bytes. xargs passes thousands of names, and nothing in them is parsed.
    inquiry.words -= len(words)
    path = _path_by_argv(argv[0], operation)
    index = judge(inquiry, words, scope, span=None, path=path, program=operation.program)
    if path == operation.path:
        _as_it_calls_itself(inquiry, words, path, index)
    if not operation.env:
        return
    program = known_name((path or argv[0]).rsplit("/", 1)[-1])
    finding = Finding()
    for name, value in operation.env:
        if not environment.affects(program, name):
            continue
        why = environment.why_it_matters(name, value, context)
        if why is not None:
            finding.add(Risk.CODE_EXECUTION, f"environment.{name}", f"{name} is set: {why}.")
    if finding.effects:
        part = inquiry.parts[index]
        assert part is not None
        inquiry.parts[index] = Part(
            kind=part.kind,
            argv=part.argv,
            static=part.static,
            effects=(part.effects - {Risk.SAFE}) | finding.effects,
            reasons=part.reasons + tuple(finding.reasons),
            within=part.within,
        )


# Many programs in one file: which of them runs is said by argv[0], whatever the link is called that was started.
_MULTI_CALL = frozenset({"busybox", "busybox.static", "toybox", "coreutils"})


def _path_by_argv(word: str, operation: Exec) -> str:
    """Return the path that this start really means: `exec -a sh /bin/cat` is busybox's shell."""
    if operation.program.rsplit("/", 1)[-1] not in _MULTI_CALL:
        return operation.path
    folder, slash, name = operation.path.rpartition("/")
    meant = word.rsplit("/", 1)[-1].removeprefix("-")
    return f"{folder}{slash}{meant}" if meant and meant != name else operation.path


def _as_it_calls_itself(inquiry: Inquiry, words: list[Word], path: str, index: int) -> None:
    """Add what a start would do if argv[0] said which program it is: hard links tell nobody that a file holds many."""
    meant = words[0].text.rsplit("/", 1)[-1].removeprefix("-")
    if not path or not meant or known_name(meant) == known_name(path.rsplit("/", 1)[-1]):
        return
    if entry_of(known_name(meant)) is None:
        return
    other = Inquiry(inquiry.context, inquiry.read_text, inquiry.judge)
    judge(other, words, Scope(inquiry.context.cwd), span=None, path="/usr/bin/" + meant)
    part = inquiry.parts[index]
    assert part is not None
    more = [reason for added in other.parts if added is not None for reason in added.reasons]
    effects = part.effects.union(*(added.effects for added in other.parts if added is not None))
    worse = effects - {Risk.SAFE}
    inquiry.parts[index] = replace(part, effects=worse or effects, reasons=(*part.reasons, *more))


def _file_change(inquiry: Inquiry, operation: FileChange) -> None:
    context = inquiry.context
    finding = Finding()
    path = operation.path
    whole = operation.action in (FileAction.RENAME, FileAction.LINK, FileAction.SYMLINK) or operation.whole
    match operation.action:
        case FileAction.DELETE:
            paths.judge_delete(finding, path, context.cwd, context, None, whole=operation.whole)
        case FileAction.MKDIR:
            paths.judge_write(finding, path, context.cwd, context, None, folder=True, alone=operation.landing)
        case FileAction.MKNOD:
            paths.judge_write(finding, path, context.cwd, context, None)
            if Risk.LOCAL_WRITE not in finding.effects:
                finding.add(Risk.SYSTEM_WRITE, "path.node", "It makes a device or a pipe.")
        case FileAction.WRITE if operation.new is not None or operation.landing:
            from broker.classify.contents import judge_change  # contents are looked at when something lands

            if not judge_change(inquiry, finding, operation):
                paths.judge_write(finding, path, context.cwd, context, None)
        case _:
            paths.judge_write(finding, path, context.cwd, context, None, whole=whole)
    _judge_rights(finding, operation)
    # Both get a second path that is the new name (FileChange); only a symlink's is text.
    if operation.other and operation.action in (FileAction.RENAME, FileAction.LINK):
        paths.judge_write(finding, operation.other, context.cwd, context, None, whole=True)
    elif operation.other and operation.action is FileAction.SYMLINK:
        _judge_symlink(finding, operation, context)
    inquiry.add(PartKind.FILE, finding, None)


def _judge_rights(finding: Finding, operation: FileChange) -> None:
    """Add what a file's type, rights, owner and attributes do beyond its content.

    INVARIANT: what gives its next user another's rights, or is no plain file, folder or link, never lands
    (test_what_never_lands_is_blocked): in the task's own view it harms nobody (no new privileges, no devices), in
    the real workspace nothing holds it. `blocked`, because a profile that permits persistence must not permit it.
    """
    mode, attribute = operation.mode, operation.attribute
    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
        # On a folder, setgid only says which group new files belong to, and is inherited.
        why = "It makes a program that runs with its owner's or its group's rights, whoever starts it."
        finding.add(Risk.BLOCKED if operation.landing else Risk.SYSTEM_WRITE, "path.sets_id", why)
    if attribute == "security.capability":
        why = "It gives a program capabilities, whoever starts it."
        finding.add(Risk.BLOCKED if operation.landing else Risk.SYSTEM_WRITE, "path.capability", why)
    elif attribute and not attribute.startswith("user."):
        why = f"The attribute {attribute} says who may do what with the file."
        finding.add(Risk.SYSTEM_WRITE, "path.attribute", why)
    if not operation.landing:
        return
    special = mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    if special or operation.action is FileAction.MKNOD:
        why = "A device, a pipe or a socket in the workspace is a door, not a file."
        finding.add(Risk.BLOCKED, "path.special_file", why)
    if operation.action is FileAction.OWNER:
        finding.add(Risk.SYSTEM_WRITE, "path.owner", "It gives the file to another user.")


def _judge_symlink(finding: Finding, operation: FileChange, context: Context) -> None:
    """Add what a new link makes reachable. `other` is its text, seen from the folder that it lies in.

    A link out of the workspace never lands: whatever follows it there reads or writes somebody else's files with
    the rights of whoever runs it. The task's own links may lead to the system's programs and libraries.
    """
    link = paths.resolve(operation.path, context.cwd, context) or operation.path
    target = paths.resolve(operation.other, link.rpartition("/")[0] or "/", context)
    if target is None:
        return
    paths.judge_read(finding, target, None, context, None, whole=True)
    place = paths.place_of(target, context)
    outside = f"A link makes {target} reachable from inside."
    if operation.landing:
        if place is not paths.Place.WORKSPACE or _climbs(operation.other):
            finding.add(Risk.BLOCKED, "path.link_outside", outside)
    elif place is paths.Place.OUTSIDE and not target.startswith(_SYSTEM):
        finding.add(Risk.SYSTEM_WRITE, "path.link_outside", outside)


def _climbs(target: str) -> bool:
    """Whether a link's text goes up again after it went down: from a folder that may be a link, nobody knows where to."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    leading = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return ".." in parts[leading:]


_SYSTEM = ("/usr/", "/opt/", "/bin/", "/lib", "/nix/", "/dev/null", "/proc/self/")


def _connection(inquiry: Inquiry, operation: Connection) -> None:
    finding = Finding()
    address = operation.address
    if operation.protocol == "unix" or address.startswith(("/", "@")):
        if address.startswith("/"):
            paths.judge_read(finding, address, inquiry.context.cwd, inquiry.context, None)
        if not finding.effects:
            finding.add(Risk.NETWORK_EGRESS, "network.unix", f"It connects to the socket {address}.")
    else:
        finding.add(Risk.NETWORK_EGRESS, "network.connect", f"It connects to {address}.")
        if is_inner_address(address):
            finding.add(
                Risk.SYSTEM_WRITE,
                "network.inner_address",
                f"{address} is an address of the machine's own network: services there trust their neighbours.",
            )
    inquiry.add(PartKind.WHOLE, finding, None)


def is_inner_address(address: str) -> bool:
    """Whether an address or host name is private, link-local, loopback or a cloud's metadata service."""
    import ipaddress

    host = address.strip("[]").rstrip(".").lower()
    if host in ("localhost", "metadata", "metadata.google.internal", "host.docker.internal") or host.endswith(
        (".localhost", ".internal", ".local", ".localdomain", ".lan")
    ):
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        number = _old_address(host)
        if number is None:
            return False
        parsed = ipaddress.ip_address(number)
    return not parsed.is_global


def _old_address(host: str) -> int | None:
    """inet_aton's spellings: 127.1, 0x7f000001, 017700000001, 2130706433."""
    pieces = host.split(".")
    if not 1 <= len(pieces) <= 4 or not all(pieces):
        return None
    numbers: list[int] = []
    for piece in pieces:
        try:
            numbers.append(
                int(piece, 16)
                if piece.startswith("0x")
                else int(piece, 8)
                if piece[0] == "0" and len(piece) > 1
                else int(piece)
            )
        except ValueError:
            return None
    total = 0
    for number in numbers[:-1]:
        total = (total << 8) | (number & 0xFF)
    bits = 8 * (5 - len(numbers))
    total = (total << bits) | numbers[-1]
    return total if 0 <= total < 1 << 32 else None


def _delegation(inquiry: Inquiry, operation: Delegation) -> None:
    """Starting a task widens nothing (its envelope is narrower than its parent's): what it runs is judged there."""
    finding = Finding()
    finding.add(Risk.SAFE, "delegation", f"A task with the profile {operation.profile} would start.")
    index = inquiry.open()
    inquiry.close(index, PartKind.WHOLE, finding)
    if operation.argv:
        words = [Word(text, True, False, 0, 0) for text in operation.argv]
        judge(inquiry, words, Scope(inquiry.context.cwd), span=None, within=index)
