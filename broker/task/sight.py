"""What a question is about, as it is in the sandbox now: the program's file, the files that its words name, who asks.

In: an operation, the process that wants it, and where the sandbox's root is found. Out: a Sight, taken once when the operator is
asked and once when he has answered: an approval is for what he was asked about. Everything is reached below that root, links
lead nowhere else, and nothing but regular files is opened: what lies there is the task's, and may be anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from broker.enforce.beneath import open_inside, path_inside
from broker.request.operation import Exec, Operation
from broker.sha256 import sha256
from broker.task.place import program_of
from broker.values import dataclass

MOST_PROGRAM = 512 << 20  # bytes of a program; the digest of a larger one is not known
MOST_NAMED = 16 << 20  # bytes of a file that a word names; of a larger one its size, its times and its number are compared
MOST_READ = 64 << 20  # bytes of all of these
MOST_WORDS = 4096  # different ones, and parts of them, that are looked up: a tenth of a second
MOST_LETTERS = 4096  # of one
MOST_ABOVE = 8  # processes
MOST_INTERPRETERS = 6  # one more than the kernel follows
SHEBANG = 256  # bytes of a script in which its interpreter is named (BINPRM_BUF_SIZE)
_OF_A_PROCESS = ("/proc/", "/dev/fd/")  # names that lead elsewhere for us than for the process that uses them
# What a program takes apart to find a path: `--file=x`, `@x`, a:b; and in the text of a shell quotes, redirections and brackets.
_PIECES = re.compile(r"[=:,;\s\"'`()<>|&{}$]+@?|@")
_ATTACHED = re.compile(r"-[A-Za-z]")  # an option of one letter, with its value in the same word: -fFILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who wants it: the process by its number inside (0: nobody's), and the file that it would start, as the guard saw both."""

    pid: int = 0
    dev: int = 0
    ino: int = 0
    shebang: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A file or folder that a word names. `word` counts from 0, the program's own; `to` is where links lead, '' if there are none."""

    word: int
    path: str
    to: str
    kind: str
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as a channel gets it."""
        told = {"word": self.word, "path": self.path, "kind": self.kind}
        return told | {name: value for name, value in (("to", self.to), ("sha256", self.sha256)) if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What was seen. `bound` stands for all that an approval hangs on; `known`: all of that could be read.

    `sha256` is the program's, '' where that is not known. `wrong` says what is not as the guard saw it, '' if nothing is.
    `above` are the programs of the asking process and of those above it, nearest first.
    """

    bound: str = ""
    known: bool = False
    sha256: str = ""
    wrong: str = ""
    named: tuple[Named, ...] = ()
    above: tuple[str, ...] = ()
    unseen: int = 0  # words and parts of them that were not looked up, because there are too many

    @property
    def content(self) -> str:
        """What is kept of it for the session; '': nothing can be."""
        return self.bound if self.known else ""


NOTHING = Sight()


@dataclass(slots=True)
class _Seen:
    """What has been gathered so far."""

    root: int
    facts: list[Any] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    known: bool = True
    wrong: str = ""
    room: int = MOST_READ
    unseen: int = 0


def look(place: str, operation: Operation, asker: Asker) -> Sight:
    """Look at what an operation would start. `place` is where the sandbox's root is found; '' where there is none."""
    if not place or not isinstance(operation, Exec):
        return NOTHING
    try:
        root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Sight(wrong="the process does not let itself be looked at")  # what nobody can look at, nobody agrees to
    try:
        seen = _Seen(root)
        program = _program(seen, operation, asker)
        _folder(seen, operation, asker, place)
        _words(seen, operation)
    finally:
        os.close(root)
    bound = sha256(json.dumps(seen.facts).encode("ascii")).hexdigest()
    return Sight(
        bound=bound, known=seen.known and bool(program), sha256=program, wrong=seen.wrong, named=tuple(seen.named),
        above=tuple(_above(place, asker.pid)), unseen=seen.unseen,
    )  # fmt: skip


def _program(seen: _Seen, operation: Exec, asker: Asker) -> str:
    """Return the program's digest. What starts must be the very file that the guard saw: it compares that after the start."""
    digest = ""
    with _opened(seen.root, operation.program) as found:
        if found is not None:
            digest = found.digest(MOST_PROGRAM)
            if asker.ino and found.identity != (asker.dev, asker.ino):
                seen.wrong = "the program's file was replaced"
    # The kernel will go by the name once more, and of a script it is the interpreter that the guard compares after the start.
    with _opened(seen.root, operation.path or operation.program) as found:
        known = found is not None or operation.path.startswith(_OF_A_PROCESS)
        if asker.ino and not seen.wrong and not (known and (found is None or found.identity == (asker.dev, asker.ino))):
            seen.wrong = "its name leads to another program"
    seen.facts.append(digest)
    _interpreters(seen, operation, asker.shebang)
    return digest


def _interpreters(seen: _Seen, operation: Exec, line: str) -> None:
    """An interpreter may be a script itself: the kernel goes on to that one's, so many times (linux/fs/exec.c)."""
    for _ in range(MOST_INTERPRETERS):
        words = line.removeprefix("#!").split(None, 1)
        if not words:
            return
        with _opened(seen.root, posixpath.join(operation.cwd, words[0])) as found:
            interpreter, after = ("", "") if found is None else (found.digest(MOST_PROGRAM), found.shebang())
        seen.facts.append([line, interpreter])
        seen.known &= bool(interpreter)
        for piece in _parts("".join(words[1:]).strip()):  # what the line gives it, which may be a file that it runs
            _word(seen, operation, len(operation.argv), piece, whole=False)
        line = after


