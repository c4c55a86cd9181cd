"""What the suites that drive `broker` may ask for: a broker on each engine, with folders of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.driver import PROJECT, Broker, remove_folder
from conformance.fits_schema import events_below, undescribed, unfit
from conformance.replays import judged_otherwise

SOMEBODY = 1000  # an ordinary user's id; nobody of that name needs to exist

ENGINES = [
    pytest.param("bubblewrap", marks=pytest.mark.needs_bubblewrap),
    pytest.param("docker", marks=pytest.mark.needs_docker(image="python")),
]
as_root = pytest.mark.needs_root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the task's user can reach, which pytest's own (mode 0700) are not."""
    made = Path(tempfile.mkdtemp(prefix="broker-test-", dir="/tmp"))
    yield made
    events = list(events_below(made))
    assert (unfit(events), undescribed(events)) == ([], set())
    assert judged_otherwise(events) == []
    remove_folder(made)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine."""
    return str(request.param)


@pytest.fixture
def make_broker(folder: Path) -> Callable[..., Broker]:
    """Make the broker that a test wants."""

    def make(engine: str, **how: object) -> Broker:
        return Broker(engine, folder, **how).prepare()  # type: ignore[arg-type]

    return make


@pytest.fixture
def broker(engine: str, make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker of ours. When the test is over, nothing may be left of what it ran."""
    made = make_broker(engine)
    yield made
    assert made.nothing_survives()


@pytest.fixture
def for_somebody(engine: str, make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker run by root on a workspace that belongs to somebody else."""
    made = make_broker(engine, owner=SOMEBODY)
    yield made
    assert made.nothing_survives()


@pytest.fixture
def by_somebody(make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker that an ordinary user runs. Docker's socket is not theirs, so the engine is bubblewrap."""
    if not reachable_for_others(PROJECT):
        pytest.skip(f"{PROJECT} cannot be read by other users, so none of them can run broker from it")
    made = make_broker("bubblewrap", owner=SOMEBODY, user=SOMEBODY)
    yield made
    assert made.nothing_survives()


def reachable_for_others(path: Path) -> bool:
    """Whether others may enter every folder on the way."""
    return all(os.stat(folder).st_mode & 0o005 == 0o005 for folder in (path, *path.parents))


@contextmanager
def disk_of(kibibytes: int) -> Iterator[Path]:
    """A file system of this size. Only root can have one."""
    place = Path(tempfile.mkdtemp(prefix="small-disk-", dir="/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k,mode=700", "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)
    place.rmdir()
