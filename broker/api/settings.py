"""What a Broker is opened with: checked, and turned into a request of the supervisor.

In: what a caller wrote. Out: a RunRequest, or UsageError, or ProfileError. A profile made in code is the operator's own
word: whoever can call this interface could as well write the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from broker.api.values import Changes
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.errors import ProfileError, UsageError
from broker.supervisor import RunRequest

Command = Sequence[str | os.PathLike[str]]
Land = Literal["auto", "never", "on-plan"] | Callable[[Changes], bool]


class Options(TypedDict, total=False):
    """What may be said besides profile and workspace.

    `engine` is auto, docker or bubblewrap; `image` a Docker image; `trust` trusted or untrusted. `land` is auto (what the
    profile permits), never (all is kept), on-plan (all of it, if its plan is done on it), or a function that gets the changes that would land, and says whether.
    `profile_dirs` are searched for profiles first; `profiles` are further ones for sub-tasks, made in code. `state_dir` is
    where the journals are.
    """

    engine: Literal["auto", "docker", "bubblewrap"]
    image: str
    trust: Literal["trusted", "untrusted"]
    land: Land
    profile_dirs: Sequence[str | os.PathLike[str]]
    profiles: Sequence[Profile]
    state_dir: str | os.PathLike[str] | None


def request_for(
    argv: tuple[str, ...], profile: str | Profile, workspace: str | os.PathLike[str], *, engine: str = "auto",
    image: str = "", trust: str = "trusted", land: Land = "auto", profile_dirs: Sequence[str | os.PathLike[str]] = (),
    profiles: Sequence[Profile] = (), state_dir: str | os.PathLike[str] | None = None, **how: Any,
) -> RunRequest:  # fmt: skip
    """Return the request. `how` are further fields of it. Raises UsageError and ProfileError."""
    from dataclasses import replace

    if trust not in ("trusted", "untrusted"):
        raise UsageError(f"trust is trusted or untrusted, not {trust!r}")
    if not callable(land) and land not in ("auto", "never", "on-plan"):
        raise UsageError(f"land is auto, never, on-plan, or a function that says whether; not {land!r}")
    if isinstance(profile_dirs, (str, bytes)):
        raise UsageError(f"profile_dirs is a list of folders: [{profile_dirs!r}]")
    folder, folders = os.path.abspath(workspace), tuple(os.fspath(one) for one in profile_dirs)
    if isinstance(profile, str):
        from broker.profiles.load import load_profile

        profile = load_profile(profile, profile_dirs=folders, workspace=folder)
    if image:
        profile = replace(profile, sandbox=replace(profile.sandbox, image=image))
    return RunRequest(
        argv=argv, profile=_digested(profile), workspace=folder, engine=engine, trust=Trust.parse(trust),
        land="ask" if callable(land) else land, profile_dirs=folders, profiles=tuple(map(_digested, profiles)),
        state_dir=Path(state_dir).absolute() if state_dir is not None else None, **how,
    )  # fmt: skip


def _digested(profile: Profile) -> Profile:
    """Return a profile with its digest, which a record names it by: one that was put together by hand has none."""
    if not isinstance(profile, Profile):
        raise UsageError(f"a profile is a name, or what define_profile returns; not {type(profile).__name__}")
    if profile.digest:
        return profile
    from dataclasses import replace

    from broker.profiles.normalise import digest_of

    return replace(profile, digest=digest_of(profile))


def define_profile(name: str, **keys: Any) -> Profile:
    """Return a profile that is written in code: the keys are those of a profile file (docs/profiles.md).

    Raises ProfileError as a file would: for an unknown key, an unknown class, an example of `permits` that is not permitted.
    """
    import json

    from broker.profiles.errors import ProfileInvalid
    from broker.profiles.load import profile_of
    from broker.profiles.schema import decode_file

    try:
        text = json.dumps({"profiles": {name: keys}})
    except (TypeError, ValueError) as error:
        raise ProfileError(f"profile {name!r}, made in code: {error}") from None
    try:
        source, tables = decode_file(Path("code.json"), text.encode("utf-8", "surrogatepass"))
        return profile_of(source, name, tables[name])
    except ProfileInvalid as error:
        raise ProfileError(f"made in code: {error.problem}") from None


def words_of(command: Command) -> tuple[str, ...]:
    """Return a command's words. Raises UsageError for a text, which nobody splits here, and for what is no word."""
    if not isinstance(command, Sequence) or isinstance(command, (str, bytes)):
        raise UsageError('a command is a list of words: ["go", "test", "./..."], or ["bash", "-c", TEXT]')
    words = tuple(text_of(word, "each word of a command") for word in command)
    if not words or not words[0]:
        raise UsageError("a command has at least one word, and the first is not empty")
    return words


def text_of(value: object, what: str) -> str:
    """Return a text, or a path, that a program can be given. Raises UsageError that begins with `what`."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise UsageError(f"{what} must be text, not {type(value).__name__}")
    if "\0" in text:
        raise UsageError(f"{what} must be without NUL")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds half of a character (a lone surrogate), which has no form as bytes") from None
    return text
