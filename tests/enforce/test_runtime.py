"""The folders a running task needs on the host."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from broker.enforce import runtime
from broker.errors import HostCannotEnforce


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime base with something in the guard's place."""
    fake = tmp_path / "guard-source"
    fake.write_bytes(b"#!/bin/true\n")
    monkeypatch.setenv("BROKER_GUARD", str(fake))
    folder = tmp_path / "base"
    folder.mkdir(0o711)
    return folder


def test_a_mark_tells_a_living_broker_from_a_dead_one() -> None:
    child = subprocess.Popen(["sleep", "60"])
    mark = runtime.OwnerMark(child.pid, runtime.process_start(child.pid), runtime.boot_id())
    assert mark.alive()
    child.kill()
    child.wait()
    assert not mark.alive()


def test_a_mark_of_another_boot_is_dead_even_if_the_pid_lives() -> None:
    mine = runtime.OwnerMark.mine()
    assert mine.alive()
    assert not runtime.OwnerMark(mine.pid, mine.start, "0" * 36).alive()
    assert not runtime.OwnerMark(mine.pid, "1", mine.boot).alive()


def test_a_mark_survives_being_written_and_read() -> None:
    mine = runtime.OwnerMark.mine()
    assert runtime.OwnerMark.parse(str(mine)) == mine
    assert runtime.OwnerMark.parse("") is None
    assert runtime.OwnerMark.parse("x y z") is None


def test_a_task_folder_holds_the_guard_and_nothing_that_the_task_can_change(base: Path) -> None:
    folder = runtime.make_task_folder(base, "one", os.geteuid(), os.getegid())
    assert {entry.name for entry in folder.iterdir()} == {"owner", "guard", "bin", "denials.jsonl", "login.sh", "passwd", "group"}
    assert (folder / "guard").stat().st_mode & 0o022 == 0


def test_two_tasks_cannot_share_a_folder(base: Path) -> None:
    runtime.make_task_folder(base, "one", os.geteuid(), os.getegid())
    with pytest.raises(FileExistsError):
        runtime.make_task_folder(base, "one", os.geteuid(), os.getegid())


def test_sweeping_takes_folders_of_dead_brokers_only(base: Path) -> None:
    living = runtime.make_task_folder(base, "living", os.geteuid(), os.getegid())
    dead = runtime.make_task_folder(base, "dead", os.geteuid(), os.getegid())
    dead.chmod(0o700)
    (dead / "owner").write_text(f"{os.getpid()} 1 {runtime.boot_id()}")
    assert runtime.sweep_task_folders(base) == ["task folder task-dead"]
    assert living.exists()
    assert not dead.exists()


def test_a_guard_that_was_not_built_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_GUARD", str(tmp_path / "none"))
    with pytest.raises(HostCannotEnforce, match=r"python -m broker\.guard\.build"):
        runtime.guard_binary(tmp_path)


def test_a_runtime_base_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "broker").mkdir(0o700)  # ours, so for uid 12345 it is somebody else's
    with pytest.raises(HostCannotEnforce, match="belongs to somebody else"):
        runtime.runtime_base()


def test_the_guard_is_copied_under_its_digest_and_executable(base: Path) -> None:
    first = runtime.guard_binary(base)
    assert first == runtime.guard_binary(base)
    assert stat.S_IMODE(first.stat().st_mode) == 0o755
