"""A layer on disk: made, found, measured, removed; whatever a task did in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from enforce.layer_bench import Bench

from broker.enforce.layer import (
    MANIFEST,
    file_clock,
    find_layer,
    folder_size,
    layers_base,
    list_layers,
    read_layer,
    remove_tree,
    write_whole,
)
from broker.errors import HostCannotEnforce, UsageError

MakeBench = Callable[..., Bench]


def deep(top: Path, depth: int, content: bytes) -> None:
    """Make a path that is longer than any that the kernel takes, with a file at its bottom."""
    here = os.getcwd()
    os.chdir(top)
    for _ in range(depth):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    Path("bottom").write_bytes(content)
    os.chdir(here)


def test_what_lies_deeper_than_any_path_is_counted_and_removed(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    deep(tmp_path / "top", 60, b"x" * (1 << 20))
    assert folder_size(tmp_path / "top") >= 1 << 20
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_a_tree_deeper_than_python_recurses_is_removed(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    here = os.getcwd()
    os.chdir(tmp_path / "top")
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)
    assert folder_size(tmp_path / "top") >= 0
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_folders_that_were_made_unreadable_are_removed(tmp_path: Path) -> None:
    for name in ("top/a/b", "top/.gone-0/in", "top/c/.gone-0/in"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    for name in ("top/a/b", "top/a", "top"):
        (tmp_path / name).chmod(0)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    remove_tree(tmp_path / "top")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "missing")
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (tmp_path / "outside" / "file").exists()


def test_a_link_counts_for_itself_only(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (1 << 20))
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path)
    assert folder_size(tmp_path / "top") < 1 << 16
    assert folder_size(tmp_path / "missing") == 0


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    deep(tmp_path / "top", 30, b"x")
    before = len(os.listdir("/proc/self/fd"))
    folder_size(tmp_path / "top")
    remove_tree(tmp_path / "top")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_changed_before_the_task_is_no_conflict_and_one_changed_after_it_began_is(tmp_path: Path) -> None:
    """Times are finer than the coarse clock since Linux 6.13, for a file that somebody looked at: each of these is."""
    late = []
    for number in range(300):
        place = tmp_path / str(number)
        place.write_text("a")
        place.stat()
        place.write_text("b")
        began = file_clock()
        late.append(place.stat().st_ctime_ns > began)
    assert not any(late)


def test_after_the_wait_every_change_is_later_than_the_beginning(make_bench: MakeBench) -> None:
    for number in range(20):
        bench = make_bench(name=f"n{number}")
        (bench.real / "f").write_text("x")
        assert (bench.real / "f").stat().st_ctime_ns > bench.layer.manifest.began


def test_a_manifest_comes_back_as_it_was_written(make_bench: MakeBench) -> None:
    bench = make_bench()
    strange = os.fsdecode(b"/w/caf\xe9\n")
    bench.layer.update(withheld=((strange, "why"),), put_back=((0, strange, 7),), state="kept")
    again = read_layer(bench.layer.folder)
    assert again is not None
    assert again.manifest == bench.layer.manifest


def test_what_is_no_manifest_is_left_out(make_bench: MakeBench) -> None:
    bench = make_bench()
    place = bench.layer.folder / MANIFEST
    table = json.loads(place.read_bytes())
    for wrong in (b"", b"{", b"[]", b"{}", json.dumps({**table, "format": 99}).encode(), json.dumps({**table, "more": 1}).encode()):
        place.write_bytes(wrong)
        assert read_layer(bench.layer.folder) is None
        assert list_layers(bench.base) == []


def test_a_manifest_from_before_put_back_is_read(make_bench: MakeBench) -> None:
    bench = make_bench()
    place = bench.layer.folder / MANIFEST
    table = json.loads(place.read_bytes())
    del table["put_back"]
    place.write_text(json.dumps(table))
    assert read_layer(bench.layer.folder) is not None


def test_a_layer_is_found_by_what_means_only_one(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_bench()
    monkeypatch.chdir(one.real)
    other = Bench(one.real, one.base, one.uid, one.gid, run="20260102-000000-other").begin()
    assert find_layer(one.base, "20260101").run == one.run
    assert find_layer(one.base, "other").run == other.run
    assert find_layer(one.base, "last").run == other.run
    for word in ("2026", "none", ""):
        with pytest.raises(UsageError):
            find_layer(one.base, word)


def test_the_last_layer_is_that_of_the_workspace_one_is_in(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_bench()
    below, beside = one.real / "src", Path(f"{one.real}-2")
    below.mkdir()
    beside.mkdir()
    monkeypatch.chdir(below)
    assert find_layer(one.base, "last").run == one.run
    for elsewhere in (beside, one.real.parent):
        monkeypatch.chdir(elsewhere)
        with pytest.raises(UsageError, match=f"some of: {one.run} in {one.real}"):
            find_layer(one.base, "last")


def test_a_sub_tasks_layer_is_never_taken_for_another_tasks(make_bench: MakeBench) -> None:
    one = make_bench()
    tenth = Bench(one.real, one.base, one.uid, one.gid, run="20260102-000000-other.10").begin()
    for word in ("20260102-000000-other", "20260102-000000-other.1", "other.1", "20260102-000000-other.1."):
        with pytest.raises(UsageError):
            find_layer(one.base, word)
    assert find_layer(one.base, tenth.run).run == tenth.run
    assert find_layer(one.base, "other.10").run == tenth.run


def test_a_place_that_others_may_write_to_takes_no_layer(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.layer.remove()
    bench.base.chmod(0o777)
    with pytest.raises(HostCannotEnforce, match="others can write"):
        bench.begin()


def test_one_holds_a_layer_at_a_time(make_bench: MakeBench) -> None:
    bench = make_bench()
    with bench.layer.locked() as mine:
        assert mine
        with bench.layer.locked(wait=False) as theirs:
            assert not theirs
    with bench.layer.locked(wait=False) as again:
        assert again


def test_a_layer_in_which_nothing_changed_goes_when_its_task_leaves(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.layer.leave()
    assert not bench.layer.folder.exists()


def test_a_layer_with_changes_is_kept_when_its_task_leaves(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.task(lambda view: (view / "f").write_text("x"))
    bench.layer.leave()
    assert bench.layer.manifest.state == "kept"
    assert bench.layer.manifest.ended <= time.time_ns()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "f", b"one")
    write_whole(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["f"]


def test_layers_lie_where_the_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_LAYER_DIR", str(tmp_path / "here"))
    assert layers_base(tmp_path) == tmp_path / "here"
    monkeypatch.delenv("BROKER_LAYER_DIR")
    assert layers_base(tmp_path) == (Path("/var/lib/broker/layers") if os.geteuid() == 0 else tmp_path / "layers")
