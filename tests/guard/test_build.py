"""How the guard is built, before anything of the project is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from broker.guard import build


def test_the_build_imports_nothing_of_the_project(tmp_path: Path) -> None:
    alone = tmp_path / "build.py"
    alone.write_bytes(Path(build.__file__).read_bytes())
    done = subprocess.run([sys.executable, "-I", "-S", alone, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--sanitize" in done.stdout
