"""What can be wrong with an operator's file. Each error owns its wording: what, why, and what to do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from broker.errors import ProfileError


def quoted(path: Path | str) -> str:
    """Return the path as a shell takes it."""
    return shlex.quote(str(path))


class ProfileNotFound(ProfileError):
    """No file that is searched defines this profile."""

    def __init__(self, name: str, known: Sequence[str], closest: str | None, places: Sequence[Path]) -> None:
        meant = f" Did you mean {closest}?" if closest else ""
        have = f"Known profiles: {', '.join(known)}." if known else "No profile is known at all."
        searched = ", ".join(str(place) for place in places)
        super().__init__(f"there is no profile {name!r}.{meant} {have} Searched: {searched}")
        self.name, self.known, self.closest = name, tuple(known), closest


class ProfileNameInvalid(ProfileError):
    """A name that no profile can have, a path for instance."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} cannot be a profile's name: use lower-case letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit. To use a profile from another folder, add --profile-dir FOLDER"
        )
        self.name = name


class ProfileInvalid(ProfileError):
    """The content of a file is not what a profile file may hold."""

    def __init__(
        self, path: Path | str, problem: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        where = f"{path}:{line}" if line else str(path)
        super().__init__(f"{where}: {problem}")
        self.path, self.problem, self.line, self.column = Path(path), problem, line, column


class ProfileDuplicate(ProfileError):
    """Two files of one folder define one name, so that nobody can say which counts."""

    def __init__(self, name: str, first: Path, second: Path) -> None:
        super().__init__(
            f"profile {name!r} is defined twice: in {first} and in {second}. Remove or rename one of them"
        )
        self.name, self.first, self.second = name, first, second


class ProfileUnreadable(ProfileError):
    """A file or folder of profiles cannot be opened."""

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        super().__init__(f"{path} cannot be read: {why}. {remedy}")
        self.path, self.why = path, why


class ProfileWritableByOthers(ProfileError):
    """An operator's file that somebody else can edit, or replace, is not an operator's file."""

    def __init__(self, path: Path, mode: int, wanted: Path) -> None:
        because = "" if path == wanted else f", so others could replace {wanted}"
        super().__init__(
            f"{path} is writable by group or others (mode {mode:04o}){because}. "
            f"Run: chmod go-w {quoted(path)}"
        )
        self.path, self.mode, self.wanted = path, mode, wanted


class ProfileOwnedByOthers(ProfileError):
    """The file, or a folder or link on the way to it, belongs to neither root nor the current user."""

    def __init__(self, path: Path, owner: int, user: int, wanted: Path, *, link: bool = False) -> None:
        because = "" if path == wanted else f", who could replace {wanted}"
        new_owner = "root" if user == 0 else str(user)
        sudo = "" if user == 0 else "sudo "
        option = "-h " if link else ""
        super().__init__(
            f"{path} belongs to user {owner}{because}; it must belong to root or to you (user {user}). "
            f"If you trust what it says, run: {sudo}chown {option}{new_owner} {quoted(path)}"
        )
        self.path, self.owner, self.wanted = path, owner, wanted


class ProfileInWorkspace(ProfileError):
    """A task could edit the file that is to bind it."""

    def __init__(self, path: Path, workspace: Path, home: Path) -> None:
        inside = Path(os.path.realpath(workspace))
        problem = f"{path} is reached through the workspace {inside}, where the task could change it"
        if any(Path(os.path.realpath(place)).is_relative_to(inside) for place in (home, Path.home())):
            # A home, or more, as workspace: no copy would lie outside it.
            problem = f"{inside} cannot be a workspace: profiles are in it ({path}), and the task could change them"
            remedy = "Give the task another folder, one that holds no profiles: --workspace DIR"
        elif path.is_dir():
            remedy = f"Run: mkdir -p {quoted(home)}, and move the profiles there"
        else:
            remedy = f"Run: mkdir -p {quoted(home)} && cp {quoted(path)} {quoted(home)}/"
        super().__init__(f"{problem}. {remedy}")
        self.path, self.workspace = path, workspace
