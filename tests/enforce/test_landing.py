"""Landing: what the task saw is what is in the workspace afterwards, or nothing of it is."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from enforce.layer_bench import SOMEBODY, Bench, everything, everything_before, tree

from broker.enforce import landing
from broker.enforce.changes import Change, WorkspaceMoved
from broker.enforce.landing import LandingFailed

MakeBench = Callable[..., Bench]


@pytest.mark.parametrize("uid", [None, SOMEBODY])
def test_everything_lands_and_nothing_is_left(everywhere: MakeBench, uid: int | None) -> None:
    if uid is not None and os.geteuid() != 0:
        pytest.skip("only root lands for others")
    bench = everywhere(everything_before, uid=uid)
    seen = bench.task(everything)
    landed = bench.land()
    assert landed.conflicts == []
    assert tree(bench.real) == seen
    assert bench.changes() == []
    assert bench.leftovers() == []
    if uid is not None:
        assert {path.lstat().st_uid for path in bench.real.rglob("*")} == {uid}


def test_overlay_s_own_attributes_stay_behind(everywhere: MakeBench) -> None:
    bench = everywhere(everything_before)
    bench.task(everything)
    bench.land()
    for path in bench.real.rglob("*"):
        assert not [name for name in os.listxattr(path, follow_symlinks=False) if "overlay" in name]


def test_a_file_with_other_names_in_the_layer_is_copied_and_the_layer_stays_independent(make_bench: MakeBench) -> None:
    bench = make_bench()

    def act(view: Path) -> None:
        (view / "one").write_text("two names\n")
        os.link(view / "one", view / "two")

    bench.task(act)
    bench.land([one for one in bench.changes() if one.path == "one"])
    (bench.real / "one").write_text("changed by somebody\n")
    assert Path(bench.layer.upper(0), "two").read_text() == "two names\n"
    assert (bench.real / "one").stat().st_nlink == 1
    bench.land()
    assert (bench.real / "two").read_text() == "two names\n"


def test_hard_links_that_land_together_are_hard_links(everywhere: MakeBench) -> None:
    bench = everywhere()

    def act(view: Path) -> None:
        (view / "one").write_text("two names\n")
        os.link(view / "one", view / "two")

    bench.task(act)
    bench.land()
    assert os.path.samefile(bench.real / "one", bench.real / "two")


def test_a_name_that_leads_out_of_the_workspace_keeps_its_content(make_bench: MakeBench, tmp_path: Path) -> None:
    """A package manager links files from its store: writing here must not write there."""

    def before(real: Path) -> None:
        (tmp_path / "store").write_text("shared\n")
        os.link(tmp_path / "store", real / "f")

    bench = make_bench(before)
    bench.task(lambda view: (view / "f").write_text("the task's\n"))
    bench.land()
    assert (bench.real / "f").read_text() == "the task's\n"
    assert (tmp_path / "store").read_text() == "shared\n"


def test_a_sparse_file_of_two_gigabytes_lands_with_its_holes(everywhere: MakeBench) -> None:
    bench = everywhere()

    def act(view: Path) -> None:
        with open(view / "sparse", "wb") as file:
            file.write(b"start")
            file.seek(1 << 30)
            file.write(b"middle")
            file.truncate((2 << 30) + 17)

    bench.task_without_looking(act)
    bench.land()
    facts = (bench.real / "sparse").stat()
    assert facts.st_size == (2 << 30) + 17
    assert facts.st_blocks * 512 < 1 << 20
    with open(bench.real / "sparse", "rb") as file:
        assert file.read(5) == b"start"
        file.seek(1 << 30)
        assert file.read(6) == b"middle"


def test_the_mode_and_group_of_a_setgid_folder_pass_on_as_the_system_does(everywhere: MakeBench) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has a group to spare")
    shared = 54321

    def before(real: Path) -> None:
        (real / "shared").mkdir()
        os.chown(real / "shared", -1, shared)
        (real / "shared").chmod(0o2775)

    bench = everywhere(before)

    def act(view: Path) -> None:
        (view / "shared" / "new").mkdir()
        (view / "shared" / "new" / "file").write_text("x")

    bench.task(act)
    bench.land()
    facts = (bench.real / "shared" / "new").stat()
    assert (facts.st_gid, stat.S_IMODE(facts.st_mode)) == (shared, 0o2755)
    assert (bench.real / "shared" / "new" / "file").stat().st_gid == shared


def test_a_read_only_folder_that_the_task_opened_takes_what_it_wrote(make_bench: MakeBench) -> None:
    def before(real: Path) -> None:
        (real / "d").mkdir()
        (real / "d").chmod(0o555)

    bench = make_bench(before)

    def act(view: Path) -> None:
        (view / "d").chmod(0o755)
        (view / "d" / "new").write_text("x")

    bench.task(act)
    assert bench.land().conflicts == []
    assert (bench.real / "d" / "new").exists()


def test_what_has_become_another_since_the_walk_is_a_conflict_and_the_others_land(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before)
    bench.task(everything)
    changes = bench.changes()
    (bench.real / "changed.txt").write_text("somebody's\n")
    (bench.real / "deleted.txt").write_text("somebody's\n")
    (bench.real / "new_link").write_text("somebody's\n")
    (bench.real / "gone" / "fresh").write_text("somebody's\n")
    (bench.real / "new").mkdir()
    landed = bench.land(changes)
    lost = {"changed.txt", "deleted.txt", "new_link", "gone", "new"}
    assert {change.path for change, _ in landed.conflicts} == lost
    for path in ("changed.txt", "deleted.txt", "new_link", "gone/fresh"):
        assert (bench.real / path).read_text() == "somebody's\n"
    assert (bench.real / "link_to_file").read_text() == "a file now\n"
    assert bench.leftovers() == []
    assert {one.path for one in bench.changes()} >= {"changed.txt", "deleted.txt", "new_link"}


def test_the_layer_keeps_what_did_not_land(everywhere: MakeBench) -> None:
    bench = everywhere(everything_before)
    bench.task(everything)
    kept = "new/file"
    bench.land([one for one in bench.changes() if one.path != kept])
    assert bench.rows() == {(kept, "created", "file")}
    assert Path(bench.layer.upper(0), kept).read_text() == "made\n"


def test_what_took_the_place_of_something_stays_in_the_layer_when_only_the_deletion_landed(make_bench: MakeBench) -> None:
    def before(real: Path) -> None:
        (real / "d").mkdir()

    bench = make_bench(before)

    def act(view: Path) -> None:
        (view / "d").rmdir()
        (view / "d").write_text("a file now\n")

    bench.task(act)
    bench.land([one for one in bench.changes() if one.kind == "deleted"])
    assert bench.rows() == {("d", "created", "file")}
    bench.land()
    assert (bench.real / "d").read_text() == "a file now\n"


def test_the_intent_is_on_disk_before_anything_is_touched_and_ends_with_a_record_that_failed(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before)
    bench.task(everything)
    before = tree(bench.real)

    def intend() -> None:
        assert landing.interrupted(bench.layer)
        assert tree(bench.real) == before
        raise RuntimeError("the journal is full")

    with pytest.raises(RuntimeError, match="journal"):
        landing.land(bench.layer, bench.changes(), intend=intend)
    assert tree(bench.real) == before
    assert bench.leftovers() == []


def test_a_workspace_that_moved_begins_no_landing(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before)
    bench.task(everything)
    changes = bench.changes()
    bench.real.rename(bench.real.with_name("moved"))
    with pytest.raises(WorkspaceMoved):
        bench.land(changes)
    assert not landing.interrupted(bench.layer)


def test_a_file_that_cannot_be_read_where_it_must_be_copied_is_a_conflict_of_its_own(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another file system even the owner must read a file to copy it, and the task may have forbidden that."""
    bench = make_bench(on="tmpfs") if os.geteuid() == 0 else make_bench()
    bench.task(lambda view: [(view / name).write_text(name) for name in ("good", "swapped")])
    changes = bench.changes()
    swapped = Path(bench.layer.upper(0), "swapped")
    swapped.unlink()
    swapped.symlink_to("/etc/passwd")
    landed = bench.land(changes)
    assert [change.path for change, _ in landed.conflicts] == ["swapped"]
    assert (bench.real / "good").read_text() == "good"


