"""A file that somebody else could write, or the task could reach, is refused: real files, modes, owners."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import ProfileError
from broker.profiles.errors import (
    ProfileInvalid,
    ProfileInWorkspace,
    ProfileOwnedByOthers,
    ProfileUnreadable,
    ProfileWritableByOthers,
)
from broker.profiles.secure_open import LARGEST, Rules, list_operator_folder, read_operator_file

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of other users")
SOMEBODY = 12345
CONTENT = b"[profiles.x]\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder that is the operator's own, whatever the umask is."""
    folder = tmp_path / "operator" / "profiles"
    folder.mkdir(parents=True)
    for each in (folder, folder.parent):
        each.chmod(0o755)
    return folder


@pytest.fixture
def file(place: Path) -> Path:
    path = place / "x.toml"
    path.write_bytes(CONTENT)
    path.chmod(0o644)
    return path


def read(path: Path, workspace: Path | None = None) -> bytes:
    return read_operator_file(path, Rules(workspace=workspace))[0]


def mended(error: ProfileError, path: Path) -> bytes:
    """Run the command that the error ends with, and read again."""
    command = str(error).rpartition("un: ")[2]  # "Run:", or ", run:"
    subprocess.run(shlex.split(command.removeprefix("sudo ")), check=True)
    return read(path)


def test_the_operators_own_file_is_read(file: Path) -> None:
    content, found = read_operator_file(file, Rules())
    assert content == CONTENT
    assert found == file.resolve()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o777])
def test_a_file_that_others_can_write_is_refused_with_the_command_that_mends_it(
    file: Path, mode: int
) -> None:
    file.chmod(mode)
    with pytest.raises(ProfileWritableByOthers, match=f"mode {mode:04o}") as refusal:
        read(file)
    assert mended(refusal.value, file) == CONTENT


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused_with_the_command_that_mends_it(
    file: Path, mode: int
) -> None:
    file.parent.chmod(mode)
    with pytest.raises(ProfileWritableByOthers) as refusal:
        read(file)
    assert refusal.value.path == file.parent
    assert mended(refusal.value, file) == CONTENT


def test_any_folder_on_the_way_counts(file: Path) -> None:
    file.parent.parent.chmod(0o777)
    with pytest.raises(ProfileWritableByOthers, match="could replace") as refusal:
        read(file)
    assert refusal.value.path == file.parent.parent
    assert mended(refusal.value, file) == CONTENT


def test_a_sticky_folder_on_the_way_is_no_danger_because_what_follows_must_be_ours(file: Path) -> None:
    file.parent.parent.chmod(0o1777)
    assert read(file) == CONTENT


def test_a_path_with_spaces_and_quotes_is_mended_too(place: Path) -> None:
    odd = place / 'it\'s a "file".toml'
    odd.write_bytes(CONTENT)
    odd.chmod(0o666)
    with pytest.raises(ProfileWritableByOthers) as refusal:
        read(odd)
    assert mended(refusal.value, odd) == CONTENT


@as_root
@pytest.mark.parametrize("owned", ["file", "folder", "parent"])
def test_what_belongs_to_somebody_else_is_refused_with_the_command_that_mends_it(
    file: Path, owned: str
) -> None:
    path = {"file": file, "folder": file.parent, "parent": file.parent.parent}[owned]
    os.chown(path, SOMEBODY, -1)
    with pytest.raises(ProfileOwnedByOthers, match=f"user {SOMEBODY}") as refusal:
        read(file)
    assert refusal.value.path == path
    assert mended(refusal.value, file) == CONTENT


@as_root
def test_an_ordinary_user_may_use_roots_files_and_their_own_and_nobody_elses(file: Path) -> None:
    for each in file.parents:
        if each.stat().st_uid == 0 and each.stat().st_mode & 0o005 != 0o005:
            each.chmod(0o755)
    assert as_user(SOMEBODY, file) == "read"
    os.chown(file, SOMEBODY, -1)
    assert as_user(SOMEBODY, file) == "read"
    assert as_user(SOMEBODY + 1, file) == "ProfileOwnedByOthers"


