"""Tests that pass, start programs, and write files where tests do."""

import subprocess
import sys
from pathlib import Path

import pytest
from counting.words import count


@pytest.mark.parametrize("number", range(40))
def test_count(number: int) -> None:
    assert count("word " * number) == number


def test_subprocess() -> None:
    code = "import sys; sys.exit(len(sys.stdin.read()))"
    assert subprocess.run([sys.executable, "-c", code], input="abc", text=True, check=False).returncode == 3


def test_shell() -> None:
    assert subprocess.check_output("echo one two | wc -w", shell=True, text=True).strip() == "2"


def test_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").rename(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
