"""What a task sees as its workspace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from broker.enforce.workspace import WorkspaceRefused, survey


def git(place: Path, *words: str) -> None:
    """Run git without anybody's configuration."""
    subprocess.run(
        ["git", "-C", str(place), "-c", "user.name=t", "-c", "user.email=t@example.invalid", *words], check=True,
        capture_output=True, env={"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"},
    )  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "-q")
    (place / "a.txt").write_text("a\n")
    git(place, "add", "a.txt")
    git(place, "commit", "-qm", "a")
    return place


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "/home", "/tmp", "/proc/self", "/usr/share", "/dev"])
def test_folders_of_the_system_are_no_workspace(path: str) -> None:
    with pytest.raises(WorkspaceRefused):
        survey(path, mode="direct")


def test_a_home_is_no_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "me").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    with pytest.raises(WorkspaceRefused, match="your home"):
        survey(str(tmp_path / "me"), mode="direct")
    with pytest.raises(WorkspaceRefused, match="your home"):
        survey(str(tmp_path), mode="direct")


def test_a_missing_folder_and_a_file_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRefused, match="No such file"):
        survey(str(tmp_path / "none"), mode="direct")
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceRefused, match="not a folder"):
        survey(str(tmp_path / "file"), mode="direct")


def test_hooks_and_config_of_the_repository_and_of_nested_ones_are_protected(repository: Path) -> None:
    nested = repository / "vendor" / "deep"
    nested.mkdir(parents=True)
    git(nested, "init", "-q")
    found = survey(str(repository), mode="direct").protected
    for place in (repository, nested):
        assert str(place / ".git" / "hooks") in found
        assert str(place / ".git" / "config") in found


def test_secrets_are_masked_unless_the_profile_shows_them(repository: Path) -> None:
    (repository / ".env").write_text("KEY=1")
    (repository / "sub").mkdir()
    (repository / "sub" / "id_rsa").write_text("key")
    assert survey(str(repository), mode="direct").masked == (
        str(repository / ".env"), str(repository / "sub" / "id_rsa"),
    )  # fmt: skip
    assert survey(str(repository), mode="direct", shown=(".env",)).masked == (str(repository / "sub" / "id_rsa"),)


def test_a_protected_link_that_leads_outside_is_not_mounted(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    hooks = repository / ".git" / "hooks"
    for entry in hooks.iterdir():
        entry.unlink()
    hooks.rmdir()
    hooks.symlink_to(outside)
    assert all(not path.startswith(str(outside)) for path in survey(str(repository), mode="direct").protected)


def test_a_worktree_brings_its_git_folder_along(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    found = survey(str(tmp_path / "tree"), mode="direct")
    assert found.git_folder == str(repository / ".git")
    assert str(repository / ".git" / "hooks") in found.protected
    assert str(repository / ".git" / "config") in found.protected


def test_a_submodule_brings_its_git_folder_along(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "sub")
    found = survey(str(repository / "sub"), mode="direct")
    assert found.git_folder == str(repository / ".git" / "modules" / "sub")


def test_a_git_file_that_points_at_a_foreign_folder_is_not_followed(tmp_path: Path) -> None:
    """A task could have written it to see more the next time."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "gitdir").write_text("/somewhere/else/.git\n")
    (secret / "commondir").write_text("..\n")
    place = tmp_path / "project"
    place.mkdir()
    (place / ".git").write_text(f"gitdir: {secret}\n")
    found = survey(str(place), mode="direct")
    assert found.git_folder == ""
    assert any("does not point back" in note for note in found.notes)
    # The file itself is shown read-only: a task must not point git elsewhere.
    assert [bind.source for bind in found.binds()] == [str(place), str(place / ".git")]


def test_nothing_is_created_in_the_users_tree(repository: Path) -> None:
    before = sorted(str(path) for path in repository.rglob("*"))
    survey(str(repository), mode="direct")
    assert sorted(str(path) for path in repository.rglob("*")) == before


def test_names_that_are_not_utf8_are_looked_through(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    strange = os.path.join(os.fsencode(place), b"\xff\xfe")
    os.mkdir(strange)
    with open(os.path.join(strange, b".env"), "w") as file:
        file.write("x")
    assert survey(str(place), mode="direct").masked == (os.fsdecode(os.path.join(strange, b".env")),)


def test_folders_that_an_earlier_task_made_hide_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        (tmp_path / f"a{number}" / "b").mkdir(parents=True)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / ".env").write_text("KEY=1\n")
    assert survey(str(tmp_path), mode="overlay").masked == (str(tmp_path / "config" / ".env"),)
    monkeypatch.setattr("broker.enforce.workspace.SURVEY_FOLDERS", 600)
    with pytest.raises(WorkspaceRefused, match="too many to look for secrets in"):
        survey(str(tmp_path), mode="overlay")
