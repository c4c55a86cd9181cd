"""docs/operating.md is true: its files are written, its commands are run in order, and each line that it shows is printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cli.test_profile_tutorial import executed

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


@pytest.mark.needs_bubblewrap
@pytest.mark.timeout(240)
def test_every_command_of_the_guide_does_what_the_page_shows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    project = home / "project"
    project.mkdir(parents=True)
    for folder in (tmp_path, home, project):
        folder.chmod(0o755)
    environment = {
        "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "NO_COLOR": "1", "LANG": "C.UTF-8",
        "BROKER_RUNTIME_DIR": str(tmp_path / "runtime"),  # `broker approvals` shows the questions of every run of this user
        **{name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
    }  # fmt: skip
    assert executed(PAGE, project, environment) > 15
