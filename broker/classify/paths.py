"""Step 2: what a path means: where it lies, whether it is protected, what writing or reading it does.

In goes a path as a program would get it (perhaps with unknown pieces or a pattern in it) and the Context;
out come effects in a Finding. Paths are compared as text only, lower case, with `..` and the context's
symlinks resolved; no file system is looked at.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache, lru_cache
from typing import Any, NamedTuple

from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.classify.scope import TAME, UNKNOWN, Finding, shown
from broker.classify.tables import load

PATH_MAX = 4096  # limits.h: what a path given to the kernel may have, in bytes


class Place(Enum):
    """Whose a path is."""

    WORKSPACE = "the workspace"
    SCRATCH = "the task's temporary space"
    HOME = "the home folder"
    OUTSIDE = "outside the task's own folders"
    UNKNOWN = "a place that cannot be known"


class Entry(NamedTuple):
    """One line of the catalogue. `folder`: it covers everything below it as well. `deep`: it has a `**`."""

    kind: str
    where: str
    key: str
    why: str
    parts: tuple[str, ...]
    folder: bool
    deep: bool = False
    source: str = ""  # where it was learned

    @property
    def rule(self) -> str:
        """The rule's id: what it is, and the key as the catalogue spells it."""
        mark = "~/" if self.where == "home" else "/proc/*/" if self.kind == "process" else ""
        return f"path.{self.kind}:{mark}{self.key}"


Index = dict[str, list[Entry]]


@cache
def catalogue(kind: str, where: str) -> Index:
    """The entries of one section, by the first component; those that start with a pattern under `*`."""
    index: Index = {}
    for key, sentence in load()["paths"].get(kind, {}).get(where, {}).items():
        why, _, source = sentence.removesuffix("]").partition(" [")
        folder = key.endswith("/")
        parts = tuple(key.strip("/").split("/"))
        entry = Entry(kind, where, key, why, parts, folder, "**" in parts, source)
        index.setdefault("*" if "*" in parts[0] else parts[0], []).append(entry)
    return index


def _component(name: str, pattern: str) -> bool:
    """Whether a path's component fits a catalogue's. Either may hold wildcards (a shell's pattern, unknowns)."""
    if name == pattern:
        return True
    if "*" in pattern and star_match(name, pattern):
        return True
    # A shell's pattern or a partly unknown name counts where it names dotfiles: `.bashr?`, `.git*`.
    if name[:1] == "." and len(name) > 1 and any(mark in name for mark in _WILD):
        return _could_be(name, pattern)
    return False


_WILD = ("*", "?", "[", UNKNOWN, TAME)
_HAS_WILD = re.compile(f"[*?[{UNKNOWN}{TAME}]").search


def star_match(name: str, pattern: str) -> bool:
    """Match a pattern in which `*` stands for any characters, as catalogue keys use it."""
    if "*" not in pattern:
        return name == pattern
    pieces = pattern.split("*")
    if not name.startswith(pieces[0]) or not name.endswith(pieces[-1]):
        return False
    at = len(pieces[0])
    end = len(name) - len(pieces[-1])
    if end < at:
        return False
    for piece in pieces[1:-1]:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _could_be(pattern: str, name: str) -> bool:
    """Whether a shell's pattern (with unknown pieces as `*`) could match a literal name."""
    for mark in (UNKNOWN, TAME):
        pattern = pattern.replace(mark, "*")
    if "[" in pattern:
        before, _, rest = pattern.partition("[")
        _, close, after = rest.partition("]")
        pattern = before + "?" + after if close else before + "*"
        if "[" in pattern:
            pattern = pattern.split("[", 1)[0] + "*"
    return _glob(pattern, name)


def _glob(pattern: str, name: str) -> bool:
    """`*` and `?` matching, linear in memory."""
    at = star = -1
    p = n = 0
    while n < len(name):
        if p < len(pattern) and (pattern[p] == "?" or pattern[p] == name[n]) and pattern[p] != "*":
            p, n = p + 1, n + 1
        elif p < len(pattern) and pattern[p] == "*":
            star, at, p = p, n, p + 1
        elif star >= 0:
            at += 1
            p, n = star + 1, at
        else:
            return False
    return pattern[p:].strip("*") == ""


