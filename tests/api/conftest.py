"""What the tests of the Python interface may ask for: folders of their own, and a profile that is made in code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api.made_in_code import a_profile
from broker import Broker, Profile
from conformance.driver import pids, sees, until
from conformance.fixtures import ENGINES, engine, folder  # noqa: F401 - fixtures are used by name


@pytest.fixture
def state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811 - a fixture
    """Where the journals and the layers of this test go."""
    made = folder / "state"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("BROKER_STATE_DIR", str(made))
    monkeypatch.setenv("BROKER_LAYER_DIR", str(folder / "layers"))
    return made


@pytest.fixture
def workspace(folder: Path) -> Path:  # noqa: F811 - a fixture
    """An empty workspace."""
    folder.chmod(0o755)
    made = folder / "workspace"
    made.mkdir()
    return made


@pytest.fixture
def inside(folder: Path) -> Iterator[Callable[[], list[int]]]:  # noqa: F811 - a fixture
    """What says which processes live in a sandbox of ours, seen from the host. When the test is over, none may."""

    def look() -> list[int]:
        return [pid for pid in pids() if sees(pid, folder)]

    yield look
    until(lambda: not look(), "the end of every process in the sandbox", 10.0)


@pytest.fixture
def make(engine: str, workspace: Path, state: Path, inside: object) -> Callable[..., Broker]:  # noqa: F811 - a fixture
    """Make a Broker on the engine, in the workspace, under the profile `any` or another."""

    def made(profile: str | Profile | None = None, **options: Any) -> Broker:
        return Broker(profile or a_profile(), workspace, engine=engine, **options)  # type: ignore[arg-type]

    return made


@pytest.fixture
def broker(make: Callable[..., Broker]) -> Iterator[Broker]:
    """A Broker that is open."""
    with make() as opened:
        yield opened


@pytest.fixture
def bubblewrapped(workspace: Path, state: Path, inside: object, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A Broker that is open on bubblewrap, for what no engine has a part in."""
    with Broker(a_profile(), workspace, engine="bubblewrap") as opened:
        yield opened
