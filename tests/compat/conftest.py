"""What people run must run inside as it does outside: each test here is one tool, on both engines.

A module says which image holds its tools for Docker, and which programs it needs on this machine (for the
outside run, and for bubblewrap, which shows the machine's own):

    pytestmark = pytest.mark.toolchain("go", "go", "gcc")

`make test` runs what is small to install; the marker `compat` is for the rest (`make compat`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("side_by_side")  # before it is imported: its assertions show both sides

from side_by_side import PATH, SideBySide  # noqa: E402

collect_ignore = ["projects"]
_NUMBER = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "toolchain(image, *programs): what the test's tools come from")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on both engines, or on those that its marker `engines` names."""
    if "engine" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("toolchain")
    assert marker is not None, "a test of this folder says where its tools come from"
    metafunc.parametrize(
        "engine",
        [
            pytest.param("bubblewrap", marks=pytest.mark.needs_bubblewrap),
            pytest.param("docker", marks=pytest.mark.needs_docker(image=marker.args[0])),
        ],
    )


@pytest.fixture(scope="session")
def compat_place() -> Iterator[Path]:
    """A folder that an ordinary user can reach, and that is not below /tmp: that is the task's own inside."""
    parent = Path("/srv") if os.geteuid() == 0 else Path.home()
    place = Path(tempfile.mkdtemp(prefix="broker-compat-", dir=parent))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def both(
    engine: str, request: pytest.FixtureRequest, compat_place: Path, record_property: pytest.RecordProperty
) -> Iterator[SideBySide]:
    """The same command, outside and inside."""
    image, *programs = request.node.get_closest_marker("toolchain").args
    if missing := [name for name in programs if shutil.which(name, path=PATH) is None]:
        reason = f"not on this machine: {' '.join(missing)}. Run: scripts/need-toolchains"
        if os.environ.get("BROKER_REQUIRE_ENGINES") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    place = compat_place / str(next(_NUMBER))
    place.mkdir()
    side_by_side = SideBySide(engine=engine, image=image, place=place)
    yield side_by_side
    for times in side_by_side.times:
        record_property("compat", " ".join(f"{seconds:.3f}" for seconds in times))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how long each took: outside, inside, and inside with the start and end of broker and sandbox."""
    rows = [
        (report.nodeid.rpartition("/")[2], *map(float, value.split()))
        for report in terminalreporter.getreports("")
        for name, value in report.user_properties
        if name == "compat"
    ]
    if not rows:
        return
    terminalreporter.section("seconds outside, inside, ratio, inside with its start")
    for name, outside, inside, whole in rows:
        terminalreporter.write_line(f"{outside:8.3f} {inside:8.3f} {inside / outside:7.2f} {whole:8.2f}  {name}")
