"""The scripts of a bare machine, where they can be tried without changing this one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534


@pytest.fixture
def poor_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with what a script needs, and neither bwrap nor sudo."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("sh", "apt-get", "basename", "dirname", "id"):
        for place in ("/usr/bin", "/bin"):
            if Path(place, name).exists():
                (folder / name).symlink_to(Path(place, name))
                break
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    return str(folder)


@pytest.mark.needs_root
def test_without_the_right_to_install_the_one_command_is_printed_and_the_exit_code_is_78(
    poor_path: str,
) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "need-bubblewrap"],
        env={"PATH": poor_path},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78, done.stderr
    assert "sudo apt-get update && sudo apt-get install -y --no-install-recommends bubblewrap" in done.stderr


@pytest.mark.needs_bubblewrap
def test_what_is_there_already_is_not_mentioned() -> None:
    done = subprocess.run([ROOT / "scripts" / "need-bubblewrap"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.needs_docker
@pytest.mark.needs_root
def test_an_engine_that_answers_is_left_alone() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    done = subprocess.run(
        [ROOT / "scripts" / "need-docker"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
