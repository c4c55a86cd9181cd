"""Where the programs of a profile's entries are: in the image that its tasks start from, or on this host.

In: a Profile. Out: what `broker.profiles.check` asks for a name. An image is looked into without starting anything:
a container is created, asked for files, and removed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import APIClient

    from broker.decide.profile import Profile
    from broker.profiles.check_entries import Installed


def finder(where: str) -> Callable[[Profile], Installed | None]:
    """Return the look-up for `auto`, `host`, `image` or `no`. Nothing is asked before an entry needs it."""

    def look(profile: Profile) -> Installed | None:
        if where == "no" or not profile.allowlist:
            return None
        image = _image(profile, insist=where == "image") if where in {"auto", "image"} else None
        return image or _host(profile)

    return look


def _host(profile: Profile) -> Installed:
    from broker.enforce.confinement import PATH
    from broker.profiles.check_entries import Installed

    # What bubblewrap shows is the system's folders and what the profile adds, never a home.
    path = dict(profile.env.set).get("PATH", PATH)

    def has(program: str) -> bool:
        return any(os.path.isfile(place) and os.access(place, os.X_OK) for place in _places(program, path))

    return Installed("on this host", has)


def _image(profile: Profile, *, insist: bool) -> Installed | None:
    """Return the look-up in the image, or None where bubblewrap would be taken."""
    from broker.enforce.choose import choose_engine
    from broker.errors import HostCannotEnforce

    try:
        engine, _ = choose_engine("docker" if insist else "auto", profile)
    except HostCannotEnforce:
        if insist:
            raise
        return None
    if engine.name != "docker":
        return None
    from broker.enforce.confinement import PATH
    from broker.enforce.docker_api import connect, engine_address
    from broker.enforce.images import image_for
    from broker.profiles.check_entries import Installed

    name = profile.sandbox.image or "base"
    tag = image_for(name)
    if tag is None:
        return None
    path = dict(profile.env.set).get("PATH", PATH)
    wanted = sorted({entry.argv[0] for entry in profile.allowlist})
    found = _in_image(connect(engine_address()), tag, {program: _places(program, path) for program in wanted})
    return Installed(f"in the image {name}", lambda program: program in found)


def _places(program: str, path: str) -> list[str]:
    if "/" in program:
        return [program]
    return [posixpath.join(folder, program) for folder in path.split(":") if folder]


def _in_image(client: APIClient, tag: str, wanted: dict[str, list[str]]) -> frozenset[str]:
    """Return those programs of which a file is in the image. The container is never started."""
    container = client.create_container(tag, command=["true"], network_disabled=True)["Id"]
    try:
        url = client._url("/containers/{0}/archive", container)  # the SDK has no call for asking without fetching
        return frozenset(
            program
            for program, places in wanted.items()
            if any(client.head(url, params={"path": place}).ok for place in places)
        )
    finally:
        client.remove_container(container, v=True)
