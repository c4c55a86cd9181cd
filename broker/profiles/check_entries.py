"""Look at the allowlist and the denylist: entries that never match, that change nothing, or that open too much.

In: a Profile, and how to find a program. Out: findings, in the order of the entries.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from broker.classify.risk import Risk
from broker.decide.allowlist import denied_prefix
from broker.decide.decide import names_a_shell
from broker.decide.envelope import GRANTED
from broker.decide.profile import AllowEntry, Profile, up_to
from broker.decide.wording import classes, shorten
from broker.profiles.doors import open_door
from broker.profiles.finding import Finding, note, warning
from broker.profiles.judge import HOME, judge, start_of

_OPERATORS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "<<", "2>&1", "2>", "&>", "|&", "2>/dev/null"})
_EXPANDED = re.compile(r"\$[({A-Za-z_@*?!#$0-9]|`")
_TAKES_PATTERNS = frozenset("grep egrep fgrep rg ag ack sed awk gawk mawk find fd perl jq expr git".split())
_WRITABLE = (HOME, "/tmp", "/var/tmp", "/dev/shm", "/proc", "/dev", "/sys")


class Installed(NamedTuple):
    """Where programs are looked for, and the answer for a name or an absolute path."""

    where: str
    has: Callable[[str], bool]


def entry_findings(profile: Profile, installed: Installed | None = None) -> Iterator[Finding]:
    """Yield what is remarkable about each entry of both lists."""
    bare = replace(profile, allowlist=(), denylist=())
    narrowing_none = narrows_nothing(profile)
    for at in range(len(profile.allowlist)):
        yield from _entry(profile, bare, at, narrowing_none=narrowing_none)
    if installed is not None:
        yield from _missing(profile, installed)
    yield from _denials(profile)


def narrows_nothing(profile: Profile) -> bool:
    """Whether the classes alone permit each entry, and all that it starts."""
    bare = replace(profile, allowlist=(), denylist=())
    return (
        bool(profile.allowlist)
        and bare.effects >= GRANTED
        and all(
            not entry.effects - GRANTED - bare.effects and judge(start_of(entry), bare).allowed
            for entry in profile.allowlist
        )
    )


def _missing(profile: Profile, installed: Installed) -> Iterator[Finding]:
    """Yield one finding a program: twenty entries for one tool chain are one thing to mend."""
    entries: dict[str, list[int]] = {}
    for at, entry in enumerate(profile.allowlist):
        if entry.argv[0] not in entries and installed.has(entry.argv[0]):
            continue
        entries.setdefault(entry.argv[0], []).append(at)
    for program, places in entries.items():
        count = len(places)
        never = f"{count} entries never match" if count > 1 else f"`{shorten(profile.allowlist[places[0]].text)}` never matches"
        yield warning(
            "entry.program-missing",
            f"there is no program {program} {installed.where}: {never} there",
            "Install it there, name the image that has it (sandbox.image), or remove what is listed of it",
            "allowlist",
            places[0],
        )


def _shown(entry: AllowEntry) -> str:
    return f"allowlist entry `{shorten(entry.text)}`"


def _entry(profile: Profile, bare: Profile, at: int, *, narrowing_none: bool) -> Iterator[Finding]:
    entry = profile.allowlist[at]
    keys, shown = ("allowlist", at), _shown(entry)
    judged = judge(start_of(entry), bare)
    if Risk.BLOCKED in judged.assessment.effects:
        yield warning("entry.blocked", f"{shown} is blocked, which nothing permits: it never matches", "Remove it", *keys)
        return
    if (covering := _covered_by(profile, at)) is not None:
        same = profile.allowlist[covering] == entry
        said = "stands there twice" if same else f"never counts: entry {covering + 1} is the same command with fewer conditions"
        yield warning("entry.duplicate", f"{shown} {said}", "Remove one of the two", *keys)
        return
    if "shell" in profile.disabled_tools and names_a_shell(entry.argv):
        yield warning(
            "entry.shell-disabled", f"{shown} starts a shell, and the tool shell is disabled: it never matches",
            "List the program without a shell around it, or give the tool back", *keys,
        )  # fmt: skip
        return
    if entry.argv[0].startswith("/") and any(entry.argv[0].startswith(root + "/") for root in _WRITABLE):
        yield warning(
            "entry.writable-program", f"{shown} names a program in a place that the task can write to: it never matches",
            "Name a program of the system", *keys,
        )  # fmt: skip
        return
    yield from _syntax(entry, keys)
    yield from _effects(profile, entry, keys)
    yield from _ceiling(bare, entry, keys, permitted=judged.allowed, narrowing_none=narrowing_none)
    prefix = denied_prefix(profile.denylist, entry.argv)
    if prefix is not None:
        yield warning(
            "entry.denied", f"{shown} starts with the denied `{' '.join(prefix)}`; the exact entry wins",
            "Remove the one that is not meant", *keys,
        )  # fmt: skip
    if (door := open_door(entry.argv)) is not None:
        yield warning(
            "entry.open-door", f"{shown} {door}: a wide-open door",
            "List the exact command that is needed, script or text included", *keys,
        )  # fmt: skip
    if entry.cwd is not None and entry.cwd.startswith("/"):
        yield note(
            "entry.absolute-cwd", f"{shown} names the absolute folder {entry.cwd}; it matches in that workspace only",
            "Name the folder from the workspace on", *keys, "cwd",
        )  # fmt: skip


def _covered_by(profile: Profile, at: int) -> int | None:
    """Return an earlier entry that matches whenever this one does: the first that matches is taken."""
    entry = profile.allowlist[at]
    for index, other in enumerate(profile.allowlist[:at]):
        if (
            other.argv == entry.argv
            and other.cwd in {None, entry.cwd}
            and other.sha256 in {None, entry.sha256}
        ):
            return index
    return None


def _syntax(entry: AllowEntry, keys: tuple[str | int, ...]) -> Iterator[Finding]:
    """Yield what looks like a shell's, and is quoted: the program would get it as it is."""
    words = entry.argv[1:]
    if names_a_shell(entry.argv):
        return  # its text is for a shell
    for word in words:
        if word in _OPERATORS:
            yield warning(
                "entry.shell-syntax",
                f"{_shown(entry)} gives {entry.argv[0]} the word `{word}`; no shell reads an entry, so only a start with that very "
                "word matches",
                "List each command by itself: a shell text is permitted if each of its commands is",
                *keys,
            )
            return
    if posixpath.basename(entry.argv[0]) in _TAKES_PATTERNS:
        return
    for word in words:
        if _EXPANDED.search(word):
            yield note(
                "entry.expansion",
                f"{_shown(entry)} holds `{shorten(word, 40)}`, which nothing expands here: it matches these letters only",
                "Write out what is meant",
                *keys,
            )
            return
        if "*" in word and not word.startswith("-"):
            yield note(
                "entry.wildcard",
                f"{_shown(entry)} holds `{shorten(word, 40)}`: a shell gives the program the names instead, and they do not match",
                "Let the program look for the files itself, or list the names",
                *keys,
            )
            return