def _folder(seen: _Seen, operation: Exec, asker: Asker, place: str) -> None:
    """The folder that the process is in is held by it, and its path may lead elsewhere by now."""
    with _opened(seen.root, operation.cwd) as found:
        identity = None if found is None else found.identity
    seen.facts.append(identity)
    if not asker.pid:
        return
    try:
        own = os.stat(f"{place}/proc/{asker.pid}/cwd")
    except PermissionError:  # of its own doing (PR_SET_DUMPABLE in prctl(2)): where it really is, nobody could say
        seen.wrong = seen.wrong or "the process does not let itself be looked at"
    except OSError:
        pass  # it is gone: then its question is withdrawn
    else:
        if (own.st_dev, own.st_ino) != identity:
            seen.wrong = seen.wrong or "the folder that it is in was replaced"


def _words(seen: _Seen, operation: Exec) -> None:
    """Look up what the words of the command name, and what the values of variables do that change what runs."""
    looked = set[str]()
    for number, word in enumerate((*operation.argv, *(value for _, value in operation.env))):
        for piece in _parts(word) if number else ():
            if piece in looked or len(piece) > MOST_LETTERS or "\0" in piece:
                continue
            if len(looked) >= MOST_WORDS:
                seen.known = False
                seen.unseen += 1
                continue
            looked.add(piece)
            _word(seen, operation, number, piece, whole=piece == word)


def _parts(word: str) -> Iterator[str]:
    """Yield a word, and what of it may name a path by itself."""
    for piece in dict.fromkeys((word, *_PIECES.split(word))):
        if piece:
            yield piece
        if len(piece) > 2 and _ATTACHED.match(piece):
            yield piece[2:].removeprefix("@")


def _word(seen: _Seen, operation: Exec, number: int, piece: str, *, whole: bool) -> None:
    # Not normalised: behind a link, `..` is the folder that the link leads to.
    with _opened(seen.root, posixpath.join(operation.cwd, piece)) as found:
        if found is None:
            return
        digest = found.digest(min(MOST_NAMED, seen.room))
        seen.room -= found.facts.st_size if digest else 0
        seen.facts.append([number, piece, found.real, found.kind, digest or found.as_it_is])
        if number < len(operation.argv) and (whole or found.kind == "file"):
            path = posixpath.normpath(posixpath.join(operation.cwd, piece))
            to = found.real if found.real != path else ""
            seen.named.append(Named(word=number, path=path, to=to, kind=found.kind, sha256=digest))


@dataclass(frozen=True, slots=True)
class _Found:
    """Something that lies in the sandbox, open as a path only."""

    root: int
    descriptor: int
    facts: os.stat_result

    @property
    def identity(self) -> tuple[int, int]:
        return self.facts.st_dev, self.facts.st_ino

    @property
    def kind(self) -> str:
        return "file" if stat.S_ISREG(self.facts.st_mode) else "folder" if stat.S_ISDIR(self.facts.st_mode) else "other"

    @property
    def as_it_is(self) -> list[int]:
        """What tells it from another one, and a file from what it was, where nobody reads it."""
        content = (self.facts.st_size, self.facts.st_mtime_ns, self.facts.st_ctime_ns) if self.kind == "file" else ()
        return [*self.identity, *content]

    @property
    def real(self) -> str:
        """Its path inside, links followed."""
        return path_inside(self.root, self.descriptor)

    def shebang(self) -> str:
        """Return the line that names a script's interpreter; '' for anything else."""
        if self.kind != "file":
            return ""
        try:
            descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        with open(descriptor, "rb", buffering=0) as file:
            start = file.read(SHEBANG)
        return os.fsdecode(start.split(b"\n", 1)[0]) if start.startswith(b"#!") else ""

    def digest(self, most: int) -> str:
        """Return the digest of a regular file of at most so many bytes; '' for anything else."""
        if self.kind != "file" or self.facts.st_size > most:
            return ""
        found = hashlib.sha256()
        try:
            descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb", buffering=0) as file:
                while data := file.read(1 << 20):
                    found.update(data)
                    most -= len(data)
                    if most < 0:  # it grows while it is read
                        return ""
        except OSError:
            return ""
        return found.hexdigest()


@contextlib.contextmanager
def _opened(root: int, path: str) -> Iterator[_Found | None]:
    """Have what lies at a path; None: nothing does, or nobody may look."""
    try:
        descriptor = open_inside(root, path)
    except OSError:
        yield None
        return
    try:
        yield _Found(root, descriptor, os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _above(place: str, pid: int) -> Iterator[str]:
    """Yield the programs of a process and of those above it, as far as the sandbox goes. Their files' names: no text of theirs."""
    for _ in range(MOST_ABOVE):
        if pid <= 1:
            return
        if not (program := program_of(place, pid)):
            return
        yield program
        try:
            pid = parent_of(place, pid)[0]
        except OSError:
            return


def parent_of(place: str, pid: int) -> tuple[int, int]:
    """Return a process's parent, and when it was started, in ticks: no other process has both number and time. Raises OSError."""
    with open(f"{place}/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()  # the name before it may hold anything (proc(5))
    return int(words[1]), int(words[19])
