"""What the tests of profiles share: a profile from a text, and a folder that is an operator's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.decide.profile import Profile
from broker.profiles.load import profile_of
from broker.profiles.schema import Source, decode_file


def profile(body: str, name: str = "p") -> Profile:
    """Return the profile that a table with this body means."""
    source, tables = decode_file(Path(f"{name}.toml"), f"[profiles.{name}]\n{body}\n".encode())
    return profile_of(source, name, tables[name])


def loaded(text: str, suffix: str = ".toml") -> tuple[Profile, Source]:
    """Return the only profile of a file's text, and where it came from."""
    source, tables = decode_file(Path(f"p{suffix}"), text.encode())
    ((name, table),) = tables.items()
    return profile_of(source, name, table), source


@pytest.fixture
def made() -> Callable[..., Profile]:
    """Hand out `profile`: tests are no package, so they cannot import it."""
    return profile


@pytest.fixture
def load_text() -> Callable[..., tuple[Profile, Source]]:
    """Hand out `loaded`."""
    return loaded
