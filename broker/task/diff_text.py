"""A change as text: what git would print, so that `git apply` and `patch` can read it.

In: a layer's change, and the two files. Out: bytes of a unified diff; for what is not text, one line that says so.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.enforce.changes import Change
    from broker.enforce.layer import Layer

LARGEST = 4 << 20  # bytes of a file that is compared by lines
MOST_WORK = 100_000_000  # steps of a comparison: some ten seconds
CONTEXT = 3


class Diff:
    """One change, ready to be shown. `added` and `removed` count lines; None: not compared by lines."""

    def __init__(self, layer: Layer, change: Change) -> None:
        """Read both files."""
        self.change = change
        self.path = os.fsencode(change.path)
        old = None if change.old is None else _content(layer.manifest.parts[change.part][0], change.path, change.old.mode)
        upper = layer.upper(change.part)
        new = None if change.new is None else _content(upper, change.path, change.new.mode)
        self.old, self.new = old, new
        self.lines: list[bytes] = []
        self.added: int | None = None
        self.removed: int | None = None
        self.note = b""
        if is_text(old) and is_text(new):
            self.lines, self.added, self.removed = hunks(old or b"", new or b"")
        elif old is not None or new is not None:
            self.note = b"Binary files differ: " + self._sizes()

    def _sizes(self) -> bytes:
        sizes = [f"{facts.size} bytes" if facts else "nothing" for facts in (self.change.old, self.change.new)]
        return " before, ".join(sizes).encode() + b" after\n"

    def head(self) -> list[bytes]:
        """Return the lines in front of the hunks."""
        old, new = self.change.old, self.change.new
        before, after = _name(b"a/" + self.path), _name(b"b/" + self.path)
        lines = [b"diff --git %b %b\n" % (before, after)]
        if old is None and new is not None:
            lines.append(b"new file mode %o\n" % _git_mode(new.mode))
        elif new is None and old is not None:
            lines.append(b"deleted file mode %o\n" % _git_mode(old.mode))
        elif old is not None and new is not None and old.mode != new.mode:
            lines += [b"old mode %o\n" % _git_mode(old.mode), b"new mode %o\n" % _git_mode(new.mode)]
        if self.note:
            lines.append(self.note)
        elif self.lines:
            end = b"\t\n" if b" " in self.path else b"\n"  # a space could begin a date: git ends such a name with a tab
            lines.append(b"--- /dev/null\n" if old is None else b"--- %b%b" % (before, end))
            lines.append(b"+++ /dev/null\n" if new is None else b"+++ %b%b" % (after, end))
        return lines


def hunks(before: bytes, after: bytes, most_work: int = MOST_WORK) -> tuple[list[bytes], int, int]:
    """Compare two texts. Returns the lines of the hunks, and how many were added and removed.

    Above `most_work` steps it is no short diff, but a true one.
    """
    old, new = _lines(before), _lines(after)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    import difflib

    first = max(0, start - CONTEXT)
    last = max(0, end - CONTEXT)
    a, b = old[first : len(old) - last], new[first : len(new) - last]
    groups: Iterable[Sequence[tuple[str, int, int, int, int]]]
    if _work(a, b) <= most_work:
        groups = difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT)
    else:
        groups = _all_of_it(len(a), len(b), start - first, end - last)
    lines: list[bytes] = []
    added = removed = 0
    for group in groups:
        lines.append(_range_line(group, first))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [_line(b" ", line) for line in a[i1:i2]]
                continue
            removed += i2 - i1
            added += j2 - j1
            lines += [_line(b"-", line) for line in a[i1:i2]]
            lines += [_line(b"+", line) for line in b[j1:j2]]
    return lines, added, removed


def stat_lines(diffs: Iterable[Diff], width: int = 60) -> list[bytes]:
    """Return one line for each change, and a sum, as `git diff --stat` does."""
    rows = list(diffs)
    longest = min(width, max((len(_name(diff.path)) for diff in rows), default=0))
    most = max((diff.added + diff.removed for diff in rows if diff.added is not None and diff.removed is not None), default=1)
    lines = []
    for diff in rows:
        shown = _name(diff.path)
        name = shown if len(shown) <= longest else b"..." + shown[3 - longest :]
        if diff.added is None or diff.removed is None:
            what = diff.change.kind.encode() if not diff.note else b"Bin"
        else:
            scale = min(1.0, 40 / max(1, most))
            what = b"%d %b" % (diff.added + diff.removed, _signs(diff.added, diff.removed, scale)) if diff.added or diff.removed else diff.change.kind.encode()
        lines.append(b" %b | %b\n" % (name.ljust(longest), what))
    added = sum(diff.added or 0 for diff in rows)
    removed = sum(diff.removed or 0 for diff in rows)
    files = f" {len(rows)} path{'s' if len(rows) != 1 else ''} changed, {added} lines added, {removed} removed\n"
    return [*lines, files.encode()]


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def _name(path: bytes) -> bytes:
    """Return a path as git writes it in a patch: one that holds a quote or a control character in quotes.

    A name with a newline in it would otherwise go on as a patch of its own, of any file (git's quote.c).
    """
    if not any(byte < 32 or byte in (34, 92, 127) for byte in path):
        return path
    quoted = (_ESCAPES.get(byte) or (b"%c" % byte if 32 <= byte != 127 else b"\\%03o" % byte) for byte in path)
    return b'"%b"' % b"".join(quoted)


def _lines(content: bytes) -> list[bytes]:
    """Split at newlines, and nowhere else: to a patch a carriage return is a character like any other."""
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + [last for last in [content.rpartition(b"\n")[2]] if last]


def _work(old: list[bytes], new: list[bytes]) -> int:
    """Say how many steps it takes to compare these, at the worst: a search among all pairs of equal lines for each line."""
    from collections import Counter

    in_new = Counter(new)
    pairs = sum(count * in_new[line] for line, count in Counter(old).items())
    return min(len(old), len(new)) * (pairs // 10 + len(old) + len(new))


def _all_of_it(old: int, new: int, before: int, after: int) -> list[list[tuple[str, int, int, int, int]]]:
    """Return the change of everything between what both begin and end with: no short diff, but a true one."""
    return [[
        ("equal", 0, before, 0, before), ("replace", before, old - after, before, new - after),
        ("equal", old - after, old, new - after, new),
    ]]  # fmt: skip


def _signs(added: int, removed: int, scale: float) -> bytes:
    return b"+" * round(added * scale + 0.49 * bool(added)) + b"-" * round(removed * scale + 0.49 * bool(removed))


def _content(root: str, path: str, mode: int) -> bytes | None:
    """Return a file's bytes, or a link's text; None for what has none, or too many."""
    place = os.path.join(os.fsencode(root), os.fsencode(path))
    try:
        if stat.S_ISLNK(mode):
            return os.readlink(place)
        if not stat.S_ISREG(mode):
            return None
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError:
        return b"\0"  # it is not what it was: shown as not text
    return content if len(content) <= LARGEST else b"\0"


def is_text(content: bytes | None) -> bool:
    """Whether it is compared by lines, as git has it: nothing that holds a NUL near its beginning. None, no file, is."""
    return content is None or b"\0" not in content[:8192]


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def _range_line(group: Sequence[tuple[str, int, int, int, int]], first: int) -> bytes:
    def shown(start: int, stop: int) -> str:
        length = stop - start
        begin = start + first + (1 if length else 0)
        return f"{begin}" if length == 1 else f"{begin},{length}"

    return f"@@ -{shown(group[0][1], group[-1][2])} +{shown(group[0][3], group[-1][4])} @@\n".encode()


def _git_mode(mode: int) -> int:
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & 0o100 else 0o100644
