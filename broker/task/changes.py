"""A task's changes, judged: what lands, what is withheld and why, what is a conflict.

In: the layer's changes and the task's envelope. Out: each change with its verdict. The judge is the same as the one at
the gate: a change is an operation, with its old and new content where the path alone cannot tell. What a grant lets the
programs below it write may land too: the layer does not tell who wrote what.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from broker.classify import classify
from broker.classify.contents import MAX_CONTENT, looks_into
from broker.classify.context import Context
from broker.classify.plain_names import is_plain
from broker.classify.risk import Risk
from broker.decide.decide import decide
from broker.decide.envelope import Envelope
from broker.decide.refusal import nobody_to_ask
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer
from broker.enforce import layer as layers
from broker.enforce.beneath import open_beneath
from broker.enforce.changes import Change, Kind, Thing
from broker.request.operation import FileAction, FileChange
from broker.task.together import folders_above, held_back
from broker.values import dataclass

_MAKES_A_REPOSITORY = ("HEAD", "objects", "refs", "commondir")
MOST_NAMES = 100  # of one path: links may lead to one another
SHOWN = 1_000  # changes of each kind that a result lists; the rest are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A change that does not land, and why."""

    change: Change
    denial: Deny


@dataclass(slots=True)
class Judged:
    """A task's changes, sorted by what becomes of them."""

    landing: list[Change] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    conflicts: list[tuple[Change, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.landing or self.withheld or self.conflicts)


class ChangeJudge:
    """Judges the changes of one layer under one envelope. `grants`: those that were opened in the task."""

    def __init__(
        self, layer: layers.Layer, envelope: Envelope, context: Context, grants: Iterable[Grant] = (),
        keep: Iterable[str] = (), aliases: Iterable[tuple[str, str]] = (),
    ) -> None:  # fmt: skip
        """`keep` are paths that must stay as they are, whatever the profile says: broker's own files.

        `aliases` are other names that paths had before the task began, through a link or a setting: (path, name).
        """
        self._layer = layer
        self._envelope = envelope
        self._context = context
        self._grants = tuple(grants)
        self._keep = tuple(keep)
        # (part, folder, kind) of plain files that may land: what is true of one is true of its neighbours.
        self._permitted: set[tuple[int, str, Kind]] = set()
        self._repositories: dict[tuple[int, str], bool] = {}
        self._aliases: dict[str, list[str]] = {}
        for path, name in aliases:
            self._aliases.setdefault(path, []).append(name)

    def judge(self, changes: Iterable[Change]) -> Judged:
        """Sort the changes. What lies in a folder that does not land does not land either, and the other way round."""
        judged = Judged()
        for change in changes:
            if change.never:
                judged.withheld.append(Withheld(change=change, denial=never(change, self.path(change))))
            elif change.conflict:
                judged.conflicts.append((change, change.conflict))
            else:
                denial = self.verdict(change)
                if denial is None:
                    judged.landing.append(change)
                else:
                    judged.withheld.append(Withheld(change=change, denial=denial))
        hold_together(judged)
        return judged

    def verdict(self, change: Change) -> Deny | None:
        """Return why a change may not land, or None."""
        if self._keep and self._is_ours(change):
            return Deny(
                what=f"{change.kind} {self.path(change)}", effects=frozenset({Risk.PERSISTENCE}), layer=Layer.LANDING,
                rule="landing.broker", reason="broker itself runs from there.", hint="Nothing: an operator changes broker.",
            )  # fmt: skip
        names = self._other_names(self.path(change)) if self._aliases else ()
        folder, _, name = change.path.rpartition("/")
        like_its_neighbours = (change.part, folder, change.kind) if change.thing is Thing.FILE and is_plain(name) and not names else None
        if like_its_neighbours in self._permitted:
            return None
        for path in (self._as_git_reads_it(change), *names):
            denial = self._denial(self._operation(change, path))
            if denial is not None:
                return _as_landing(change, self.path(change), denial)
        if like_its_neighbours is not None and not looks_into(self.path(change), self._context):
            self._permitted.add(like_its_neighbours)
        return None

    def _denial(self, operation: FileChange) -> Deny | None:
        assessment = classify(operation, self._context)
        refusal: Deny | Ask | None = None
        for scope in (None, *self._grants):
            answer = decide(operation, assessment, self._envelope, self._context, scope=scope)
            if isinstance(answer, Allow):
                return None
            refusal = refusal or answer
        assert refusal is not None
        return nobody_to_ask(operation, refusal) if isinstance(refusal, Ask) else refusal

    def _other_names(self, path: str) -> tuple[str, ...]:
        """Return the other names of a path: of itself, and of the folders above. A link may lead to a link."""
        known, pending = {path: True}, [path]
        while pending and len(known) < MOST_NAMES:
            here = pending.pop()
            for above in (here, *folders_above(here)):
                for name in self._aliases.get(above, ()):
                    other = name + here[len(above) :]
                    if other not in known:
                        known[other] = True
                        pending.append(other)
        return tuple(known)[1:]

    def path(self, change: Change) -> str:
        """Return the absolute path of a change."""
        return self._layer.path(change)

    def operation(self, change: Change) -> FileChange:
        """Return what a change is to the classifier."""
        return self._operation(change, self._as_git_reads_it(change))

    def _operation(self, change: Change, path: str) -> FileChange:
        """Return what a change is to the classifier if it is at this path."""
        if path.endswith("/.git") and not change.path.endswith(".git"):
            return FileChange(action=FileAction.WRITE, path=path, mode=stat.S_IFREG, landing=True)
        mode = change.new.mode if change.new is not None else 0
        match change.kind, change.thing:
            case Kind.DELETED, _:
                action = FileAction.DELETE
            case Kind.MODE, _:
                action = FileAction.MODE
            case Kind.TIMES, _ if not looks_into(path, self._context):  # of others the content decides: it is the same
                action = FileAction.TIMES
            case _, Thing.FOLDER:
                action = FileAction.MKDIR
            case _, Thing.LINK if looks_into(path, self._context):
                # What it leads to may change at any time, under a name of which nobody thinks that.
                return FileChange(action=FileAction.WRITE, path=path, mode=stat.S_IFREG, landing=True)
            case _, Thing.LINK:
                return FileChange(action=FileAction.SYMLINK, path=path, other=change.target, mode=mode, landing=True)
            case _:
                old, new = self._contents(change, path)
                return FileChange(action=FileAction.WRITE, path=path, old=old, new=new, mode=mode, landing=True)
        return FileChange(action=action, path=path, mode=mode, landing=True)

    def _as_git_reads_it(self, change: Change) -> str:
        """Return the path of a change; in a repository that is not called `.git`, the path that it would have in one.

        Git takes any folder with HEAD, objects and refs for a repository (or with HEAD and commondir: the others are
        where that says), and reads the configuration and the hooks of the one that somebody works in
        (gitrepository-layout(5)). The last of them makes one of a folder, whatever is in it already: each that is new is
        judged as a new `.git`.
        """
        words = change.path.split("/")
        if ".git" in words:
            return self.path(change)
        for depth in range(len(words) - 1, -1, -1):
            folder = "/".join(words[:depth])
            if self._is_repository(change.part, folder):
                rest = "/".join(words[depth:])
                place = f"{self._layer.real(change.part)}/{folder}".rstrip("/") + "/.git"
                return place if rest in _MAKES_A_REPOSITORY and change.kind is Kind.CREATED else f"{place}/{rest}"
        return self.path(change)

    def _is_repository(self, part: int, folder: str) -> bool:
        known = self._repositories.get((part, folder))
        if known is None:
            places = (self._layer.upper(part), self._layer.place(part))
            there = {name for name in _MAKES_A_REPOSITORY if any(_lies_in(place, f"{folder}/{name}") for place in places)}
            known = "HEAD" in there and ("commondir" in there or {"objects", "refs"} <= there)
            self._repositories[part, folder] = known
        return known

    def _contents(self, change: Change, path: str) -> tuple[bytes | None, bytes | None]:
        if not looks_into(path, self._context):
            return None, None
        new = _read(self._layer.upper(change.part), change.path)
        return (None if change.old is None else _read(self._layer.place(change.part), change.path)), new

    def _is_ours(self, change: Change) -> bool:
        path = self.path(change)
        return any(path == kept or path.startswith(kept + "/") or kept.startswith(path + "/") for kept in self._keep)


def never(change: Change, path: str) -> Deny:
    """Return the refusal of what nobody can land."""
    return Deny(
        what=f"{change.kind} {path}", effects=frozenset({Risk.BLOCKED}), layer=Layer.LANDING, rule="landing.never",
        reason=f"{change.never[:1].upper()}{change.never[1:]}: that never lands.",
        hint="Write plain files, folders, and links that stay in the workspace.",
    )  # fmt: skip


def _as_landing(change: Change, path: str, denial: Deny) -> Deny:
    """Say a refusal in the words of landing: what was changed, and who keeps it back."""
    return Deny(
        what=f"{change.kind} {path}", effects=denial.effects, layer=Layer.LANDING, rule=denial.rule, reason=denial.reason,
        hint="It is kept: the operator can look at it (broker diff) and land it (broker land)" + _for_good(denial) + ".",
        approvable=denial.approvable,
    )  # fmt: skip


def _for_good(denial: Deny) -> str:
    """Say how the profile would let this land every time, where it can and people do: for what git itself obeys, never."""
    if denial.effects != {Risk.PERSISTENCE} or ".git/" in denial.rule or denial.rule.startswith("contents.git-"):
        return ""
    return f', or let this land each time: land = {{allow = ["{denial.rule}"]}} in the profile'


def hold_together(judged: Judged) -> None:
    """Keep back what could not land for another path's sake.

    What is in a new folder that may not land does not land, and a folder out of which something may not be deleted
    stays. Where one thing took another's place both land or neither. And a new folder that would be empty because
    nothing in it may land is not made.
    """
    kept = [*((one.change, one.denial) for one in judged.withheld), *((change, None) for change, _ in judged.conflicts)]
    held = held_back(judged.landing, kept)
    if held:
        judged.landing = [change for change in judged.landing if change not in held]
    for change, (denial, why) in held.items():
        if denial is None:
            judged.conflicts.append((change, why))
        else:
            judged.withheld.append(Withheld(change=change, denial=denial))
    if kept:
        _without_hollow_folders(judged)


def _without_hollow_folders(judged: Judged) -> None:
    """Leave out new folders in which nothing lands but something was to."""
    emptied = {
        (change.part, above)
        for change in (*(one.change for one in judged.withheld), *(change for change, _ in judged.conflicts))
        for above in folders_above(change.path)
    }
    # A folder that was made empty is there for its own sake.
    filled = {
        (change.part, above)
        for change in judged.landing if not _is_new_folder(change) or (change.part, change.path) not in emptied
        for above in folders_above(change.path)
    }  # fmt: skip
    judged.landing = [
        change for change in judged.landing
        if not _is_new_folder(change) or (change.part, change.path) in filled or (change.part, change.path) not in emptied
    ]  # fmt: skip


def _is_new_folder(change: Change) -> bool:
    return change.kind is Kind.CREATED and change.thing is Thing.FOLDER


def _read(root: str, path: str) -> bytes | None:
    """Return a regular file's content for the classifier, or None when it is none, or too large to look into."""
    try:
        with _opened(root, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_CONTENT + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_CONTENT else None


def _lies_in(root: str, path: str) -> bool:
    with contextlib.suppress(OSError), _opened(root, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC):
        return True
    return False


@contextlib.contextmanager
def _opened(root: str, path: str, flags: int) -> Iterator[int]:
    """Open a path below a folder through no link: a task that still runs may put one in the way at any moment."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder, _, name = path.strip("/").rpartition("/")
        above = open_beneath(top, folder)
        try:
            descriptor = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        os.close(top)


def as_result(judged: Judged, landed: Iterable[Change], layer: layers.Layer, kept: str) -> dict[str, Any]:
    """Return `changes` of a result: what landed, what was withheld, what is in conflict; `kept` names the task."""

    def shown(change: Change) -> dict[str, Any]:
        path = layer.path(change)
        return {"path": os.path.relpath(path, layer.manifest.workspace) if change.part == 0 else path, "change": str(change.kind)}

    done = list(landed)
    return {
        "landed": [shown(change) for change in done[:SHOWN]],
        "withheld": [
            {**shown(one.change), "class": one.denial.risk.label, "rule": one.denial.rule, "reason": one.denial.reason,
             "approvable": one.denial.approvable}
            for one in judged.withheld[:SHOWN]
        ],
        "conflicts": [{**shown(change), "reason": why} for change, why in judged.conflicts[:SHOWN]],
        "counts": {"landed": len(done), "withheld": len(judged.withheld), "conflicts": len(judged.conflicts)},
        "kept": kept,
    }  # fmt: skip


def left_out(changes: Mapping[str, Any]) -> int:
    """Return how many changes of a result did not land."""
    counts = changes.get("counts", {})
    return int(counts.get("withheld", 0) + counts.get("conflicts", 0))
