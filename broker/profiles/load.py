"""Find profiles, and turn their tables into Profile values.

In: a name, folders to search, the workspace. Out: a Profile, or a ProfileError that says what to do. The
folders are tiers: a name in an earlier one hides the same name in a later one. A file that cannot be used
stops the search in its tier, because nobody can say what it was meant to define or to hide.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from broker.decide.profile import Profile
from broker.errors import ProfileError
from broker.profiles.errors import (
    ProfileDuplicate,
    ProfileInvalid,
    ProfileNameInvalid,
    ProfileNotFound,
    ProfileUnreadable,
)
from broker.profiles.normalise import profile_from
from broker.profiles.schema import NAME, Source, decode_file, decode_profile
from broker.profiles.secure_open import Rules, list_operator_folder, read_operator_file, unreadable
from broker.profiles.suggest import closest
from broker.values import dataclass

SYSTEM_FOLDER = Path("/etc/broker/profiles")
_SUFFIXES = (".toml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenProfile:
    """A profile, or a whole file (then `name` is empty), that cannot be used, and why."""

    name: str
    source: Path
    error: ProfileError


class Tier(NamedTuple):
    """A folder that is searched. `given`: somebody named it, so it must exist. `shipped`: ours."""

    folder: Path
    given: bool = False
    shipped: bool = False


def user_folder() -> Path:
    """Return the folder of the current user's own profiles."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative path there is to be ignored (XDG Base Directory Specification).
    base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    return base / "broker" / "profiles"


def shipped_folder() -> Path:
    """Return the folder of the profiles that come with the broker, installed or in a source tree."""
    installed = Path(__file__).resolve().parent / "shipped"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "profiles"


def tiers(profile_dirs: Sequence[Path | str] = ()) -> tuple[Tier, ...]:
    """Return the folders in the order in which they are searched."""
    given = [Tier(folder=Path(os.path.abspath(folder)), given=True) for folder in profile_dirs]
    return (
        *given,
        Tier(folder=SYSTEM_FOLDER),
        Tier(folder=user_folder()),
        Tier(folder=shipped_folder(), shipped=True),
    )


def load_profile(
    name: str, *, profile_dirs: Sequence[Path | str] = (), workspace: Path | str | None = None
) -> Profile:
    """Return the profile called `name` from the first folder that has it.

    Raises ProfileError; its subclasses in broker.profiles.errors say what is wrong, and what to do.
    """
    if not NAME.fullmatch(name):
        raise ProfileNameInvalid(name)
    searched = tiers(profile_dirs)
    known: list[str] = []
    for tier in searched:
        found: dict[str, tuple[Path, Source, dict[str, Any]]] = {}
        for path, source, name_here, table in _tables(tier, _rules(tier, workspace)):
            if name_here in found:
                raise ProfileDuplicate(name_here, found[name_here][0], path)
            found[name_here] = (path, source, table)
        if name in found:
            path, source, table = found[name]
            return profile_of(source, name, table)
        known.extend(found)
    names = sorted(set(known))
    raise ProfileNotFound(name, names, closest(name, names), [tier.folder for tier in searched])


def list_profiles(
    *, profile_dirs: Sequence[Path | str] = (), workspace: Path | str | None = None
) -> tuple[Profile | BrokenProfile, ...]:
    """Return every profile that a name leads to, and whatever is broken, with its error."""
    found: dict[str, Profile | BrokenProfile] = {}
    broken: list[BrokenProfile] = []
    for tier in tiers(profile_dirs):
        rules = _rules(tier, workspace)
        here: dict[str, Profile | BrokenProfile] = {}
        try:
            paths = _files(tier, rules)
        except ProfileError as error:
            broken.append(BrokenProfile(name="", source=tier.folder, error=error))
            continue
        for path in paths:
            for each in load_file(path, rules):
                if isinstance(each, BrokenProfile) and not each.name:
                    broken.append(each)
                elif each.name in here:
                    duplicate = ProfileDuplicate(each.name, Path(here[each.name].source), path)
                    here[each.name] = BrokenProfile(name=each.name, source=path, error=duplicate)
                else:
                    here[each.name] = each
        found = here | found
    return (*(found[name] for name in sorted(found)), *broken)


def load_file(path: Path, rules: Rules) -> tuple[Profile | BrokenProfile, ...]:
    """Return every profile of one file. A file that cannot be read is one BrokenProfile without a name."""
    try:
        source, tables = decode_at(path, rules)
    except ProfileError as error:
        return (BrokenProfile(name="", source=path, error=error),)
    profiles: list[Profile | BrokenProfile] = []
    for name, table in tables.items():
        try:
            profiles.append(profile_of(source, name, table))
        except ProfileError as error:
            profiles.append(BrokenProfile(name=name, source=path, error=error))
    return tuple(profiles)


