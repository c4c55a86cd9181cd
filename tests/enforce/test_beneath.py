"""Paths below a folder: no link is followed, nothing is replaced, with and without the flags of renameat2."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.enforce import beneath
from broker.enforce.beneath import OPEN_AT_ONCE, RENAME_EXCHANGE, Folders, lies_in, open_beneath, rename


@pytest.fixture
def top(tmp_path: Path) -> Iterator[int]:
    """An open folder with a/b in it, a file, and links."""
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "top" / "file").write_text("x")
    (tmp_path / "top" / "link").symlink_to("a")
    (tmp_path / "top" / "out").symlink_to(tmp_path)
    (tmp_path / "top" / "a" / "up").symlink_to("..")
    descriptor = os.open(tmp_path / "top", beneath.FOLDER)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("path", ["", "a", "a/b", "./a", "a/../a"])
def test_folders_below_are_opened(top: int, path: str) -> None:
    os.close(open_beneath(top, path))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("link", errno.ENOTDIR), ("link/b", errno.ELOOP), ("out", errno.ENOTDIR), ("out/top", errno.ELOOP),
        ("a/up/a", errno.ELOOP), ("..", errno.EXDEV), ("a/../..", errno.EXDEV), ("/etc", errno.EXDEV),
        ("file", errno.ENOTDIR), ("none", errno.ENOENT), ("a" * 256, errno.ENAMETOOLONG),
    ],
)  # fmt: skip
def test_nothing_else_is(top: int, path: str, why: int) -> None:
    with pytest.raises(OSError) as caught:
        open_beneath(top, path)
    # O_PATH|O_NOFOLLOW|O_DIRECTORY of a link is ENOTDIR, or ELOOP, by the kernel's version.
    assert caught.value.errno == why or (why == errno.ENOTDIR and caught.value.errno == errno.ELOOP)


@pytest.mark.needs_root
def test_another_mount_is_not_below() -> None:
    with pytest.raises(OSError) as caught:
        descriptor = os.open("/", beneath.FOLDER)
        try:
            open_beneath(descriptor, "proc")
        finally:
            os.close(descriptor)
    assert caught.value.errno == errno.EXDEV


@pytest.fixture(params=["with the flags", "with hard links", "with neither"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system that knows renameat2's flags, and such as do not: what the faults suite injects into a real one."""
    if request.param != "with the flags":
        monkeypatch.setattr(beneath, "_RENAMEAT2", -1)  # ENOSYS
    if request.param == "with neither":
        monkeypatch.setattr(beneath, "hard_link", lambda *_: False)
    return str(request.param)


def test_a_rename_moves_files_links_and_folders(top: int, kernel: str) -> None:
    for name in ("file", "link", "a"):
        rename(top, name, top, f"new {name}")
        assert not lies_in(top, name), kernel
        assert lies_in(top, f"new {name}")
    assert os.readlink("new link", dir_fd=top) == "a"


@pytest.mark.parametrize("name", ["file", "link", "a"])
@pytest.mark.parametrize("there", ["other", "dangling", "folder"])
def test_a_rename_replaces_nothing(top: int, kernel: str, name: str, there: str) -> None:
    os.close(os.open("other", os.O_CREAT | os.O_WRONLY, dir_fd=top))
    os.symlink("nowhere", "dangling", dir_fd=top)
    os.mkdir("folder", dir_fd=top)
    with pytest.raises(FileExistsError):
        rename(top, name, top, there)
    assert lies_in(top, name), kernel


def test_what_is_missing_cannot_be_renamed(top: int, kernel: str) -> None:
    with pytest.raises(FileNotFoundError):
        rename(top, "none", top, "new")
    assert kernel


def test_an_exchange_that_the_file_system_cannot_do_is_the_callers(top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rename(top, "file", top, "a", RENAME_EXCHANGE)
    assert lies_in(top, "a")
    monkeypatch.setattr(beneath, "_RENAMEAT2", -1)
    with pytest.raises(OSError) as caught:
        rename(top, "file", top, "a", RENAME_EXCHANGE)
    assert caught.value.errno in beneath.NO_SUCH_FLAG


def test_more_folders_than_are_kept_open_are_all_reached(top: int) -> None:
    folders = Folders(top)
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number in range(OPEN_AT_ONCE + 20):
            name = f"n{number}"
            if not lies_in(top, name):
                os.mkdir(name, dir_fd=top)
            assert os.fstat(folders.at(name)).st_ino == os.stat(name, dir_fd=top).st_ino
    assert len(os.listdir("/proc/self/fd")) <= open_before + OPEN_AT_ONCE
    folders.close()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_moved_folder_and_what_is_below_it_is_opened_anew(top: int) -> None:
    folders = Folders(top)
    folders.at("a/b")
    rename(top, "a", top, "away")
    os.mkdir("a", dir_fd=top)
    folders.moved("a")
    with pytest.raises(FileNotFoundError):
        folders.at("a/b")
    folders.close()