@pytest.mark.needs_root
def test_root_does_not_read_for_a_task_what_its_user_cannot(make_bench: MakeBench, tmp_path: Path) -> None:
    """Somebody who could link a secret of root's into the layer would have it copied into the workspace."""
    bench = make_bench(uid=SOMEBODY)
    bench.task(lambda view: (view / "f").write_text("x"))
    secret = bench.base / "secret"
    secret.write_text("root's\n")
    secret.chmod(0o600)
    Path(bench.layer.upper(0), "f").unlink()
    os.link(secret, Path(bench.layer.upper(0), "f"))
    landed = bench.land(bench.changes())
    assert "belongs to somebody else" in landed.conflicts[0][1]
    assert not (bench.real / "f").exists()


@pytest.mark.needs_root
def test_root_copies_no_file_that_its_user_moved_here_and_cannot_read(make_bench: MakeBench) -> None:
    """A file of root's in a folder of the user's: they may move it, on the file system of the layer, and not read it."""
    bench = make_bench(uid=SOMEBODY, on="tmpfs")
    bench.task(lambda view: (view / "f").write_text("x"))
    secret = bench.base / "secret"
    secret.write_text("root's\n")
    secret.chmod(0o600)
    os.replace(secret, Path(bench.layer.upper(0), "f"))
    landed = bench.land(bench.changes())
    assert [change.path for change, _ in landed.conflicts] == ["f"]
    assert not (bench.real / "f").exists()