def profile_of(source: Source, name: str, table: dict[str, Any]) -> Profile:
    """Return the profile that one table of a file means. Raises ProfileError."""
    # The examples of our own are tried by our tests: a refusal from cold is not to pay for them each time.
    examples = source.path.parent != shipped_folder()
    return profile_from(source, name, decode_profile(source, name, table), examples=examples)


def load_any(
    word: str, *, profile_dirs: Sequence[Path | str] = (), workspace: Path | str | None = None
) -> Profile:
    """Return a profile by its name, or from a file: PATH, or PATH:NAME where it holds several.

    What holds a `/`, or ends as a profile's file does, is a path. Raises ProfileError.
    """
    return _find(word, profile_dirs, workspace)[0]


def load_with_source(word: str, *, profile_dirs: Sequence[Path | str] = ()) -> tuple[Profile, Source]:
    """Return what `load_any` does, and the text it came from."""
    profile, source = _find(word, profile_dirs, None)
    if source is None:
        path = Path(profile.source)
        shipped = Tier(shipped_folder(), shipped=path.parent == shipped_folder())
        source, _ = decode_at(path, _rules(shipped, None))
    return profile, source


def _find(
    word: str, profile_dirs: Sequence[Path | str], workspace: Path | str | None
) -> tuple[Profile, Source | None]:
    path, _, name = word.rpartition(":") if NAME.fullmatch(word.rpartition(":")[2]) else (word, "", "")
    if not path or (not os.path.exists(path) and os.path.exists(word)):
        path, name = word, ""
    if "/" not in path and not path.endswith(_SUFFIXES):
        return load_profile(word, profile_dirs=profile_dirs, workspace=workspace), None
    source, tables = decode_at(Path(os.path.abspath(path)), rules_for(workspace))
    names = sorted(tables)
    if not name and len(names) > 1:
        raise ProfileInvalid(source.path, f"it holds {', '.join(names)}. Say which: {path}:{names[0]}")
    name = name or names[0]
    if name not in tables:
        raise ProfileNotFound(name, names, closest(name, names), [source.path])
    return profile_of(source, name, tables[name]), source


def _rules(tier: Tier, workspace: Path | str | None) -> Rules:
    # Whoever can write the shipped profiles can write the broker itself, which lies beside them. To ask more
    # of them than of the program would only refuse every source tree made under umask 002.
    rules = rules_for(workspace, others_may_write=tier.shipped)
    # No place is better for ours than where they are: it is the workspace that must be another.
    return replace(rules, remedy_folder=tier.folder) if tier.shipped else rules


def rules_for(workspace: Path | str | None, *, others_may_write: bool = False) -> Rules:
    """Return the rules for an operator's files, given the workspace they must not lie in."""
    folder = Path(workspace) if workspace is not None else None
    remedy = SYSTEM_FOLDER if os.geteuid() == 0 else user_folder()
    return Rules(workspace=folder, remedy_folder=remedy, others_may_write=others_may_write)


def _files(tier: Tier, rules: Rules) -> list[Path]:
    if not _exists(tier):
        return []
    try:
        names = list_operator_folder(tier.folder, rules)
    except FileNotFoundError:
        return []
    return [tier.folder / name for name in names if name.endswith(_SUFFIXES) and not name.startswith(".")]


def _exists(tier: Tier) -> bool:
    """Tell whether the folder is there. One that cannot be looked at is an error, not an absence."""
    try:
        os.stat(tier.folder)
    except (FileNotFoundError, NotADirectoryError):
        if tier.given:
            raise ProfileUnreadable(
                tier.folder, "there is no such folder", "Check what --profile-dir names"
            ) from None
        return False
    except OSError as error:
        raise unreadable(tier.folder, error) from error
    return True


def decode_at(path: Path, rules: Rules) -> tuple[Source, dict[str, dict[str, Any]]]:
    """Return the tables of the file at `path`, not yet decoded. Raises ProfileError."""
    try:
        content, _ = read_operator_file(path, rules)
    except FileNotFoundError:
        raise ProfileInvalid(path, "there is no such file (or it is a link that leads nowhere)") from None
    return decode_file(path, content)


def _tables(tier: Tier, rules: Rules) -> Iterator[tuple[Path, Source, str, dict[str, Any]]]:
    for path in _files(tier, rules):
        source, tables = decode_at(path, rules)
        for name, table in tables.items():
            yield path, source, name, table
