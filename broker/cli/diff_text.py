"""A change as text: what git would print, so that `git apply` and `patch` can read it.

In: a layer's change, and the two files. Out: bytes of a unified diff; for what is not text, one line that says so.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.enforce.changes import Change
    from broker.enforce.layer import Layer

LARGEST = 4 << 20  # bytes of a file that is compared by lines
MOST_LINES = 20_000  # lines, after what both begin and end with is left out
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
        if _is_text(old) and _is_text(new):
            self._compare((old or b"").splitlines(keepends=True), (new or b"").splitlines(keepends=True))
        elif old is not None or new is not None:
            self.note = b"Binary files differ: " + self._sizes()

    def _sizes(self) -> bytes:
        sizes = [f"{facts.size} bytes" if facts else "nothing" for facts in (self.change.old, self.change.new)]
        return " before, ".join(sizes).encode() + b" after\n"

    def _compare(self, old: list[bytes], new: list[bytes]) -> None:
        start = 0
        while start < min(len(old), len(new)) and old[start] == new[start]:
            start += 1
        end = 0
        while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
            end += 1
        changed = max(len(old), len(new)) - start - end
        if changed > MOST_LINES:
            self.note = f"Too many lines to compare: {len(old)} before, {len(new)} after\n".encode()
            return
        import difflib

        first = max(0, start - CONTEXT)
        last = max(0, end - CONTEXT)
        a, b = old[first : len(old) - last], new[first : len(new) - last]
        groups = difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT)
        self.added = self.removed = 0
        for group in groups:
            self.lines.append(_range_line(group, first))
            for tag, i1, i2, j1, j2 in group:
                if tag == "equal":
                    self.lines += [_line(b" ", line) for line in a[i1:i2]]
                    continue
                self.removed += i2 - i1
                self.added += j2 - j1
                self.lines += [_line(b"-", line) for line in a[i1:i2]]
                self.lines += [_line(b"+", line) for line in b[j1:j2]]

    def head(self) -> list[bytes]:
        """Return the lines in front of the hunks."""
        old, new = self.change.old, self.change.new
        lines = [b"diff --git a/%b b/%b\n" % (self.path, self.path)]
        if old is None and new is not None:
            lines.append(b"new file mode %o\n" % _git_mode(new.mode))
        elif new is None and old is not None:
            lines.append(b"deleted file mode %o\n" % _git_mode(old.mode))
        elif old is not None and new is not None and old.mode != new.mode:
            lines += [b"old mode %o\n" % _git_mode(old.mode), b"new mode %o\n" % _git_mode(new.mode)]
        if self.note:
            lines.append(self.note)
        elif self.lines:
            lines.append(b"--- /dev/null\n" if old is None else b"--- a/%b\n" % self.path)
            lines.append(b"+++ /dev/null\n" if new is None else b"+++ b/%b\n" % self.path)
        return lines


def stat_lines(diffs: Iterable[Diff], width: int = 60) -> list[bytes]:
    """Return one line for each change, and a sum, as `git diff --stat` does."""
    rows = list(diffs)
    longest = min(width, max((len(diff.path) for diff in rows), default=0))
    most = max((diff.added + diff.removed for diff in rows if diff.added is not None and diff.removed is not None), default=1)
    lines = []
    for diff in rows:
        name = diff.path if len(diff.path) <= longest else b"..." + diff.path[3 - longest :]
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


def _is_text(content: bytes | None) -> bool:
    return content is None or b"\0" not in content[:8192]


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


def _range_line(group: list[tuple[str, int, int, int, int]], first: int) -> bytes:
    def shown(start: int, stop: int) -> str:
        length = stop - start
        begin = start + first + (1 if length else 0)
        return f"{begin}" if length == 1 else f"{begin},{length}"

    return f"@@ -{shown(group[0][1], group[-1][2])} +{shown(group[0][3], group[-1][4])} @@\n".encode()


def _git_mode(mode: int) -> int:
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & 0o100 else 0o100644