@cache
def _beginnings(kind: str, where: str) -> tuple[frozenset[str], re.Pattern[str]]:
    """What the first component of a section's entries can be: names, and one expression for all patterns.

    The expression is searched for in a path that begins with a slash. What begins with `*` is looked for by its
    end, so that each alternative starts with a character: trying them costs next to nothing where none does.
    """
    index = catalogue(kind, where)
    either = [r"(?!)"]  # without a pattern: an expression that matches nothing
    for pattern in sorted({entry.parts[0] for entry in index.get("*", ())}):
        text = "[^/]*".join(map(re.escape, pattern.lstrip("*").split("*")))
        either.append(text if pattern.startswith("*") else "/" + text)
    return frozenset(index), re.compile(rf"(?:{'|'.join(either)})(?:/|\Z)")


def _may_begin(kind: str, where: str, lower: str, parts: list[str]) -> bool:
    """Whether an entry may begin at any of these components: False spares the walk that finds none."""
    names, patterns = _beginnings(kind, where)
    return (
        not names.isdisjoint(parts)
        or patterns.search("/" + lower) is not None
        or _HAS_WILD(lower) is not None
    )


def _lookup(index: Index, parts: list[str], at: int, *, inside: bool) -> Entry | None:
    """Find an entry that covers parts[at:], or (with `inside`) one that lies below parts[at:]."""
    first = parts[at]
    candidates = index.get(first)
    extra = index.get("*")
    if extra:
        candidates = candidates + extra if candidates else extra
    if first[:1] == "." and len(first) > 1 and _HAS_WILD(first):
        candidates = [entry for entries in index.values() for entry in entries]
    if candidates is None:
        return None
    rest = len(parts) - at
    for entry in candidates:
        wanted = len(entry.parts)
        if entry.deep and rest > wanted:
            if _covers_deep(entry, parts[at:]):
                return entry
            continue
        if rest < wanted:
            if not inside:
                continue
            wanted = rest
        elif rest > wanted and not entry.folder:
            continue
        for i in range(wanted):
            name, pattern = parts[at + i], entry.parts[i]
            if name != pattern and not _component(name, pattern):
                break
        else:
            return entry
    return None


def _covers_deep(entry: Entry, parts: list[str]) -> bool:
    """Whether an entry covers a path that is longer than it, with `**` for one component or more."""
    at = entry.parts.index("**")
    before, after = entry.parts[:at], entry.parts[at + 1 :]
    if not all(map(_component, parts, before)):
        return False
    last = len(parts) - len(after)
    begins = range(at + 1, last + 1) if entry.folder else (last,)
    return any(all(map(_component, parts[begin:], after)) for begin in begins)


# -- resolving -----------------------------------------------------------------------------------------


def normalise(path: str) -> str:
    """Resolve `.`, `..` and doubled slashes of an absolute path, as text."""
    if "/." not in path and "//" not in path and path[-1:] != "/":
        return path
    out: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if out:
                out.pop()
        else:
            out.append(part)
    return "/" + "/".join(out)


def resolve(path: str, cwd: str | None, context: Context) -> str | None:
    """Return the absolute path meant, or None when even its beginning cannot be known."""
    if not path:
        return None
    if path[0] == "/":
        absolute = path
    elif path[0] == UNKNOWN or cwd is None:
        return None
    else:
        absolute = cwd.rstrip("/") + "/" + path
    absolute = normalise(absolute)
    if absolute.startswith("/proc/"):
        absolute = _through_proc(absolute, cwd)
    for link, target in context.symlinks:
        if absolute == link or absolute.startswith(link + "/"):
            absolute = normalise(target + absolute[len(link) :])
    return absolute


def _through_proc(path: str, cwd: str | None) -> str:
    """`/proc/self/root/etc` is /etc; `/proc/self/cwd/x` is ./x."""
    for _ in range(4):
        parts = path.split("/", 4)
        if len(parts) >= 4 and parts[3] == "root" and parts[1] == "proc":
            path = "/" + (parts[4] if len(parts) > 4 else "")
        elif len(parts) >= 4 and parts[3] == "cwd" and parts[1] == "proc" and cwd is not None:
            path = normalise(cwd + "/" + (parts[4] if len(parts) > 4 else ""))
        else:
            break
    return path


