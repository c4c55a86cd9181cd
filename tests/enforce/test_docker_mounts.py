"""How a plan becomes the engine's mount list."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.enforce.docker_mounts import bind_mounts, host_path, masks
from broker.enforce.engine import Bind
from broker.enforce.mounts import is_below, submounts, visible
from broker.errors import HostCannotEnforce


def bind(target: str, source: str = "/src") -> Bind:
    """A bind whose source does not matter."""
    return Bind(source=source, target=target)


def test_a_later_bind_hides_what_earlier_ones_showed_at_and_below_its_target() -> None:
    binds = (bind("/w"), bind("/w/a"), bind("/w/a/b"), bind("/w/ab"), bind("/w/a", "/other"))
    assert visible(binds) == (bind("/w"), bind("/w/ab"), bind("/w/a", "/other"))


def test_a_bind_below_an_earlier_one_stays() -> None:
    assert visible((bind("/w"), bind("/w/.git/hooks"))) == (bind("/w"), bind("/w/.git/hooks"))


def test_below_means_path_components_and_not_letters() -> None:
    assert is_below("/w/a", "/w")
    assert is_below("/w", "/w")
    assert is_below("/w", "/")
    assert not is_below("/wa", "/w")


MOUNTINFO = (
    "21 1 8:1 / / rw - ext4 /dev/sda rw\n"
    "30 21 0:30 / /data rw - tmpfs tmpfs rw\n"
    "31 30 0:31 / /data/in\\040ner rw - tmpfs tmpfs rw\n"
    "32 30 0:32 / /data/new\\012line rw - tmpfs tmpfs rw\n"
    "33 21 0:33 / /database rw - tmpfs tmpfs rw\n"
)


def test_mounts_below_a_folder_are_found_whatever_their_name() -> None:
    assert submounts("/data", MOUNTINFO) == ("/data/in ner", "/data/new\nline")


def test_a_read_only_bind_is_not_recursive_because_old_engines_leave_what_is_below_writable(
    tmp_path: Path,
) -> None:
    (mount,) = bind_mounts(Bind(source=str(tmp_path), target="/opt/x"))
    assert mount["ReadOnly"] is True
    assert mount["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True}


def test_a_source_that_is_not_there_is_told() -> None:
    with pytest.raises(HostCannotEnforce, match="'/nonexistent/x' is to be shown inside"):
        bind_mounts(Bind(source="/nonexistent/x", target="/x"))


def test_the_last_bind_that_shows_a_path_says_where_it_is_on_the_host() -> None:
    binds = (bind("/w", "/home/me/project"), bind("/w/sub", "/elsewhere"))
    assert host_path("/w", binds) == "/home/me/project"
    assert host_path("/w/.env", binds) == "/home/me/project/.env"
    assert host_path("/w/sub/.env", binds) == "/elsewhere/.env"
    assert host_path("/etc/passwd", binds) is None


def test_masks_cover_files_folders_and_links_but_make_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("x", encoding="ascii")
    (tmp_path / ".aws").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    shown = (Bind(source=str(tmp_path), target="/w"),)
    paths = ("/w/.env", "/w/.aws", "/w/dangling", "/w/absent", "/outside")
    files, folders = masks(paths, shown, "/run")
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in files] == [("/run/masked/0", "/w/.env", True)]
    assert list(folders) == ["/w/.aws"]
    assert folders["/w/.aws"].startswith("ro,")
