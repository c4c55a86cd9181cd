"""Step 2: what a change of content means, where the path alone cannot tell.

In go the old and the new content of a file of the workspace; out come effects in a Finding. `tables/contents.toml`
says which files are looked into, how they are read, and which of their settings run something. A file that cannot
be read is taken for the worse. Nothing here opens a file.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from broker.classify import paths
from broker.classify.context import Context
from broker.classify.formats import Settings, Unreadable, settings
from broker.classify.risk import Risk
from broker.classify.scope import Finding, Inquiry, Scope, TooMuch, shown
from broker.classify.tables import load
from broker.request.operation import FileChange

MAX_CONTENT = 1 << 20
"""The largest content that is looked into, in bytes. Whoever asks need not hand over more."""


class Row(NamedTuple):
    """What the table says of one kind of file. Keys are lower case, and `*` stands for anything in them."""

    rule: str
    style: str
    why: str
    runs: tuple[str, ...]  # changing one of these is persistence
    commands: tuple[
        str, ...
    ]  # the values of these are shell texts: persistence if they would do more than a build
    harmless: tuple[str, ...]  # of a file that is persistence by its path: these are not
    fits: tuple[tuple[str, str], ...]  # keys that are harmless while their values look like this (a regular expression)
    lines: str  # for lines: those that run something (a regular expression) …
    plain: str  # … or, the other way round, the only ones that do not
    runner: str  # who runs the file's code when told to


@cache
def _rows() -> dict[str, Row]:
    """The rows by path or name, as the table spells them."""
    rows: dict[str, Row] = {}
    for names, raw in load()["contents"]["file"].items():
        row = Row(
            rule="contents." + raw.get("rule", "project-code"),
            style=raw.get("format", ""),
            why=raw.get("why", ""),
            runs=tuple(raw.get("runs", "").split()),
            commands=tuple(raw.get("commands", "").split()),
            harmless=tuple(raw.get("harmless", "").split()),
            fits=tuple(raw.get("fits", {}).items()),
            lines=raw.get("lines", ""),
            plain=raw.get("plain", ""),
            runner=raw.get("runner", ""),
        )
        rows |= dict.fromkeys(names.split(), row)
    return rows


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compile an expression of the table's when a file needs it: together they take longer than most tasks' landings."""
    return re.compile(text)


def _row_of(path: str, entry: paths.Entry | None) -> Row | None:
    """The row of a file. One that the catalogue protects has it by the catalogue's key (and what is below a folder)."""
    rows = _rows()
    lower = path.lower()
    if entry is not None:
        if entry.where != "workspace":
            return None
        below = lower.rpartition("/" + entry.key)[2] if entry.folder else ""
        return rows.get(entry.key + below)
    name = lower.rpartition("/")[2]
    return rows.get(name) or next(
        (row for key, row in rows.items() if "*" in key and "/" not in key and paths.star_match(name, key)),
        None,
    )


def landing_rules() -> tuple[str, ...]:
    """Return the id of every rule that can make a change of the workspace persistence, for a profile to name."""
    own = {row.rule for row in _rows().values()} | {"contents.unreadable", "contents.planted-command"}
    own -= {"contents.project-code"}  # a local write, whoever asks
    return tuple(sorted({f"path.persistence:{key}" for key in load()["paths"]["persistence"]["workspace"]} | own))


def looks_into(path: str, context: Context) -> bool:
    """Whether the content of this file would be looked into: then whoever asks should hand it over."""
    resolved = paths.resolve(path, context.cwd, context)
    if resolved is None or paths.place_of(resolved, context) is not paths.Place.WORKSPACE:
        return False
    row = _row_of(resolved, paths.find_entry("persistence", resolved, path, context))
    return row is not None and bool(row.style)


def judge_change(inquiry: Inquiry, finding: Finding, change: FileChange) -> bool:
    """Add what this change of content does, if the table knows the file. False: the path alone decides.

    INVARIANT: content makes a protected path harmless only where every key that changed is listed as such
    (test_one_key_that_is_not_listed_keeps_a_protected_file_protected).
    """
    context = inquiry.context
    path = paths.resolve(change.path, context.cwd, context)
    if path is None or paths.place_of(path, context) is not paths.Place.WORKSPACE:
        return False
    entry = paths.find_entry("persistence", path, change.path, context)
    row = _row_of(path, entry)
    if row is None:
        return False
    name = shown(path)
    worse = list(dict.fromkeys(_what_runs(inquiry, row, change, path, protected=entry is not None)))
    for rule, text in worse:
        finding.add(Risk.PERSISTENCE, rule, f"It changes {name}: {text}.")
    if worse:
        return True
    if entry is not None:
        why = "it changes nothing that names a program or loosens a protection"
        finding.add(Risk.LOCAL_WRITE, row.rule, f"It changes {name}, but {why}.")
        return True
    if row.runner:
        finding.add(
            Risk.LOCAL_WRITE,
            "contents.project-code",
            f"It changes {name}, which {row.runner} runs when told to.",
        )
        return True
    return False