def under(path: str, root: str) -> bool:
    """Whether path is root or lies below it."""
    root = root.rstrip("/")
    return path == root or path.startswith(root + "/") or root == ""


def place_of(path: str, context: Context) -> Place:
    """Say whose an absolute path is. The longest root that holds it decides."""
    for root, below, place in _places(context.workspace, context.home, context.scratch, context.writable):
        if path == root or path.startswith(below):
            return place
    return _OUTSIDE


_OUTSIDE = Place.OUTSIDE


@lru_cache(maxsize=64)
def _places(
    workspace: str, home: str, scratch: tuple[str, ...], writable: tuple[str, ...]
) -> tuple[tuple[str, str, Place], ...]:
    """Each root, what everything below it begins with, and whose it is; the longest first."""
    roots = [(workspace, Place.WORKSPACE), *((root, Place.SCRATCH) for root in scratch)]
    if home in writable or not writable:
        roots.append((home, Place.HOME))
    roots += [(root, Place.WORKSPACE) for root in writable if root not in (workspace, home, *scratch)]
    roots.sort(key=lambda root: -len(root[0]))
    return tuple((root.rstrip("/"), _below(root), place) for root, place in roots)


def _below(root: str) -> str:
    """What every path below a root begins with."""
    root = root.rstrip("/")
    return root + "/" if root else ""


def in_writable(path: str, context: Context) -> bool:
    """Whether the task can write here: a program found here may be one that it made."""
    roots, below = _writable(context.writable_roots)
    return path in roots or path.startswith(below)


