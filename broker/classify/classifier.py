"""Step 2: operation + context -> Assessment. Pure: same input, version and tables, same answer, for ever."""

from __future__ import annotations

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
        parts = tuple([_if_no_alias(part, inquiry.aliases) for part in parts])
    if not parts:
        parts = (Part(kind=PartKind.WHOLE, effects=frozenset((Risk.SAFE,)), reasons=()),)
    return Assessment(parts=parts, classifier=CLASSIFIER_VERSION, tables=tables_digest())


def _if_no_alias(part: Part, aliases: set[str]) -> Part:
    """A command called like an alias of the text means another one, or ends inside a quotation mark of it."""
    if part.kind is not PartKind.COMMAND or not part.argv or part.argv[0] not in aliases:
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
    whole = operation.action in (FileAction.RENAME, FileAction.LINK, FileAction.SYMLINK)
    match operation.action:
        case FileAction.DELETE:
            paths.judge_delete(finding, operation.path, context.cwd, context, None, whole=False)
        case FileAction.MKDIR:
            paths.judge_write(finding, operation.path, context.cwd, context, None, folder=True)
        case FileAction.MKNOD:
            paths.judge_write(finding, operation.path, context.cwd, context, None)
            if Risk.LOCAL_WRITE not in finding.effects:
                finding.add(Risk.SYSTEM_WRITE, "path.node", "It makes a device or a pipe.")
        case _:
            paths.judge_write(finding, operation.path, context.cwd, context, None, whole=whole)
    # Both get a second path that is the new name (FileChange); only a symlink's is text.
    if operation.other and operation.action in (FileAction.RENAME, FileAction.LINK):
        paths.judge_write(finding, operation.other, context.cwd, context, None, whole=True)
    elif operation.other and whole:
        folder = operation.path.rsplit("/", 1)[0] or "/"
        target = paths.resolve(operation.other, folder, context)
        if target is not None:
            paths.judge_read(finding, target, None, context, None, whole=True)
            if paths.place_of(target, context) is paths.Place.OUTSIDE and not target.startswith(_SYSTEM):
                finding.add(
                    Risk.SYSTEM_WRITE, "path.link_outside", f"A link makes {target} reachable from inside."
                )
    inquiry.add(PartKind.FILE, finding, None)


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