@pytest.mark.needs_root
@pytest.mark.parametrize(("mode", "lands"), [(0o755, False), (0o757, True), (0o1777, False)])
def test_root_changes_no_name_in_a_folder_where_its_user_could_not(make_bench: MakeBench, mode: int, lands: bool) -> None:
    """What the task cannot do in its view, another process of its user can put into the layer."""

    def before(real: Path) -> None:
        for folder in ("theirs", "own"):
            (real / folder).mkdir()
            for name in ("changed", "deleted"):
                (real / folder / name).write_text("old\n")

    bench = make_bench(before, uid=SOMEBODY)
    theirs = bench.real / "theirs"
    for path in (theirs, theirs / "changed", theirs / "deleted"):
        os.chown(path, 0, 0)
    theirs.chmod(mode)
    bench.begin_again()
    upper = Path(bench.layer.upper(0))
    for folder in ("theirs", "own"):
        (upper / folder).mkdir(mode=0o755)
        os.chmod(upper / folder, stat.S_IMODE((bench.real / folder).stat().st_mode))
        (upper / folder / "changed").write_text("new one\n")
        os.mknod(upper / folder / "deleted", stat.S_IFCHR, 0)
    landed = bench.land()
    assert {change.path for change, _ in landed.conflicts} == (set() if lands else {"theirs/changed", "theirs/deleted"})
    assert (theirs / "deleted").exists() is not lands
    assert (theirs / "changed").read_text() == ("new one\n" if lands else "old\n")
    assert not (bench.real / "own" / "deleted").exists()


@pytest.mark.needs_root
@pytest.mark.parametrize("act", [lambda path: path.chmod(0o666), lambda path: os.utime(path, ns=(5, 5))])
def test_root_changes_no_mode_of_what_belongs_to_somebody_else(make_bench: MakeBench, act: Callable[[Path], None]) -> None:
    """The task replaced root's file by its own with the same content: the old one is not opened to everybody."""
    bench = make_bench(lambda real: (real / "f").write_text("root's\n"), uid=SOMEBODY)
    os.chown(bench.real / "f", 0, 0)
    bench.begin_again()

    def replace(view: Path) -> None:
        facts = (view / "f").stat()
        (view / "f").unlink()
        (view / "f").write_text("root's\n")
        os.utime(view / "f", ns=(facts.st_mtime_ns, facts.st_mtime_ns))
        act(view / "f")

    bench.task(replace)
    assert [why for _, why in bench.land().conflicts] == ["it belongs to somebody else"]
    assert stat.S_IMODE((bench.real / "f").stat().st_mode) == 0o644


# Two at once


