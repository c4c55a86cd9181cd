"""Step 4: what of the host's file system a task sees as its workspace.

In: a folder and a profile's wishes. Out: the binds, what is protected (read-only over a writable workspace),
what is masked (secrets, shown empty), and what could not be looked at. Nothing is created in the user's tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.enforce.engine import Bind
from broker.errors import UsageError

# How many folders a survey opens before it stops; what lies deeper is protected by file labels alone.
SURVEY_FOLDERS = 20_000
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
    notes: tuple[str, ...] = ()

    def binds(self) -> Iterator[Bind]:
        """The binds, outer before inner."""
        yield Bind(source=self.path, target=self.path, read_only=self.read_only)
        if self.git_folder:
            yield Bind(source=self.git_folder, target=self.git_folder, read_only=self.read_only)
        if not self.read_only:
            for path in self.protected:
                yield Bind(source=path, target=path)


def survey(path: str, *, read_only: bool, shown: tuple[str, ...] = ()) -> Workspace:
    """Look at a folder that is to be a workspace. Raises WorkspaceRefused with the reason."""
    real = os.path.realpath(path)
    try:
        facts = os.stat(real)
    except OSError as error:
        raise WorkspaceRefused(path, os.strerror(error.errno or 0)) from None
    _refuse_unsuitable(real)
    notes: list[str] = []
    git_folder = _outside_git_folder(real, notes)
    protected, masked = [], []
    for root in (real, git_folder) if git_folder else (real,):
        found, secrets, complete = _look_through(root, shown)
        protected += found
        masked += secrets
        if not complete:
            notes.append(
                f"{root} has more than {SURVEY_FOLDERS} folders: beyond them, file labels alone protect hooks and secrets"
            )
    return Workspace(
        path=real, uid=facts.st_uid, gid=facts.st_gid, read_only=read_only, protected=tuple(sorted(protected)),
        masked=tuple(sorted(masked)), git_folder=git_folder, notes=tuple(notes),
    )  # fmt: skip


def _refuse_unsuitable(real: str) -> None:
    if not os.path.isdir(real):
        raise WorkspaceRefused(real, "it is not a folder")
    if real in FORBIDDEN:
        raise WorkspaceRefused(real, "it belongs to the system")
    home = os.path.realpath(os.path.expanduser("~"))
    if home == real or home.startswith(real + "/"):
        raise WorkspaceRefused(real, "it is your home, with your keys and settings in it")
    for top in ("/proc/", "/sys/", "/dev/", "/usr/", "/etc/", "/boot/"):
        if real.startswith(top) and not real.startswith("/dev/shm/"):
            raise WorkspaceRefused(real, "it lies in a folder of the system")


def _look_through(root: str, shown: tuple[str, ...]) -> tuple[list[str], list[str], bool]:
    """Walk the folders for protected paths and secrets, without following links."""
    from broker.classify.paths import is_secret, protected_paths

    patterns = [pattern.split("/") for pattern in protected_paths("persistence")]
    first = {words[0].lower(): [] for words in patterns}  # type: dict[str, list[list[str]]]
    for words in patterns:
        first[words[0].lower()].append(words)
    protected: list[str] = []
    masked: list[str] = []
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
        for entry in entries:
            for words in first.get(entry.name.lower(), ()):
                target = os.path.join(folder, entry.name, *words[1:])
                real = os.path.realpath(target)
                # A link that leads out of the workspace shows nothing of the workspace.
                if os.path.exists(target) and (real == root or real.startswith(root + "/")):
                    protected.append(real)
            if entry.is_dir(follow_symlinks=False):
                if entry.name == ".git":
                    folders += _git_module_folders(entry.path)
                elif entry.name not in ("node_modules", "__pycache__"):
                    folders.append(entry.path)
            elif entry.name not in shown and is_secret(entry.path) and entry.is_file(follow_symlinks=False):
                masked.append(entry.path)
    return sorted(set(protected)), sorted(set(masked)), True


def _git_module_folders(git: str) -> list[str]:
    """A repository's submodules keep their hooks and config below .git/modules."""
    return []


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
        return common if points_back and folder.startswith(common + "/worktrees/") else None
    try:
        config = Path(folder, "config").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    match = re.search(r"^\s*worktree\s*=\s*(.+?)\s*$", config, re.MULTILINE)
    if match and os.path.realpath(os.path.join(folder, match.group(1))) == workspace:
        return folder
    return None