def _what_runs(
    inquiry: Inquiry, row: Row, change: FileChange, path: str, *, protected: bool
) -> list[tuple[str, str]]:
    """The rules and sentences that speak for persistence; none if the change is harmless."""
    if not row.style:
        return []
    if change.new is None or len(change.new) > MAX_CONTENT:
        return [("contents.unreadable", "its content is too large to look into, or not known")]
    try:
        new = settings(row.style, change.new.decode("utf-8-sig"))
    except (Unreadable, UnicodeDecodeError) as error:
        return [("contents.unreadable", f"its content cannot be read ({shown(str(error)[:80])})")]
    old = _settings_before(row, change.old)
    found: list[tuple[str, str]] = []
    for key in dict.fromkeys((*new, *old)):
        values, before = new.get(key, ()), old.get(key, ())
        if values == before:
            continue
        if _any_fits(row.commands, key) and not _any_fits(row.runs, key):
            added = [value for value in values if value not in before]
            found += _planted(inquiry, key, added, path)
        elif not _is_harmless(row, key, values, protected=protected):
            found.append((row.rule, f"{shown(key)}: {row.why}"))
    return found


def _settings_before(row: Row, old: bytes | None) -> Settings:
    """What was there before. Where that cannot be read, everything counts as new."""
    if old is None or len(old) > MAX_CONTENT:
        return {}
    try:
        return settings(row.style, old.decode("utf-8-sig"))
    except (Unreadable, UnicodeDecodeError):
        return {}


def _any_fits(patterns: tuple[str, ...], key: str) -> bool:
    return any(paths.star_match(key, pattern) for pattern in patterns)


def _is_harmless(row: Row, key: str, values: tuple[str, ...], *, protected: bool) -> bool:
    """Whether a key may change to these values without anything being run, or trusted, that was not before."""
    if row.lines:
        return _pattern(row.lines).search(key) is None
    if row.plain:
        return _pattern(row.plain).fullmatch(key) is not None
    for pattern, expression in row.fits:
        if paths.star_match(key, pattern):
            wanted = _pattern(expression)
            # A list of words may only make sense as a whole: `-p no:x`.
            return bool(values) and (
                all(map(wanted.fullmatch, values)) or wanted.fullmatch(" ".join(values)) is not None
            )
    if _any_fits(row.runs, key):
        return False
    if not protected:
        return True
    return _any_fits(row.harmless, key) or (row.style == "git" and _git_harmless(key, values))


def _git_harmless(key: str, values: tuple[str, ...]) -> bool:
    from broker.classify.readers.git import is_harmless

    return all(is_harmless(key, value) for value in values or ("",))


# -- commands that wait in a file ----------------------------------------------------------------------

_MORE_THAN_A_BUILD = frozenset((Risk.SYSTEM_WRITE, Risk.PERSISTENCE, Risk.DESTRUCTIVE, Risk.BLOCKED))


def _planted(inquiry: Inquiry, key: str, texts: list[str], path: str) -> list[tuple[str, str]]:
    """Judge shell texts that somebody will run later, in the belief that they build or test the project."""
    found: list[tuple[str, str]] = []
    for text in texts:
        why = _more_than_a_build(inquiry, text, path.rpartition("/")[0] or "/")
        if why:
            found.append(
                (
                    "contents.planted-command",
                    f"{shown(key)} would do more than build or test: {why.rstrip('.')}",
                )
            )
    return found


def _more_than_a_build(inquiry: Inquiry, text: str, folder: str) -> str:
    """Say what a command does beyond building and testing, or return an empty string.

    A program or an option that the tables do not have is not held against it: the project's own tools are such.
    """
    inner = Inquiry(inquiry.context, inquiry.read_text, inquiry.judge)
    try:
        inner.read_text(inner, text, Scope(folder))
    except (TooMuch, RecursionError):
        return "it is too long or too deep to be read"
    fetchers = frozenset(load()["contents"]["fetchers"]["programs"].split())
    for part in inner.parts:
        if part is None:
            return "it is too long or too deep to be read"
        if part.argv and part.argv[0].rpartition("/")[2] in fetchers and Risk.NETWORK_EGRESS in part.effects:
            return f"{shown(part.argv[0])} reaches out to the network"
        for reason in part.reasons:
            if reason.risk in _MORE_THAN_A_BUILD or (reason.risk is Risk.UNKNOWN and _hides(reason.rule)):
                return reason.text
    return ""


def _hides(rule: str) -> bool:
    """Whether a rule for `unknown` speaks of a text that cannot be read, rather than of a name that nobody knows."""
    return rule.startswith(("program.dynamic", "program.memfd", "text.", "shell."))
