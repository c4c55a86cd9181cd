"""How a question of `broker run --ask` reads: on the terminal of the run, and in `broker approvals show` and `watch`.

In: a row of the desk (broker/task/desk.py). Out: lines that no terminal acts on. What a process wrote is shown exactly: each
argument on its own line, and whatever is not plainly visible, or would make a terminal put characters in another order or on
top of one another, written out.
"""

from __future__ import annotations

from broker.cli.terminal import Colours, speaks_utf8
from broker.decide import wording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_VALUE = 200_000  # characters of one value; an argument list has at most 160 KiB
# What has a place of its own below. What else a row holds is shown as it is, by its name.
_PLACED = frozenset((
    "approval", "tool", "what", "class", "effects", "refused", "rule", "reason", "reasons", "sha256", "session", "word", "seconds",
    "left", "argv", "path", "program", "cwd", "env", "action", "other", "task", "claims", "id", "run", "pid", "by", "files", "shell",
    "diff",
))  # fmt: skip
MOST_WORD = 16  # characters that go to the next line whole
LABEL = 12  # columns in front of a value


def exact(text: str) -> str:
    """Return a text as it can be read letter by letter, on a terminal of this locale."""
    shown = wording.exact(text)
    return shown if speaks_utf8() else wording.only_ascii(shown)


def head(name: str, row: dict[str, Any], colours: Colours) -> list[str]:
    """Return the two lines that must always be seen: who wants what of which class, and why it was refused."""
    wants = "wants to start a program" if row["tool"] == "exec" else f"wants to {exact(row.get('action', 'change'))} a path"
    who = exact(str(row.get("task", "root")))
    return [
        f"{colours.paint(name, 'bold')}  {who} {wants}: {colours.risk(row['class'])}  ({row['left']:.0f} s left)",
        _line("refused", exact(row["reason"])),
    ]


def details(row: dict[str, Any]) -> list[str]:
    """Return all the rest, with nothing in it that a model wrote but what the program is given."""
    lines = []
    if row["tool"] == "exec":
        known = f"sha256 {row['sha256']}" if row["sha256"] else "its content is not known"
        lines += [_line(f"argv {number:>3}", exact(token)) for number, token in enumerate(row["argv"])]
        lines += [_line("program", f"{exact(row['program'])}  ({known})"), _line("cwd", exact(row["cwd"]))]
    else:
        lines += [_line(key, exact(row[key])) for key in ("path", "other") if row.get(key)]
    lines += [_line("why", f"{exact(one['text'])} ({one['class']}, {one['rule']})") for one in row["reasons"]]
    lines += _shell(row.get("shell")) + _diff(row.get("diff")) + [_file(one) for one in row.get("files", ())]
    if row.get("pid"):
        itself, *above = [*map(exact, row.get("by", ())), ""]
        lines.append(_line("asks", f"process {row['pid']} {itself}" + "".join(f", started by {one}" for one in above if one)))
    for key, value in row.items():
        if key not in _PLACED and value not in (None, "", [], {}):
            lines += named(key, value)
    return lines + [_line("env", f"{exact(key)}={exact(value)}") for key, value in row.get("env", ())]


def _line(label: str, value: str) -> str:
    return f"  {label}".ljust(LABEL - 1) + " " + value


def _shell(shell: dict[str, Any] | None) -> list[str]:
    """Return the text of the shell that it comes from, the part that is asked about on lines that are marked in front."""
    if not shell:
        return []
    text, start, end = shell["text"], shell.get("start"), shell.get("end")
    parts = [("shell", text)] if start is None else [("shell", text[:start]), ("shell >>", text[start:end]), ("shell", text[end:])]
    lines = [_line(label, exact(line)) for label, part in parts for line in part.split("\n") if line.strip()]
    return [*lines, _line("shell", "… there is more of it")] if shell.get("cut") else lines


def _diff(diff: dict[str, Any] | None) -> list[str]:
    if not diff:
        return []
    was = "a new file" if diff.get("bytes_before") is None else f"{diff['bytes_before']} before"
    told = f", {diff['added']} lines more, {diff['removed']} less" if "added" in diff else ""
    lines = [_line("diff", f"{diff['bytes']} bytes ({was}){told}"), *(_line("diff", exact(line)) for line in diff["lines"])]
    if diff.get("note"):
        lines.append(_line("diff", exact(diff["note"])))
    return [*lines, _line("diff", f"… and {diff['lines_left_out']} lines")] if diff.get("lines_left_out") else lines


def _file(file: dict[str, Any]) -> str:
    leads = f" -> {exact(file['to'])}" if file.get("to") else ""
    known = f"  (sha256 {file['sha256']})" if file.get("sha256") else ""
    return _line(f"word {file['word']:>3}", f"{file['kind']} {exact(file['path'])}{leads}{known}")


def question(name: str, row: dict[str, Any], colours: Colours) -> list[str]:
    """Return all of a question."""
    return [*head(name, row, colours), *details(row)]


def named(key: str, value: object) -> list[str]:
    """Return a value by its name: a text line by line, a table or a list part by part."""
    match value:
        case str():
            return [_line(exact(key), exact(line[:MOST_VALUE])) for line in value.split("\n")]
        case dict():
            return [line for part, inner in value.items() for line in named(f"{key} {part}", inner)]
        case list() | tuple():
            return [line for inner in value for line in named(key, inner)]
        case _:
            return [_line(exact(key), exact(str(value)))]


# In a frame


def wrapped(line: str, columns: int) -> list[str]:
    """Break a line of `exact` text at so many columns, behind a space if there is one near; what goes on is indented. At least one line.

    Every character beyond ASCII counts as two columns, whatever the terminal makes of it: then none is cut off.
    """
    indent = " " * min(LABEL, columns // 4)
    rows, row, used = [], "", 0
    for char in line:
        width = _width(char)
        if used + width > columns:
            behind = row.rfind(" ", max(len(indent) + 1, len(row) - MOST_WORD)) + 1 or len(row)
            rows.append(row[:behind])
            row = indent + row[behind:]
            used = sum(map(_width, row))
        row += char
        used += width
    return [*rows, row]


def _width(char: str) -> int:
    return 1 if char < "\x7f" else 2
