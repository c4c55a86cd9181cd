"""`broker run`'s own words: what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.main import main


def test_a_result_is_not_written_through_a_link_that_a_task_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "victim").write_text("whole")
    (tmp_path / "result.json").symlink_to("victim")
    (tmp_path / "w").mkdir()
    assert main(["run", "--result", str(tmp_path / "result.json"), "-w", str(tmp_path / "w"), "--", "true"]) == 64
    assert "it is a link" in capsys.readouterr().err
    assert (tmp_path / "victim").read_text() == "whole"


def test_without_a_command_it_says_where_one_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--profile", "builder"]) == 64
    assert "Put it after `--`" in capsys.readouterr().err


def test_a_time_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--timeout", "soon", "-w", str(tmp_path), "--", "true"]) == 64
    assert "--timeout soon" in capsys.readouterr().err
