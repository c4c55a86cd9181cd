"""The view of /etc that bubblewrap tasks get."""

from __future__ import annotations

from pathlib import Path

from broker.enforce.etc_view import etc_view


def test_secrets_of_the_host_are_not_in_the_view(tmp_path: Path) -> None:
    view = etc_view(tmp_path)
    names = {entry.name for entry in view.iterdir()}
    assert not names & {"shadow", "gshadow", "ssh", "sudoers", "sudoers.d", "npmrc", "pip.conf", "docker", "machine-id"}
    assert "nsswitch.conf" in names


def test_who_the_task_is_comes_from_its_own_folder(tmp_path: Path) -> None:
    view = etc_view(tmp_path)
    assert (view / "passwd").readlink() == Path("/run/broker/passwd")


def test_the_view_is_made_once(tmp_path: Path) -> None:
    assert etc_view(tmp_path) == etc_view(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