def as_user(uid: int, path: Path) -> str:
    """Read the file in a child that has really become that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                read(path)
                said = "read"
            except Exception as error:
                said = type(error).__name__
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def test_a_file_in_the_workspace_is_refused_with_the_command_that_moves_it(
    file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "safe place"
    with pytest.raises(ProfileInWorkspace) as refusal:
        read_operator_file(file, Rules(workspace=file.parent.parent, remedy_folder=target))
    subprocess.run(["/bin/sh", "-c", str(refusal.value).rpartition("Run: ")[2]], check=True)
    assert (target / file.name).read_bytes() == CONTENT


def test_a_workspace_beside_the_file_is_no_reason(file: Path, tmp_path: Path) -> None:
    beside = tmp_path / "operator" / "profiles-not"
    beside.mkdir()
    assert read(file, workspace=beside) == CONTENT
    assert read(file, workspace=tmp_path / "missing") == CONTENT


def in_link(place: Path, workspace: Path) -> Path:
    (place / "link.toml").symlink_to(workspace / "x.toml")
    return place / "link.toml"


def in_linked_folder(place: Path, workspace: Path) -> Path:
    (place / "folder").symlink_to(workspace, target_is_directory=True)
    return place / "folder" / "x.toml"


def in_relative_link(place: Path, workspace: Path) -> Path:
    (place / "link.toml").symlink_to(os.path.relpath(workspace / "x.toml", place))
    return place / "link.toml"


def through_the_workspace(place: Path, workspace: Path) -> Path:
    (workspace / "way").symlink_to(place, target_is_directory=True)
    return workspace / "way" / "x.toml"


def in_chain(place: Path, workspace: Path) -> Path:
    (place / "one").symlink_to("two")
    (place / "two").symlink_to(workspace, target_is_directory=True)
    return place / "one" / "x.toml"


def by_dots(place: Path, workspace: Path) -> Path:
    return place / ".." / ".." / workspace.name / "x.toml"


@pytest.mark.parametrize(
    "way", [in_link, in_linked_folder, in_relative_link, through_the_workspace, in_chain, by_dots]
)
def test_no_way_through_the_workspace_is_taken(
    place: Path, file: Path, tmp_path: Path, way: Callable[[Path, Path], Path]
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir(mode=0o755)
    (workspace / "x.toml").write_bytes(CONTENT)
    (workspace / "x.toml").chmod(0o644)
    path = way(place, workspace)
    assert read(path) == CONTENT, "without a workspace it is an ordinary file"
    with pytest.raises(ProfileInWorkspace):
        read(path, workspace=workspace)


def test_a_link_of_the_operators_to_a_file_of_the_operators_is_followed(place: Path, file: Path) -> None:
    (place / "link.toml").symlink_to("x.toml")
    content, found = read_operator_file(place / "link.toml", Rules())
    assert (content, found) == (CONTENT, file.resolve())


def test_a_link_into_a_folder_that_others_can_write_is_refused(place: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "x.toml").write_bytes(CONTENT)
    (shared / "x.toml").chmod(0o644)
    (place / "link.toml").symlink_to(shared / "x.toml")
    with pytest.raises(ProfileWritableByOthers) as refusal:
        read(place / "link.toml")
    assert refusal.value.path == shared


def test_the_folder_of_a_file_counts_however_its_path_is_spelt(file: Path) -> None:
    inner = file.parent / "inner"
    inner.mkdir(mode=0o755)
    file.parent.chmod(0o1777)
    with pytest.raises(ProfileWritableByOthers):
        read(inner / ".." / file.name)
    with pytest.raises(ProfileWritableByOthers):
        list_operator_folder(inner / "..", Rules())


@as_root
def test_a_link_that_somebody_else_owns_is_refused(place: Path, file: Path) -> None:
    link = place / "link.toml"
    link.symlink_to("x.toml")
    os.lchown(link, SOMEBODY, -1)
    with pytest.raises(ProfileOwnedByOthers) as refusal:
        read(link)
    assert mended(refusal.value, link) == CONTENT


def test_links_that_go_round_end(place: Path) -> None:
    (place / "a.toml").symlink_to("b.toml")
    (place / "b.toml").symlink_to("a.toml")
    with pytest.raises(ProfileUnreadable, match="too many symbolic links"):
        read(place / "a.toml")


def test_a_fifo_does_not_hold_anybody_up(place: Path) -> None:
    os.mkfifo(place / "x.toml", 0o644)
    with pytest.raises(ProfileInvalid, match="not a regular file"):
        read(place / "x.toml")


def test_a_folder_is_not_a_file_and_a_file_is_not_a_folder(place: Path, file: Path) -> None:
    with pytest.raises(ProfileInvalid, match="folder, not a file"):
        read(place)
    with pytest.raises(ProfileUnreadable, match="not a folder"):
        list_operator_folder(file, Rules())
    with pytest.raises(ProfileUnreadable, match="not a folder"):
        read(file / "x")


def test_a_file_that_is_too_large_is_not_read_to_its_end(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(ProfileInvalid, match="larger than"):
        read(file)
    file.write_bytes(b"a" * LARGEST)
    assert len(read(file)) == LARGEST


def test_a_missing_file_is_for_the_caller_to_explain(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(place / "none.toml")


def test_the_programs_own_files_may_be_group_writable_but_not_in_the_workspace(file: Path) -> None:
    file.chmod(0o666)
    assert read_operator_file(file, Rules(others_may_write=True))[0] == CONTENT
    with pytest.raises(ProfileInWorkspace):
        read_operator_file(file, Rules(others_may_write=True, workspace=file.parent))


def test_what_is_judged_is_what_is_read(place: Path, tmp_path: Path) -> None:
    """Swap the folder for one that others can write, as fast as can be: their content never arrives."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "x.toml").write_bytes(b"hostile")
    (hostile / "x.toml").chmod(0o644)
    hostile.chmod(0o777)
    good = place / "good"
    good.mkdir(mode=0o755)
    (good / "x.toml").write_bytes(CONTENT)
    (good / "x.toml").chmod(0o644)
    way, other = place / "way", place / "other"
    way.symlink_to(good)
    stop = threading.Event()

    def swap() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            other.symlink_to(hostile if turn % 2 else good)
            other.replace(way)

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = {"good": 0, "refused": 0}
    try:
        for _ in range(2000):
            try:
                assert read(way / "x.toml") == CONTENT
                seen["good"] += 1
            except ProfileWritableByOthers:
                seen["refused"] += 1
    finally:
        stop.set()
        swapper.join()
    assert all(seen.values()), f"the race was not run: {seen}"


def test_no_descriptor_stays_open(file: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    read(file)
    file.chmod(0o666)
    for _ in range(3):
        with pytest.raises(ProfileWritableByOthers):
            read(file)
        with pytest.raises(FileNotFoundError):
            read(file.parent / "none" / "x")
    assert len(os.listdir("/proc/self/fd")) == before