def _effects(profile: Profile, entry: AllowEntry, keys: tuple[str | int, ...]) -> Iterator[Finding]:
    removed = up_to(profile.max_risk) - profile.effects
    if back := entry.effects & removed:
        yield warning(
            "entry.removed-class",
            f"{_shown(entry)} gives what it starts {classes(back)}, which effects.remove takes from the profile",
            "Take it from the entry, or do not remove it",
            *keys,
        )
    if idle := entry.effects & GRANTED:
        yield note(
            "entry.idle-effects",
            f"{_shown(entry)} lists {classes(idle)}, which what an entry starts may have anyway",
            "Leave it out",
            *keys,
        )


def _ceiling(bare: Profile, entry: AllowEntry, keys: tuple[str | int, ...], *, permitted: bool, narrowing_none: bool) -> Iterator[Finding]:
    if not permitted or entry.effects - GRANTED - bare.effects:
        return
    if bare.effects >= GRANTED:
        if not narrowing_none:
            yield warning(
                "entry.covered", f"{_shown(entry)} changes nothing: the classes permit it and what it starts",
                "Remove it, or lower max_risk to local_write if only the listed commands are to run code", *keys,
            )  # fmt: skip
    elif Risk.CODE_EXECUTION not in bare.effects:
        yield note(
            "entry.within-ceiling",
            f"{_shown(entry)} is permitted by its classes; the entry only lets what it starts run code",
            "Remove it if it starts nothing",
            *keys,
        )


def _denials(profile: Profile) -> Iterator[Finding]:
    for at, prefix in enumerate(profile.denylist):
        line = " ".join(prefix)
        shorter = next(
            (other for index, other in enumerate(profile.denylist) if index != at and _covers(other, prefix, index < at)), None
        )
        if shorter is not None:
            yield warning(
                "denial.covered", f"denylist `{line}` is covered by `{' '.join(shorter)}`", "Remove it", "denylist", at
            )
        elif len(prefix) > 1 and not prefix[1].startswith("-"):
            yield note(
                "denial.words",
                f"denylist `{line}` compares words from the start: `{prefix[0]} -x {prefix[1]}` is not covered",
                "What must not happen is better kept out of the ceiling",
                "denylist",
                at,
            )


def _covers(other: tuple[str, ...], prefix: tuple[str, ...], earlier: bool) -> bool:
    """Whether one beginning denies all that the other does; of two equal ones, the earlier."""
    same = posixpath.basename(other[0]) == posixpath.basename(prefix[0]) and other[1:] == prefix[1 : len(other)]
    return same and (len(other) < len(prefix) or (len(other) == len(prefix) and earlier))
