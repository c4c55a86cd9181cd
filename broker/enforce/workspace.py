"""Step 4: what of the host's file system a task sees as its workspace.

In: a folder and a profile's wishes. Out: the binds, what is protected (read-only over a writable workspace),
what is masked (secrets, shown empty), and what could not be looked at. Nothing is created in the user's tree.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from broker.enforce.aliases import Alias, of_git, within
from broker.enforce.engine import Bind
from broker.enforce.mounts import submounts
from broker.errors import UsageError
from broker.values import dataclass

# How many folders a survey opens: in seconds, on a slow machine. An earlier task may have made them, so that what lies
# behind them would not be found.
SURVEY_FOLDERS = 500_000
MODULE_DEPTH = 8
FORBIDDEN = ("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin",
             "/sys", "/tmp", "/usr", "/var", "/opt", "/srv", "/mnt", "/media", "/var/tmp", "/dev/shm")  # fmt: skip


class WorkspaceRefused(UsageError):
    """The folder cannot be a workspace."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be a workspace: {why}. Name another: --workspace DIR")
        self.path, self.why = path, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A surveyed workspace. Paths are absolute and real."""

    path: str
    uid: int
    gid: int
    read_only: bool
    protected: tuple[str, ...]
    masked: tuple[str, ...]
    git_folder: str = ""  # of a worktree or submodule, when it lies outside
    git_labelled: str = ""  # the folder that holds its `.git`; empty: no label fits, and it is shown read-only
    notes: tuple[str, ...] = ()
    overlay: bool = False
    aliases: tuple[Alias, ...] = ()  # other names of what is in it, which decide when a change lands
    secrets: tuple[tuple[str, str], ...] = ()  # what looks like one: its path, and the name that may be shown ('': none may)
    inner_mounts: tuple[str, ...] = ()  # other file systems below it, which an overlay does not show by itself

    def parts(self) -> tuple[str, ...]:
        """The folders that are shown copy-on-write."""
        if not self.overlay:
            return ()
        return (self.path, self.git_folder) if self.git_folder and self.git_labelled else (self.path,)

    def for_child(self, *, read_only: bool, shown: tuple[str, ...]) -> Workspace:
        """Return what a sub-task sees of it: copy-on-write or read-only, and no secret that this one does not show."""
        hidden = {path for path, name in self.secrets if not name or name not in shown}
        if self.read_only and not self.overlay:
            return replace(self, masked=tuple(sorted({*self.masked, *hidden})))
        inner = self.inner_mounts or submounts(self.path)
        return replace(
            self, read_only=read_only, overlay=True, inner_mounts=inner, masked=tuple(sorted({*self.masked, *hidden}))
        )

    def binds(self) -> Iterator[Bind]:
        """The binds, outer before inner."""
        if self.overlay:
            yield from (Bind(source=path, target=path) for path in self.inner_mounts)
            if self.git_folder and not self.git_labelled:
                yield Bind(source=self.git_folder, target=self.git_folder)
            return
        yield Bind(source=self.path, target=self.path, read_only=self.read_only)
        if self.git_folder:
            yield Bind(
                source=self.git_folder, target=self.git_folder, read_only=self.read_only or not self.git_labelled
            )
        if not self.read_only:
            for path in self.protected:
                yield Bind(source=path, target=path)


def survey(path: str, *, mode: str = "direct", shown: tuple[str, ...] = ()) -> Workspace:
    """Look at a folder that is to be a workspace. Raises WorkspaceRefused with the reason.

    `mode` is overlay, direct or read-only. Only a direct workspace needs its protected paths found, but secrets are
    looked for in each.
    """
    real = os.path.realpath(path)
    try:
        facts = os.stat(real)
    except OSError as error:
        raise WorkspaceRefused(path, os.strerror(error.errno or 0)) from None
    _refuse_unsuitable(real, facts.st_uid)
    notes: list[str] = []
    git_folder = _outside_git_folder(real, notes)
    protected: list[str] = []
    secrets: list[tuple[str, str]] = []
    own = broker_itself(real)
    if own:
        how = "changes never land" if mode == "overlay" else "read-only"
        notes.append(f"{', '.join(own)}: {how}, because broker itself runs from there")
    labelled = _holder_of_git(git_folder)
    if git_folder and not labelled:
        notes.append(f"{git_folder} is shown read-only (it is not called .git): git cannot commit")
    names: list[Alias] = []
    for root in (real, git_folder) if git_folder else (real,):
        found, here, complete = _look_through(root, names, protect=mode != "overlay")
        if not complete:
            raise WorkspaceRefused(root, f"it has more than {SURVEY_FOLDERS:,} folders, too many to look for secrets in")
        protected += found
        secrets += here
    masked = {path for path, name in secrets if not name or name not in shown}
    inner = submounts(real) if mode == "overlay" else ()
    if inner:
        notes.append(f"{', '.join(inner)}: another file system, shown read-only")
    return Workspace(
        path=real, uid=facts.st_uid, gid=facts.st_gid, read_only=mode == "read-only", overlay=mode == "overlay",
        inner_mounts=inner, aliases=within((real, git_folder), names), protected=tuple(sorted({*protected, *own})),
        masked=tuple(sorted(masked)), secrets=tuple(sorted(set(secrets))), git_folder=git_folder, git_labelled=labelled, notes=tuple(notes),
    )  # fmt: skip


def _holder_of_git(folder: str) -> str:
    """Return the folder above the `.git` in a path, or '': labels know hooks and config by that name."""
    before, found, after = folder.partition("/.git")
    return before if found and before and (not after or after.startswith("/")) else ""


def keep_out(workspace: Workspace, places: Mapping[str, str | os.PathLike[str]]) -> None:
    """Refuse a workspace in which the broker keeps something: a task could rewrite what is said of it.

    `places`: what it is, and where. Raises WorkspaceRefused.
    """
    for what, where in places.items():
        place = os.path.realpath(where)
        for shown in filter(None, (workspace.path, workspace.git_folder)):
            if place == shown or place.startswith(shown + "/") or shown.startswith(place + "/"):
                raise WorkspaceRefused(workspace.path, f"{what} of broker ({place}) would be in its reach")


def broker_itself(workspace: str) -> list[str]:
    """Return the folders of the workspace that hold this program: what a task wrote there would run outside."""
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    places = {package, os.path.join(os.path.dirname(package), "profiles"), os.path.realpath(sys.prefix)}
    return sorted(place for place in places if place.startswith(workspace + "/") and os.path.exists(place))


def _refuse_unsuitable(real: str, owner: int) -> None:
    if not os.path.isdir(real):
        raise WorkspaceRefused(real, "it is not a folder")
    if real in FORBIDDEN:
        raise WorkspaceRefused(real, "it belongs to the system")
    for home, whose in ((os.path.expanduser("~"), "your"), (_home_of(owner), "its owner's")):
        home = os.path.realpath(home)
        if home != "/" and (home == real or home.startswith(real + "/")):
            raise WorkspaceRefused(real, f"it is {whose} home, with keys and settings in it")
    for top in ("/proc/", "/sys/", "/dev/", "/usr/", "/etc/", "/boot/"):
        if real.startswith(top) and not real.startswith("/dev/shm/"):
            raise WorkspaceRefused(real, "it lies in a folder of the system")


def _home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir or "/"
    except KeyError:
        return "/"  # nobody's


def _look_through(
    root: str, names: list[Alias], *, protect: bool
) -> tuple[list[str], list[tuple[str, str]], bool]:
    """Walk the folders for secrets and (`protect`) for protected paths, without following links.

    What links lead to is added to `names`. A secret comes with the name by which an operator may show it.
    """
    from broker.classify.paths import is_secret, protected_paths, secrets_among

    patterns = [pattern.split("/") for pattern in protected_paths("persistence")] if protect else []
    first = {words[0].lower(): [] for words in patterns}  # type: dict[str, list[list[str]]]
    for words in patterns:
        first[words[0].lower()].append(words)
    masked: list[tuple[str, str]] = []
    protected, doors = _inside_git(root) if _holder_of_git(root) else ([], [])
    protected += _of_git_itself(root, patterns)
    if os.path.basename(root) == ".git":
        names += of_git(root)
    masked += [(door, "") for door in doors]
    folders = [root]
    opened = 0
    while folders:
        folder = folders.pop()
        opened += 1
        if opened > SURVEY_FOLDERS:
            return protected, masked, False
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        files = []
        for entry in entries:
            for words in first.get(entry.name.lower(), ()) if protect else ():
                if words == [".git"] and entry.is_dir():
                    continue  # only a file of this name points git somewhere else
                target = os.path.join(folder, entry.name, *words[1:])
                real = os.path.realpath(target)
                # A link that leads out of the workspace shows nothing of the workspace.
                if os.path.exists(target) and (real == root or real.startswith(root + "/")):
                    protected.append(real)
            if entry.is_dir(follow_symlinks=False):
                if entry.name == ".git":
                    names += of_git(entry.path)
                    found, doors = _inside_git(entry.path)
                    protected += found
                    masked += [(door, "") for door in doors]
                elif entry.name not in ("node_modules", "__pycache__"):
                    folders.append(entry.path)
            elif entry.is_symlink():
                # A link called like a secret: what it leads to is the secret, whatever that is called.
                real = os.path.realpath(entry.path)
                names.append((real, entry.path))
                if is_secret(entry.path) and real.startswith(root + "/") and os.path.isfile(real):
                    masked.append((real, entry.name))
            elif not entry.is_file(follow_symlinks=False):
                # A program of the host listens at this socket, or reads this pipe: it is a door, not a file.
                if _is_door(entry):
                    masked.append((entry.path, ""))
            else:
                files.append(entry.name)
        masked += [(os.path.join(folder, name), name) for name in secrets_among(files)]
    return sorted(set(protected)), sorted(set(masked)), True


def _of_git_itself(root: str, patterns: list[list[str]]) -> list[str]:
    """Return what is protected in a root that is a git folder itself: the patterns, from `.git` on."""
    holder = _holder_of_git(root)
    if not holder:
        return []
    inside = os.path.relpath(root, holder).split("/")
    targets = []
    for words in patterns:
        fits = len(words) > len(inside) and all(w in ("*", i) for w, i in zip(words, inside, strict=False))
        if fits and "*" not in words[len(inside) :]:
            targets.append(os.path.join(root, *words[len(inside) :]))
    return [target for target in targets if os.path.exists(target) and os.path.realpath(target) == target]


def _is_door(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


# What a repository below `.git/modules` or `.git/worktrees` has of its own, at whatever depth its name puts it.
_OF_MODULE = ("hooks", "config", "config.worktree", "commondir", "info/attributes", "objects/info/alternates")


def _inside_git(git: str) -> tuple[list[str], list[str]]:
    """Look into a `.git`: what of its submodules and worktrees is protected, and the doors in it."""
    protected: list[str] = []
    doors: list[str] = []
    for folder, names, files in os.walk(git):
        depth = folder[len(git) :].count("/")
        names[:] = [name for name in names if depth or name in ("modules", "worktrees")]
        if "HEAD" in files and folder != git:
            protected += [f"{folder}/{name}" for name in _OF_MODULE if os.path.exists(f"{folder}/{name}")]
            names[:] = [name for name in names if name in ("modules", "worktrees")]
        doors += [f"{folder}/{name}" for name in files if name.endswith(".ipc")]  # git's own fsmonitor listens there
        if depth > MODULE_DEPTH:
            names[:] = []
    return protected, doors


_GITDIR = re.compile(r"gitdir:\s*(.+?)\s*\Z")


def _outside_git_folder(workspace: str, notes: list[str]) -> str:
    """Return the git folder of a worktree or submodule whose `.git` is a file, when it lies outside.

    The file is in the workspace, so an earlier task may have written it: a folder is shown only if git's own
    records *there* point back at this workspace.
    """
    link = Path(workspace, ".git")
    if not link.is_file():
        return ""
    match = _GITDIR.match(link.read_text(encoding="utf-8", errors="surrogateescape")[:4096])
    if not match:
        return ""
    folder = os.path.realpath(os.path.join(workspace, match.group(1)))
    if folder.startswith(workspace + "/"):
        return ""
    common = _common_folder(folder, workspace)
    if common is None:
        notes.append(f"git will not work: {folder} does not point back at this workspace, so it is not shown")
        return ""
    return common


def _common_folder(folder: str, workspace: str) -> str | None:
    """Return the folder to show for a git folder, or None if it does not belong to this workspace."""
    try:
        back = Path(folder, "gitdir").read_text(encoding="utf-8", errors="surrogateescape").strip()
        common = os.path.realpath(os.path.join(folder, Path(folder, "commondir").read_text().strip()))
    except OSError:
        pass
    else:
        points_back = os.path.realpath(back) == os.path.join(workspace, ".git")
        ours = points_back and os.path.dirname(folder) == common + "/worktrees" and _is_repository(common, workspace)
        return common if ours else None
    try:
        config = Path(folder, "config").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    match = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", config, re.MULTILINE)
    if match is None or os.path.realpath(os.path.join(folder, match.group(1))) != workspace:
        return None
    return folder if _is_repository(folder, workspace) else None


def _is_repository(folder: str, workspace: str) -> bool:
    """Whether this is a git repository of the workspace's owner, and no more than one.

    What points back may have been written by a task in another workspace: a folder that calls itself a worktree
    of `~/projects` would show all of them. Git itself asks for these three (gitrepository-layout(5)).
    """
    try:
        same_owner = os.stat(folder).st_uid == os.stat(workspace).st_uid
    except OSError:
        return False
    has_all = os.path.isfile(f"{folder}/HEAD") and os.path.isdir(f"{folder}/objects") and os.path.isdir(f"{folder}/refs")
    return same_owner and has_all and not os.path.islink(f"{folder}/objects")
