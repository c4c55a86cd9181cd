"""Step 3: does an operation match an exact entry, or a denied prefix?

In: entries and what is asked. Out: the entry or prefix that matches, or None. Entries are exact: there are
no wildcards and no prefixes on the allowing side, and every doubt is "no match".
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from broker.classify.context import Context
from broker.classify.risk import Part, PartKind
from broker.decide.envelope import Envelope
from broker.decide.gateway import environment_for
from broker.decide.profile import AllowEntry, Profile
from broker.request.operation import Exec, Operation

# No entry is found in these, whatever the context says is writable: they are views of running processes.
_NEVER_PROGRAMS = ("/proc", "/dev", "/sys")


def entry_for_exec(
    profile: Profile, operation: Exec, context: Context, digest: str | None
) -> AllowEntry | None:
    """Return the profile's entry that this program start is, or None.

    INVARIANT: the program is outside everything the task can write to, is called what the entry calls it,
    and is started with an environment that changes nothing beyond what the profile itself sets
    (tests/decide/test_allowlist.py).
    """
    argv = operation.argv
    named_alike = [entry for entry in profile.allowlist if entry.argv == argv]
    if not named_alike or not _program_is_the_operators(operation, context):
        return None
    if not _environment_is_the_operators(operation, profile, context):
        return None
    for entry in named_alike:
        if _matches(entry, operation, context, digest):
            return entry
    return None


def _matches(entry: AllowEntry, operation: Exec, context: Context, digest: str | None) -> bool:
    program = entry.argv[0]
    # `exec -a go curl …` has the argv of an entry, but not its program.
    if posixpath.basename(operation.path) != posixpath.basename(program):
        return False
    if program.startswith("/") and operation.path != program:
        return False
    if entry.sha256 is not None and entry.sha256 != digest:
        return False
    return _cwd_fits(entry, operation.cwd or context.cwd, context.workspace)


def _program_is_the_operators(operation: Exec, context: Context) -> bool:
    if not operation.path.startswith("/") or not operation.program.startswith("/"):
        return False
    roots = (*_writable_places(context), *_NEVER_PROGRAMS)
    for path in (operation.path, operation.program):
        if any(is_under(spelling, root) for spelling in (path, posixpath.normpath(path)) for root in roots):
            return False
    return True


def _environment_is_the_operators(operation: Exec, profile: Profile, context: Context) -> bool:
    from broker.classify.environment import changes_what_runs  # reads the tables: only where it is needed

    set_by_profile = (*profile.env.set, *environment_for(profile.gateways, profile.hosts))
    added = tuple(pair for pair in operation.env if pair not in set_by_profile)
    return changes_what_runs(added, context) is None


def _writable_places(context: Context) -> tuple[str, ...]:
    """Return the writable roots, and what known links make of them."""
    roots = list(context.writable_roots)
    for link, target in context.symlinks:
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        for root in context.writable_roots:
            if is_under(root, link):
                roots.append(absolute + root[len(link.rstrip("/")) :])
    return tuple(roots)


def is_under(path: str, root: str) -> bool:
    """Tell whether `path` is `root` or lies below it, by its letters."""
    trimmed = root.rstrip("/")
    return path == (trimmed or "/") or path.startswith(trimmed + "/")


def _cwd_fits(entry: AllowEntry, cwd: str, workspace: str) -> bool:
    if not cwd.startswith("/"):
        return False
    here = posixpath.normpath(cwd)
    if entry.cwd is None:
        return is_under(here, posixpath.normpath(workspace))
    return here == posixpath.normpath(posixpath.join(workspace, entry.cwd))


def listed_parts(
    entries: Iterable[AllowEntry], operation: Operation, parts: Sequence[Part]
) -> frozenset[int]:
    """Return the indexes of the parts that an entry covers: the entry's own, and those wrapped in it.

    This is for parts that come to the exec gate again as a program start of their own, where
    `entry_for_exec` is the judge. A part that *is* the program start at hand has no second chance, so its
    letters do not cover it.
    """
    gated = operation if isinstance(operation, Exec) and operation.path else None
    if gated is not None and len(parts) == 1:
        return _NONE  # the program start at hand and nothing else: nearly every question of the gate
    wanted = {entry.argv for entry in entries}
    if not wanted:
        return _NONE  # what is covered lies in an entry
    covered: set[int] = set()
    for index, part in enumerate(parts):
        is_entry = part.kind is PartKind.COMMAND and part.static and part.argv in wanted
        if gated is not None and (index == 0 or part.argv == gated.argv):
            is_entry = False
        # A part stands after the one that it is wrapped in.
        if is_entry or (part.within is not None and part.within in covered):
            covered.add(index)
    return frozenset(covered)


_NONE: frozenset[int] = frozenset()


def denied_prefix(
    prefixes: Iterable[tuple[str, ...]], argv: Sequence[str], programs: Iterable[str] = ()
) -> tuple[str, ...] | None:
    """Return the denied prefix that `argv` starts with, or None.

    The program is compared by its file name, under every name it is known by (`programs`: paths that would
    really start).
    """
    if not argv and not any(programs):
        return None
    names = {posixpath.basename(name) for name in (*argv[:1], *programs) if name}
    for prefix in prefixes:
        rest = prefix[1:]
        if posixpath.basename(prefix[0]) in names and tuple(argv[1 : len(prefix)]) == rest:
            return prefix
    return None


def needs_digest(operation: Operation, envelope: Envelope) -> bool:
    """Tell whether some entry for this program start pins the program's SHA-256, so that it must be read."""
    if not isinstance(operation, Exec):
        return False
    argv = operation.argv
    level: Envelope | None = envelope
    while level is not None:
        for entry in level.profile.allowlist:
            if entry.sha256 is not None and entry.argv == argv:
                return True
        level = level.parent
    return False