def test_two_layers_that_land_at_once_both_land_or_are_told(make_bench: MakeBench) -> None:
    first = make_bench(lambda real: [(real / f"f{n}").write_text("old\n") for n in range(200)])
    second = Bench(first.real, first.base, first.uid, first.gid, run="20260101-000001-other").begin()
    for bench, word in ((first, "first"), (second, "second")):
        bench.task(lambda view, word=word: [(view / f"f{n}").write_text(f"{word}\n") for n in range(200)])
    jobs = {bench.run: bench.changes() for bench in (first, second)}
    results: dict[str, landing.Landed] = {}
    barrier = threading.Barrier(2)

    def go(bench: Bench) -> None:
        barrier.wait()
        results[bench.run] = bench.land(jobs[bench.run])

    threads = [threading.Thread(target=go, args=(bench,)) for bench in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = {run: {change.path for change in landed.done} for run, landed in results.items()}
    lost = {run: {change.path for change, _ in landed.conflicts} for run, landed in results.items()}
    everyone = {f"f{n}" for n in range(200)}
    assert done[first.run] | done[second.run] == everyone
    assert not done[first.run] & done[second.run]
    assert all(done[run] | lost[run] == everyone for run in done)
    for bench, word in ((first, "first"), (second, "second")):
        assert {path for path in everyone if (bench.real / path).read_text() == f"{word}\n"} == done[bench.run]
        assert {one.path for one in bench.changes()} == lost[bench.run]
        assert bench.leftovers() == []


# No space


def fill(place: Path) -> Path:
    """Leave no space on a file system. Returns the file that takes it."""
    with open(place / "filler", "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return place / "filler"


@pytest.mark.needs_root
@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_full_disk_leaves_the_workspace_as_it_was_and_the_layer_lands_when_there_is_room(
    make_bench: MakeBench, kind: str
) -> None:
    bench = make_bench(everything_before, real_on=kind, size="8M")

    def act(view: Path) -> None:
        everything(view)
        (view / "large").write_bytes(os.urandom(2 << 20))

    seen = bench.task(act)
    filler = fill(bench.real)
    before = tree(bench.real)
    with pytest.raises(LandingFailed, match="workspace is as it was: No space left"):
        bench.land()
    assert tree(bench.real) == before
    assert bench.leftovers() == []
    filler.unlink()
    assert bench.land().conflicts == []
    assert tree(bench.real) == seen


@pytest.mark.needs_root
def test_a_full_disk_under_the_layer_begins_no_landing(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before, on="ext4", size="8M")
    seen = bench.task(everything)
    filler = fill(bench.base)
    before = tree(bench.real)
    with pytest.raises(LandingFailed):
        bench.land()
    assert tree(bench.real) == before
    filler.unlink()
    if landing.interrupted(bench.layer):
        landing.recover(bench.layer)
    bench.land()
    assert tree(bench.real) == seen


# The workspace on what serves less


@pytest.mark.needs_root
def test_a_workspace_that_is_an_overlay_itself_takes_everything(make_bench: MakeBench, tmp_path: Path) -> None:
    """So it is in a development container: its folders of a lower layer cannot be renamed."""
    import subprocess

    for name in ("lower", "upper", "work"):
        (tmp_path / "own" / name).mkdir(parents=True)
    everything_before(tmp_path / "own" / "lower")
    # An overlay gives a file of several names another inode when it is changed: to us that is another file.
    (tmp_path / "own" / "lower" / "hard2").unlink()
    place = tmp_path / "bench" / "real"
    place.mkdir(parents=True)
    own = tmp_path / "own"
    options = f"lowerdir={own}/lower,upperdir={own}/upper,workdir={own}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(place)], check=True)
    try:
        bench = make_bench()
        seen = bench.task(everything)
        assert bench.land().conflicts == []
        assert tree(bench.real) == seen
        assert bench.leftovers() == []
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_thousand_files_in_folders_land_in_their_order(everywhere: MakeBench) -> None:
    bench = everywhere()

    def act(view: Path) -> None:
        for number in range(1000):
            folder = view / f"d{number % 10}" / f"e{number % 7}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / str(number)).write_text(str(number))

    seen = bench.task(act)
    bench.land()
    assert tree(bench.real) == seen


def test_what_lands_twice_has_landed_once(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before)
    bench.task(everything)
    changes: list[Change] = bench.changes()
    bench.land(changes)
    now = tree(bench.real)
    again = bench.land(changes)
    assert again.done == [] or {change.kind for change in again.done} <= {"mode", "times"}
    assert tree(bench.real) == now
    assert bench.leftovers() == []


def test_a_folder_made_empty_and_unreadable_is_not_lost(make_bench: MakeBench) -> None:
    bench = make_bench(lambda real: (real / "d").mkdir())
    bench.task(lambda view: (view / "d").rmdir())
    changes = bench.changes()
    (bench.real / "d" / "fresh").write_text("somebody's\n")
    (bench.real / "d").chmod(0o300)
    landed = bench.land(changes)
    assert len(landed.conflicts) == 1
    (bench.real / "d").chmod(0o755)
    assert (bench.real / "d" / "fresh").read_text() == "somebody's\n"