@lru_cache(maxsize=64)
def _writable(roots: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The roots, and what everything below any of them begins with."""
    return frozenset(root.rstrip("/") for root in roots), tuple(_below(root) for root in roots)


def _home_parts(parts: list[str], context: Context) -> list[str] | None:
    """The components below a home folder (the task's own, or anybody's)."""
    own = context.home.lower().strip("/").split("/")
    if parts[: len(own)] == own and own != [""]:
        return parts[len(own) :]
    if parts[:1] in (["home"], ["users"]) and len(parts) > 2:
        return parts[2:]
    if parts[:1] == ["root"]:
        return parts[1:]
    if parts[:2] == ["var", "root"]:
        return parts[2:]
    return None


def _is_ours_of_root(path: str, context: Context) -> bool:
    """Whether what lies in /root is the task's: its home is there, or the project that it was given."""
    own = context.workspace.startswith("/root/") and under(path, context.workspace)
    return own or context.home.startswith("/root")


def find_entry(
    kind: str, path: str | None, text: str, context: Context, *, inside: bool = False
) -> Entry | None:
    """Look a path up in the catalogue's sections of one kind.

    `path` is absolute or None (then only the tail of `text` can be compared). `inside` also finds entries
    that lie below the path: for what moves, deletes or fills whole folders.
    """
    if path is None:
        return _find_by_tail(kind, text, inside=inside)
    lower = path.lower().strip("/")
    parts = lower.split("/") if lower else []
    if parts:
        entry = _lookup(catalogue(kind, "absolute"), parts, 0, inside=inside)
        if entry is not None and not (entry.parts == ("root",) and _is_ours_of_root(path, context)):
            return entry
    home = _home_parts(parts, context)
    if home:
        entry = _lookup(catalogue(kind, "home"), home, 0, inside=inside)
        if entry is not None:
            return entry
    workspace = catalogue(kind, "workspace")
    if workspace:
        place = place_of(path, context)
        if place is not Place.SCRATCH:
            start = (
                len(context.workspace.strip("/").split("/"))
                if place is Place.WORKSPACE and under(path, context.workspace)
                else 0
            )
            if not _may_begin(kind, "workspace", lower, parts[start:] if start else parts):
                return None
            for at in range(start, len(parts)):
                entry = _lookup(workspace, parts, at, inside=inside)
                if entry is not None and not (entry.where == "workspace" and parts[-1].endswith(".sample")):
                    return entry
    return None


def _find_by_tail(kind: str, text: str, *, inside: bool) -> Entry | None:
    """The beginning is unknown (`$X/.bashrc`): compare what is known of the end."""
    tail = text.rsplit(UNKNOWN, 1)[-1].lower()
    parts = [part for part in tail.split("/") if part not in ("", ".")]
    if UNKNOWN in text and not tail.startswith("/"):
        parts = parts[1:]  # the first component is only the end of one
    for where in ("home", "workspace"):
        index = catalogue(kind, where)
        for at in range(len(parts)):
            entry = _lookup(index, parts, at, inside=inside)
            if entry is not None:
                return entry
    return None


def is_secret_path(path: str, context: Context, text: str = "") -> Entry | None:
    """Return the catalogue's entry if reading this path reads a secret."""
    name = path.rstrip("/").rsplit("/", 1)[-1].lower()
    if _named(name, "innocent"):
        return None
    entry = find_entry("secret", path, text or path, context)
    return entry or _named(name, "secret")


def is_secret(path: str) -> bool:
    """Whether a path's name alone says that it holds a secret (`.env`, `*.pem`, `id_rsa` …)."""
    name = path.rstrip("/").rsplit("/", 1)[-1].lower()
    return _named(name, "innocent") is None and _named(name, "secret") is not None


def _named(name: str, kind: str) -> Entry | None:
    index = catalogue(kind, "name")
    exact = index.get(name)
    if exact:
        return exact[0]
    if name[:1] == "." and len(name) > 1 and _HAS_WILD(name):
        for entries in index.values():
            for entry in entries:
                if "*" not in entry.key and _could_be(name, entry.key):
                    return entry
    patterns, starred, ends, starts = _name_patterns(kind)
    if not name.endswith(ends) and not name.startswith(starts):
        return None
    found = patterns.match(name)
    return starred[found.lastindex - 1] if found is not None and found.lastindex else None


@cache
def _name_patterns(kind: str) -> tuple[re.Pattern[str], tuple[Entry, ...], tuple[str, ...], tuple[str, ...]]:
    """One expression for all patterns among a kind's names: its n-th group is the n-th entry's.

    And what a name must end with, or begin with, for any of them to fit: most names do neither.
    """
    starred = tuple(catalogue(kind, "name").get("*", ()))
    either = "|".join(
        "(" + ".*".join(re.escape(piece) for piece in entry.key.split("*")) + ")" for entry in starred
    )
    ends = {entry.key.rpartition("*")[2] for entry in starred} - {""}
    starts = {entry.key.partition("*")[0] for entry in starred if entry.key.endswith("*")}
    # Without a pattern: an expression that matches nothing.
    return (
        re.compile(rf"(?:{either})\Z" if either else r"(?!)", re.DOTALL),
        starred,
        tuple(ends),
        tuple(starts),
    )


# -- judging -------------------------------------------------------------------------------------------

Span = tuple[int, int] | None
_RAW_DEVICES = (
    "sd",
    "hd",
    "vd",
    "xvd",
    "nvme",
    "mmcblk",
    "loop",
    "dm-",
    "md",
    "sr",
    "nbd",
    "zram",
    "disk",
    "rdisk",
    "mapper/",
    "mem",
    "kmem",
    "port",
    "mtd",
    "ubi",
    "drbd",
    "bcache",
    "fd0",
    "raw",
)


def is_raw_device(path: str) -> bool:
    """Whether this is a disk, a partition or the machine's memory."""
    if not path.startswith("/dev/"):
        return False
    name = path[5:].lower()
    return name.startswith(_RAW_DEVICES) and not name.startswith("fd/")


def judge_write(
    finding: Finding,
    text: str,
    cwd: str | None,
    context: Context,
    span: Span,
    *,
    whole: bool = False,
    folder: bool = False,
    alone: bool = False,
) -> None:
    """Add what creating or changing this path does. `whole`: with what is in it; `folder`: it is an empty folder.

    `alone`: whatever comes into that folder is judged by itself, before anybody can see it there.
    """
    if _too_long(finding, text, span):
        return
    path = resolve(text, cwd, context)
    if path is None:
        _write_unknown(finding, text, context, span, whole=whole)
        return
    if _quiet(path):
        return
    shown_path = shown(path)
    if is_raw_device(path):
        finding.add(Risk.BLOCKED, "path.raw_device", f"It writes to the device {shown_path} itself.", span)
        return
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        finding.add(Risk.NETWORK_EGRESS, "shell.dev_tcp", f"bash opens a connection for {shown_path}.", span)
        return
    entry = find_entry("persistence", path, text, context, inside=whole)
    if entry is not None and folder and (alone or not entry.folder):
        entry = None  # an empty folder of that name is not the file that matters
    if entry is not None:
        finding.add(Risk.PERSISTENCE, entry.rule, f"It changes {shown_path}: {entry.why}.", span)
    if entry is None and path.startswith("/proc/") and (tuned := _of_a_process(path)) is not None:
        finding.add(Risk.SAFE, tuned.rule, f"It tunes a process by {shown_path}: {tuned.why}.", span)
        return
    system = find_entry("system", path, text, context)
    if system is not None:
        risk = Risk.DESTRUCTIVE if "sysrq" in path else Risk.SYSTEM_WRITE
        finding.add(risk, system.rule, f"It changes {shown_path}: {system.why}.", span)
        return
    place = place_of(path, context)
    secret = is_secret_path(path, context) if entry is None else None
    if secret is not None and place is not Place.SCRATCH:
        finding.add(Risk.SYSTEM_WRITE, secret.rule, f"It changes {shown_path}: {secret.why}.", span)
    if place is Place.OUTSIDE:
        if entry is None and secret is None:
            finding.add(
                Risk.SYSTEM_WRITE, "path.outside", f"It changes {shown_path}, which lies {place.value}.", span
            )
    elif entry is None:
        finding.add(Risk.LOCAL_WRITE, "path.write", f"It changes {shown_path}, in {place.value}.", span)


def _too_long(finding: Finding, text: str, span: Span) -> bool:
    """No kernel opens such a path, and looking for what it means would cost by the square of its length."""
    if len(text) <= PATH_MAX:
        return False
    finding.add(
        Risk.UNKNOWN, "path.too_long", f"A path of {len(text)} characters: no program can open it.", span
    )
    return True


def _write_unknown(finding: Finding, text: str, context: Context, span: Span, *, whole: bool) -> None:
    entry = find_entry("persistence", None, text, context, inside=whole)
    if entry is not None:
        finding.add(Risk.PERSISTENCE, entry.rule, f"It changes {shown(text)}: {entry.why}.", span)
    else:
        finding.add(Risk.LOCAL_WRITE, "path.write", f"It changes {shown(text)}.", span)
        finding.add(
            Risk.UNKNOWN, "path.dynamic", f"Where {shown(text)} lies cannot be known before it runs.", span
        )


def _quiet(path: str) -> bool:
    return path.startswith(("/dev/", "/proc/self/fd/")) and (
        _lookup(catalogue("quiet", "absolute"), path.lower().strip("/").split("/"), 0, inside=False)
        is not None
    )


_PROCESS = re.compile(
    rf"/proc/(?:self|thread-self|\d+|{TAME}+)(?:/task/(?:\d+|{TAME}+))?/(?P<file>[^/]+)", re.ASCII
)


def _of_a_process(path: str) -> Entry | None:
    """Return the entry if this file of a process changes nothing but how the kernel treats that process.

    The number may be anybody's: the kernel lets a task write these of its own processes only (proc(5)).
    """
    found = _PROCESS.fullmatch(path)
    return _named(found["file"], "process") if found is not None else None


def judge_delete(
    finding: Finding, text: str, cwd: str | None, context: Context, span: Span, *, whole: bool
) -> None:
    """Add what deleting this path does. `whole`: with everything below it."""
    if _too_long(finding, text, span):
        return
    path = resolve(text, cwd, context)
    if path is None:
        entry = find_entry("persistence", None, text, context, inside=whole)
        if entry is not None:
            finding.add(Risk.PERSISTENCE, entry.rule, f"It deletes {shown(text)}: {entry.why}.", span)
        elif cwd is None and text[0] != UNKNOWN:
            finding.add(Risk.LOCAL_WRITE, "path.delete", f"It deletes {shown(text)}.", span)
            finding.add(Risk.UNKNOWN, "path.dynamic", "The folder it works in cannot be known.", span)
            return
        finding.add(
            Risk.DESTRUCTIVE,
            "path.delete_unknown",
            f"What {shown(text)} is cannot be known before it is gone.",
            span,
        )
        return
    if is_raw_device(path):
        finding.add(Risk.DESTRUCTIVE, "path.delete_system", f"It deletes {shown(path)}.", span)
        return
    everything = path.rsplit("/", 1)[-1]
    all_of = path[: -len(everything) - 1] or "/" if everything in ("*", ".*", "{,.}*", UNKNOWN) else None
    target = all_of if all_of is not None else path
    shown_path = shown(path)
    whole = whole or all_of is not None
    # A pattern leaves dotfiles alone; names that something found (UNKNOWN) come from all levels.
    if holds_more_than_its_own(target, context, is_contents=all_of is not None and everything != UNKNOWN):
        finding.add(
            Risk.DESTRUCTIVE,
            "path.delete_root",
            f"It deletes {shown_path}, which holds more than the task's own files.",
            span,
        )
        return
    lower = target.lower()
    holds_history = lower.endswith("/.git") or (
        everything[:1] == "." and _is_pattern(everything) and _could_be(everything, ".git")
    )
    if holds_history and whole and place_of(target, context) is not Place.SCRATCH:
        finding.add(
            Risk.DESTRUCTIVE,
            "path.delete_history",
            f"It deletes {shown_path}, which holds the project's history.",
            span,
        )
        return
    if whole and all_of is None and _disguised(everything) and _folder_of(path) == context.workspace:
        finding.add(
            Risk.DESTRUCTIVE,
            "path.delete_disguised",
            f"It deletes {shown(everything)}: nearly everything in the workspace, written so that it does not look like it.",
            span,
        )
        return
    place = place_of(target, context)
    entry = find_entry("persistence", target, text, context)
    if entry is not None:
        finding.add(Risk.PERSISTENCE, entry.rule, f"It deletes {shown_path}: {entry.why}.", span)
    if place is Place.OUTSIDE:
        if whole:
            finding.add(
                Risk.DESTRUCTIVE,
                "path.delete_outside",
                f"It deletes {shown_path}, which lies {place.value}.",
                span,
            )
        elif entry is None:
            finding.add(
                Risk.SYSTEM_WRITE, "path.outside", f"It deletes {shown_path}, which lies {place.value}.", span
            )
    elif place is Place.HOME and (whole or is_secret_path(target, context)):
        parts = _home_parts(target.lower().strip("/").split("/"), context)
        if parts and _lookup(catalogue("cache", "home"), parts, 0, inside=False):
            finding.add(Risk.LOCAL_WRITE, "path.delete", f"It deletes {shown_path}, a cache.", span)
        else:
            finding.add(
                Risk.DESTRUCTIVE, "path.delete_home", f"It deletes {shown_path}, below the home folder.", span
            )
    elif entry is None:
        finding.add(Risk.LOCAL_WRITE, "path.delete", f"It deletes {shown_path}, in {place.value}.", span)


_WILDCARDS = re.compile(r"(?:[*?]|\[[^\]]*\])+")


def _disguised(name: str) -> bool:
    """Whether a pattern says nothing about a name, and yet is not the plain `*` that people write: `?*`, `[a-z]*`."""
    return name != "*" and "*" in name and _WILDCARDS.fullmatch(name) is not None


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def holds_more_than_its_own(path: str, context: Context, *, is_contents: bool) -> bool:
    """Whether a path is a root: of the system, of a home, of the workspace or above one of them."""
    if path in context.scratch:
        return not is_contents  # emptying /tmp is the task's own business; /tmp itself is not
    if path == context.workspace:
        return not is_contents
    return under(context.workspace, path) or under(context.home, path) or path == "/home"


def judge_read(
    finding: Finding, text: str, cwd: str | None, context: Context, span: Span, *, whole: bool = False
) -> None:
    """Add what reading this path's content does. `whole`: a folder and everything below it."""
    if not text or text == "-" or _too_long(finding, text, span):
        return
    path = resolve(text, cwd, context)
    if path is None:
        if not whole:
            entry = find_entry("secret", None, text, context)
            tail = text.rsplit("/", 1)[-1]
            if entry is None and UNKNOWN not in tail and is_secret(tail):
                entry = _named(tail.lower(), "secret")
            if entry is not None:
                finding.add(Risk.SYSTEM_WRITE, entry.rule, f"It reads {shown(text)}: {entry.why}.", span)
        return
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        finding.add(Risk.NETWORK_EGRESS, "shell.dev_tcp", f"bash opens a connection for {shown(path)}.", span)
        return
    if is_raw_device(path):
        finding.add(Risk.SYSTEM_WRITE, "path.read_device", f"It reads the device {shown(path)} itself.", span)
        return
    entry = is_secret_path(path, context, text)
    if (
        entry is None
        and whole
        and not under(path, context.workspace)
        and place_of(path, context) is not Place.SCRATCH
    ):
        if under(context.home, path) or path in ("/", "/etc", "/home", "/root", "/proc", "/var"):
            finding.add(
                Risk.SYSTEM_WRITE,
                "path.read_home",
                f"It reads all of {shown(path)}, with the secrets in it.",
                span,
            )
            return
        entry = find_entry("secret", path, text, context, inside=True)
    if entry is not None:
        finding.add(Risk.SYSTEM_WRITE, entry.rule, f"It reads {shown(path)}: {entry.why}.", span)


# -- for the engine and the guard ----------------------------------------------------------------------


def protected_paths(kind: str = "persistence") -> tuple[str, ...]:
    """Workspace-relative keys of one kind, as the catalogue spells them, folders without their slash."""
    section: dict[str, Any] = load()["paths"].get(kind, {}).get("workspace", {})
    return tuple(key.rstrip("/") for key in section)


def secrets_among(names: list[str]) -> list[str]:
    """Return those names of files that say of themselves that they hold a secret, as `is_secret` does, but quickly."""
    exact = catalogue("secret", "name").keys()
    _, _, ends, starts = _name_patterns("secret")
    found = []
    for name in names:
        lower = name.lower()
        if (lower in exact or lower.endswith(ends) or lower.startswith(starts)) and is_secret(name):
            found.append(name)
    return found


def secret_names() -> tuple[str, ...]:
    """Names (one component, lower case, perhaps with a `*`) of files that look like secrets."""
    return tuple(load()["paths"]["secret"]["name"])


def innocent_names() -> tuple[str, ...]:
    """Names that look like secrets and are not."""
    return tuple(load()["paths"]["innocent"]["name"])


@cache
def watched_names() -> tuple[str, ...]:
    """Patterns of consecutive components that together cover the catalogue below writable roots.

    The guard asks about paths that hold an entry's components (`^`: directly below a writable root, as the
    home is one; `=`: as their last ones), and about the
    folders on the way to an entry, because a folder that was filled elsewhere may be moved there. It does not
    ask about the thousand files that git itself keeps below `.git`.
    """
    chosen: set[str] = set()
    paths = load()["paths"]
    keys = [("", key) for key in paths["persistence"]["workspace"]]
    keys += [("^", key) for key in paths["persistence"]["home"]]
    for anchor, key in keys:
        parts = [_one_star(part) for part in key.strip("/").split("/")]
        # What lies below a folder of any name is covered by that folder's parent.
        known = parts.index("*") if "*" in parts else len(parts)
        whole = known == len(parts) and not key.endswith("/")
        chosen.add(anchor + ("=" if whole else "") + "/".join(parts[:known]))
        chosen |= {f"{anchor}=" + "/".join(parts[:count]) for count in range(1, known)}
    return tuple(sorted(chosen))


def _one_star(part: str) -> str:
    """The guard's patterns have one `*`, at an end."""
    if part.count("*") == 0 or (part.count("*") == 1 and (part[0] == "*" or part[-1] == "*")):
        return part
    return part.split("*", 1)[0] + "*"
