"""Step 3: the words of a verdict. In: operations, parts, profiles. Out: text that is safe to print.

What an untrusted process wrote never reaches a reader raw: control characters, direction overrides and
bytes that are not UTF-8 are escaped, and long text is shortened.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Sequence
from typing import assert_never

from broker.classify.risk import Part, PartKind, Risk
from broker.decide.profile import Profile
from broker.decide.unrecognised import merely_unrecognised
from broker.request.operation import Connection, Delegation, Exec, FileChange, FileRead, Operation, ShellText

LONGEST = 200
_ALIKE = 0.75

HINTS = {
    Risk.SAFE: "Ask the operator for a profile that permits this.",
    Risk.LOCAL_WRITE: "Change nothing: this task only reads. Report the change that you would make.",
    Risk.CODE_EXECUTION: "Use plain commands that read or edit files. Only the operator can list more.",
    Risk.INSTALL: "Use what is installed, or tell the operator which packages the image should have.",
    Risk.NETWORK_EGRESS: "There is no network. Work with what is in the workspace, or report what you need.",
    Risk.SYSTEM_WRITE: "Keep to the workspace and to $TMPDIR.",
    Risk.PERSISTENCE: "Leave that place alone, and describe the change in your report for the operator.",
    Risk.DESTRUCTIVE: "Do it without destroying anything, or leave it to the operator.",
    Risk.UNKNOWN: "Write the command out plainly: a known program, no computed names, one step at a time.",
    Risk.BLOCKED: "Nothing permits this. Do the task another way.",
}


def escape(text: str) -> str:
    """Return `text` with everything that a terminal might act on, or that is not UTF-8, escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def _escape_char(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


# Letters and signs that look like nothing at all, though they count as visible.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\U00013441\U00013442\U0001d159")
_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))


def exact(text: str) -> str:
    r"""Return the text as it can be read letter by letter: \u0301 for what joins the letter before it, \u05d0 for what turns the line."""
    text = escape(text)
    return text if text.isascii() else "".join(char if stands_alone(char) and not _turns(char) else _escape_char(char) for char in text)


def stands_alone(char: str) -> bool:
    """Whether a character is seen, at a place of its own."""
    import unicodedata

    return char.isprintable() and char not in _BLANK and unicodedata.category(char)[0] != "M"


def _turns(char: str) -> bool:
    import unicodedata

    return unicodedata.bidirectional(char) in _RIGHT_TO_LEFT


def only_ascii(text: str) -> str:
    """Return a text for a reader who has nothing but ASCII."""
    return text if text.isascii() else "".join(char if char.isascii() else _escape_char(char) for char in text)


def written_out(text: str) -> str:
    """Return every character of a text by its number."""
    return "".join(map(_escape_char, text))


def shorten(text: str, longest: int = LONGEST) -> str:
    """Return `text` escaped and cut to about `longest` characters."""
    shown = escape(text[: longest + 1])
    return shown if len(text) <= longest and len(shown) <= longest else shown[: longest - 1] + "…"


def command_line(argv: Sequence[str]) -> str:
    """Return an argv as a command line, escaped and shortened."""
    if not argv:
        return "(no arguments)"
    words, length = [], 0
    for word in argv:
        words.append(_quote(word[: LONGEST + 1]))
        length += len(words[-1]) + 1
        if length > LONGEST:
            break
    return shorten(" ".join(words))


def _quote(word: str) -> str:
    # `make FOO=1` reads better than `make 'FOO=1'`, and says the same.
    bare = word.replace("=", "").replace("\u2026", "")
    return word if bare and shlex.quote(bare) == bare else shlex.quote(word)


def describe(operation: Operation) -> str:
    """Return the operation in words, as a denial shows it."""
    match operation:
        case ShellText():
            return shorten(operation.text.strip())
        case Exec():
            shown = _shell_line(operation.argv) or command_line(operation.argv)
            program = posixpath.basename(operation.path)
            named = posixpath.basename(operation.argv[0]) if operation.argv else ""
            # A program may call itself anything: show what would really start.
            return shown if not program or program == named else f"{shorten(operation.path)} (as {shown})"
        case FileChange():
            other = f" -> {shorten(operation.other)}" if operation.other else ""
            return f"{operation.action} {shorten(operation.path)}{other}"
        case FileRead():
            return f"read {shorten(operation.path)}"
        case Connection():
            port = f":{operation.port}" if operation.port else ""
            return f"connect {operation.protocol} {shorten(operation.address)}{port}"
        case Delegation():
            return f"delegate to profile {shorten(operation.profile)}: {command_line(operation.argv)}"
        case _:
            assert_never(operation)


def _shell_line(argv: Sequence[str]) -> str:
    """Return `bash -c ‹text›` for a shell that is given a text: quotes within quotes are hard to read."""
    if len(argv) != 3 or not argv[1].startswith("-") or not argv[1].endswith("c") or "'" not in argv[2]:
        return ""
    return shorten(f"{posixpath.basename(argv[0])} {argv[1]} ‹{escape(argv[2])}›")


def listed(words: Iterable[str], last: str = "and") -> str:
    """Return `a, b and c`."""
    known = list(words)
    if len(known) < 2:
        return "".join(known) or "nothing"
    return f"{', '.join(known[:-1])} {last} {known[-1]}"


def classes(effects: Iterable[Risk]) -> str:
    """Return the classes' names, mildest first."""
    return listed(risk.label for risk in sorted(effects))


def similar_entries(argv: Sequence[str], profile: Profile, count: int = 3) -> tuple[str, ...]:
    """Return the allowlisted command lines that resemble `argv`, the likeliest first."""
    if not argv or not profile.allowlist:
        return ()
    import difflib  # slow to import, and wanted for refusals only

    wanted = command_line(argv)
    program = posixpath.basename(argv[0])
    scored = []
    for entry in profile.allowlist:
        same_program = posixpath.basename(entry.argv[0]) == program
        matcher = difflib.SequenceMatcher(None, wanted, entry.text[:LONGEST])
        if not same_program and matcher.real_quick_ratio() < _ALIKE:  # an upper bound, and cheap
            continue
        ratio = matcher.ratio()
        if same_program or ratio >= _ALIKE:
            scored.append((not same_program, -ratio, entry.text))
    return tuple(text for _, _, text in sorted(scored)[:count])


def hint_for(part: Part | None, risk: Risk, profile: Profile, *, grant_entry: str = "") -> str:
    """Return what to do instead of a refused part whose worst refused class is `risk`."""
    if risk in {Risk.BLOCKED, Risk.PERSISTENCE}:
        return HINTS[risk]
    if grant_entry:
        return (
            f"{HINTS[risk]} If the descendants of `{shorten(grant_entry)}` need it, the operator can add "
            f'effects = ["{risk.label}"] to that entry.'
            if risk is not Risk.UNKNOWN
            else HINTS[risk]
        )
    if part is None or part.kind is not PartKind.COMMAND or not part.static:
        return HINTS[risk]
    near = [f"`{shorten(text)}`" for text in similar_entries(part.argv, profile)]
    if near:
        return f"Entries are exact. Profile {profile.name} allows {listed(near)}."
    if risk is Risk.CODE_EXECUTION or (risk is Risk.UNKNOWN and merely_unrecognised(part)):
        line = command_line(part.argv)
        return f"Ask the operator to add `{line}` to the allowlist of profile {profile.name}."
    return HINTS[risk]
