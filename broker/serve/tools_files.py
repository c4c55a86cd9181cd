"""The tools that read and change files: each does so with the guard's own client, inside, under the task's rules.

A change is computed here from what was read, and written only if the file is still that one. What a tool could not do
because the task may not is a refusal; what it could not do for another reason says which.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator, Sequence
from typing import Any

from broker.decide.verdict import Allow
from broker.request.operation import FileRead
from broker.serve.tools_inside import Call, Problem, Workplace, run_inside
from broker.serve.tools_patch import DoesNotApply, patched, replaced
from broker.serve.tools_writes import Leave, Wanted, agreed, leave_to_write, wanted
from broker.task.outcome import Capture
from broker.task.task import CLIENT
from broker.values import dataclass

READ_SECONDS = 60.0
MOST_READ = 256 * 1024  # bytes of one read_file
MOST_PATCHED = 1 << 20  # bytes of a file that is patched
MOST_BATCH = 4 << 20  # bytes of all files of one batch_patch

# Exit codes of the client (guard/PROTOCOL.md).
_MISSING, _CHANGED, _REFUSED = 2, 3, 13


class _Bytes:
    """Takes what the client prints; the client itself was told how much to print at most."""

    def __init__(self) -> None:
        self.data = bytearray()

    def __call__(self, data: bytes) -> None:
        self.data += data


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What was read of a file. `version` is size, time and number of the file then: another one is another file."""

    path: str
    size: int
    version: str
    mode: str
    data: bytes


def read(here: Workplace, call: Call, path: str, *, offset: int = 0, length: int) -> Contents | Problem:
    """Read a piece of a file, inside."""
    allowed = here.permit("read_file", FileRead(path=path))
    if isinstance(allowed, Problem):
        return allowed
    words = ("read", "--", path, str(offset), str(length))
    printed = _client(here, call, allowed, words, tool="read_file")
    if isinstance(printed, Problem):
        return printed
    line, _, data = printed.partition(b"\n")
    size, modified, inode, mode = line.decode("ascii").split()
    return Contents(path=path, size=int(size), version=f"{size} {modified} {inode}", mode=mode, data=data)


def write(
    here: Workplace, call: Call, allowed: Allow, path: str, content: bytes, *, tool: str, parents: bool = False,
    new: bool = False, version: str = "", agreed: bool = False,
) -> Problem | None:  # fmt: skip
    """Replace a file, inside, at once or not at all. `version`: only while it is still that one; `new`: only if none is there.

    `agreed`: the operator has agreed to this content, so the gate does not ask about it.
    """
    options = [*(["--parents"] if parents else []), *(["--new"] if new else []), *(["--if", version] if version else [])]
    pieces = _pieces(content)
    done = _client(
        here, call, allowed, ("write", *options, "--", path), tool=tool, stdin=lambda: next(pieces, b""), agreed=path if agreed else ""
    )
    return done if isinstance(done, Problem) else None


def _pieces(content: bytes) -> Iterator[bytes]:
    for at in range(0, len(content), 65536):
        yield content[at : at + 65536]


def _client(
    here: Workplace, call: Call, allowed: Allow, words: tuple[str, ...], *, tool: str, stdin: Any = -1, agreed: str = ""
) -> bytes | Problem:
    """Run the client, and return what it printed. Its exit code says what went wrong."""
    out, err, since = _Bytes(), Capture(2048), here.denied_since()
    ended = run_inside(
        here, call, allowed, (CLIENT, "file", *words), stdin=stdin, stdout=out, stderr=err, seconds=READ_SECONDS + here.patience,
        agreed=agreed,
    )
    if isinstance(ended, Problem):
        return ended
    if ended.exit_code == 0:
        return bytes(out.data)
    said = _said(err.text())
    if ended.exit_code == _REFUSED:
        # The gate said no to the file itself, after the question was judged: its reason is the last denial.
        rows = [row for row in since() if row["tool"] in ("file", "exec") and "of" not in row]
        return here.refusal(rows[-1]) if rows else Problem(code="not_permitted", message=said)
    code = {_MISSING: "not_found", _CHANGED: "changed"}.get(ended.exit_code, "failed")
    return Problem(code=code, message=said)


def _said(text: str) -> str:
    lines = [line.removeprefix("broker: ") for line in text.splitlines() if line]
    return lines[-1] if lines else "the file could not be read or written"


# The tools


