"""A guard for each test, and the attack programs, compiled once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

import guard_harness as harness

ATTACKS = Path(__file__).parent / "attacks"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here runs a guard under bubblewrap."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.needs_bubblewrap)


@pytest.fixture(scope="session")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled attack programs; sandboxes show it at /attacks."""
    folder = tmp_path_factory.mktemp("attacks")
    for source in sorted(ATTACKS.glob("*.c")):
        command = [
            "cc",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
            str(folder / source.stem),
            str(source),
        ]
        subprocess.run(command, check=True)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def start(tmp_path: Path, attacks: Path) -> Callable[..., AbstractContextManager[harness.Sandbox]]:
    """Start sandboxes with options of one's own: `with start(policy, live_limit=8) as box:`."""
    return partial(harness.sandbox, tmp_path, binds=[(attacks, "/attacks")])


@pytest.fixture
def box(start: Callable[..., AbstractContextManager[harness.Sandbox]]) -> Iterator[harness.Sandbox]:
    """A sandbox that allows everything, until the test sets another policy."""
    with start() as sandbox:
        yield sandbox