def read_file(here: Workplace, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Return a piece of a file: as text if it is one, else as base64."""
    offset, length = args.get("offset", 0), args.get("length", 65536)
    found = read(here, call, here.path(args["path"]), offset=offset, length=length)
    if isinstance(found, Problem):
        return found
    result: dict[str, Any] = {"path": found.path, "size": found.size, "version": found.version, "mode": found.mode, "offset": offset}
    decoder = codecs.getincrementaldecoder("utf-8")()
    more = offset + len(found.data) < found.size
    try:
        text = decoder.decode(found.data, final=not more)
        used = len(found.data) - len(decoder.getstate()[0])  # half of a character is for the next piece
        if more and not used:
            raise UnicodeError  # it asked for less than a character
        result["text"] = text
    except UnicodeError:
        used = len(found.data)
        result["base64"] = base64.b64encode(found.data).decode("ascii")
    result["bytes"] = used
    if offset + used < found.size:
        result["next_offset"] = offset + used
    return result


def write_file(here: Workplace, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Write a whole file."""
    path = here.path(args["path"])
    if ("content" in args) == ("base64" in args):
        return Problem(code="invalid", message="give the content of the file, as content or as base64")
    if args.get("version") and args.get("create_only"):
        return Problem(code="invalid", message="version is of a file that is there, and create_only of one that is not: give one")
    try:
        content = args["content"].encode() if "content" in args else base64.b64decode(args["base64"], validate=True)
    except ValueError:
        return Problem(code="invalid", message="base64: it is no base64")
    if (version := args.get("version", "")) and not _is_version(version):
        return Problem(code="invalid", message="version: give it as read_file returned it")
    leave = leave_to_write(here, call, "write_file", path, content)
    if isinstance(leave, Problem):
        return leave
    if leave.agreed and version and version != leave.version:
        return Problem(code="changed", message=f"{path}: it is not the version that it was")
    failed = write(
        here, call, leave.allowed, leave.path, content, tool="write_file", parents=args.get("parents", True),
        new=args.get("create_only", False) or (leave.agreed and not leave.version), version=version or leave.version, agreed=leave.agreed,
    )  # fmt: skip
    return failed or {"path": path, "bytes": len(content)}


def _is_version(text: str) -> bool:
    words = text.split(" ")
    return len(words) == 3 and all(word.isascii() and word.isdigit() for word in words)


def patch(here: Workplace, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Change one file."""
    done = _patch_all(here, call, [args], tool="patch")
    return done if isinstance(done, Problem) else done[0]


def batch_patch(here: Workplace, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
    """Change several files, or none."""
    done = _patch_all(here, call, args["edits"], tool="batch_patch")
    return done if isinstance(done, Problem) else {"files": done}


@dataclass(slots=True)
class _File:
    """A file of a batch: what it was, what it is to be, and the version that we made of it."""

    was: Contents
    now: bytes
    leave: Leave | Wanted
    edits: int = 0
    written: str = ""


def _patch_all(here: Workplace, call: Call, edits: Sequence[dict[str, Any]], *, tool: str) -> list[dict[str, Any]] | Problem:
    """Compute everything, then write everything; what was written is put back if a later write does not succeed."""
    files: dict[str, _File] = {}
    for number, edit in enumerate(edits):
        at = f"edits[{number}]: " if tool == "batch_patch" else ""
        path = here.path(edit["path"])
        if path not in files:
            opened = _open(here, call, path, tool=tool, room=MOST_BATCH - sum(len(file.was.data) for file in files.values()))
            if isinstance(opened, Problem):
                return _placed(opened, at)
            files[path] = opened
        file = files[path]
        try:
            file.now = _edited(file.now, edit)
        except DoesNotApply as error:
            return Problem(code="no_match", message=f"{at}{error}", facts={"path": path})
        if len(file.now) > MOST_PATCHED:
            return Problem(code="too_large", message=f"{at}the file would have over {MOST_PATCHED} bytes", facts={"path": path})
        file.edits += 1
    for file in files.values():
        if isinstance(file.leave, Wanted):
            leave = agreed(here, call, tool, file.leave, file.now, file.was)
            if isinstance(leave, Problem):
                return leave
            file.leave = leave
    failed = _write_all(here, call, list(files.values()), tool=tool)
    return failed or [{"path": path, "edits": file.edits, "bytes": len(file.now)} for path, file in files.items()]


def _open(here: Workplace, call: Call, path: str, *, tool: str, room: int) -> _File | Problem:
    """Read a file whole, and ask whether it may be changed, before anything is."""
    most = min(MOST_PATCHED, room)
    found = read(here, call, path, length=most)
    if isinstance(found, Problem):
        return found
    if found.size > most:
        return Problem(code="too_large", message=f"{path} has {found.size} bytes, and at most {most} are patched here")
    leave = wanted(here, tool, path)
    return leave if isinstance(leave, Problem) else _File(found, found.data, leave)


def _placed(problem: Problem, at: str) -> Problem:
    return Problem(code=problem.code, message=at + problem.message, facts=problem.facts)


def _edited(content: bytes, edit: dict[str, Any]) -> bytes:
    if ("diff" in edit) == ("old_string" in edit):
        raise DoesNotApply("give either old_string and new_string, or a diff")
    if "diff" in edit:
        return patched(content, edit["diff"].encode())
    return replaced(content, edit["old_string"].encode(), edit.get("new_string", "").encode(), edit.get("count", 1))


def _write_all(here: Workplace, call: Call, files: list[_File], *, tool: str) -> Problem | None:
    for number, file in enumerate(files):
        failed = _write(here, call, file, file.now, tool=tool, version=file.was.version)
        if failed is None and number + 1 < len(files):  # what may have to be put back must be told from what others wrote
            found = read(here, call, file.was.path, length=0)
            failed = found if isinstance(found, Problem) else None
            file.written = "" if isinstance(found, Problem) else found.version
        if failed is not None:
            back = [_put_back(here, done, tool=tool) for done in files[: number + 1] if done.written]
            lost = [problem for problem in back if problem]
            facts = {**failed.facts, "path": file.was.path}
            if tool == "batch_patch":
                facts |= {"put_back": len(back) - len(lost), "not_put_back": lost}
            return Problem(code=failed.code, message=failed.message, facts=facts)
    return None


def _write(here: Workplace, call: Call, file: _File, content: bytes, *, tool: str, version: str) -> Problem | None:
    leave = file.leave
    assert isinstance(leave, Leave)
    return write(here, call, leave.allowed, leave.path, content, tool=tool, version=version, agreed=leave.agreed)


def _put_back(here: Workplace, file: _File, *, tool: str) -> str:
    """Write what was there before, unless somebody else has changed it since. Returns the path if that failed."""
    # A call of its own: also when the one that it belongs to was cancelled.
    failed = _write(here, Call(), file, file.was.data, tool=tool, version=file.written)
    return file.was.path if failed is not None else ""
