"""The walk over a layer: every kind of change is seen as what it is, and what is unchanged yields nothing."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from enforce.layer_bench import EVERYTHING, NOT_UTF8, Bench, everything, everything_before

from broker.enforce.changes import COMPARED, Change, Kind, Thing, WorkspaceMoved

MakeBench = Callable[..., Bench]


def only(changes: list[Change]) -> Change:
    """Return the one change that there is."""
    assert len(changes) == 1, changes
    return changes[0]


def test_every_kind_of_change_is_seen_and_nothing_else(everywhere: MakeBench) -> None:
    bench = everywhere(everything_before)
    bench.task(everything)
    assert bench.rows() == {(path, str(kind), thing) for path, kind, thing in EVERYTHING}
    assert [(one.path, one.conflict, one.never) for one in bench.changes() if one.conflict or one.never] == []


def test_parents_come_first(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before)
    bench.task(everything)
    created = [one.path for one in bench.changes() if one.kind is Kind.CREATED]
    assert created.index("new") < created.index("new/empty")
    assert created.index("file_to_folder") < created.index("file_to_folder/in")


def test_a_task_that_changed_nothing_left_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(everything_before)
    bench.task(lambda view: [path.read_bytes() for path in view.rglob("*") if path.is_file()])
    assert bench.changes() == []
    assert bench.layer.untouched()


def test_a_folder_made_again_in_one_made_again_hides_what_was_in_it(make_bench: MakeBench) -> None:
    """The kernel marks only the upper one as opaque."""

    def before(real: Path) -> None:
        (real / "a" / "b" / "c").mkdir(parents=True)
        (real / "a" / "b" / "c" / "old").write_text("old")

    def act(view: Path) -> None:
        shutil.rmtree(view / "a")
        (view / "a" / "b" / "c").mkdir(parents=True)

    bench = make_bench(before)
    bench.task(act)
    assert bench.rows() == {("a/b/c/old", "deleted", "file")}


@pytest.mark.parametrize("times", ["same times", "other times"])
def test_an_attribute_alone_is_a_change(make_bench: MakeBench, times: str) -> None:
    bench = make_bench(lambda real: (real / "f").write_text("x"))

    def act(view: Path) -> None:
        before = os.stat(view / "f")
        os.setxattr(view / "f", "user.note", b"1")
        if times == "same times":
            os.utime(view / "f", ns=(before.st_atime_ns, before.st_mtime_ns))

    bench.task(act)
    assert bench.rows() == {("f", "changed", "file")}


def acl(path: Path, entry: str) -> None:
    """Give somebody rights on a file, without the `acl` package: user_id 7, as entry says."""
    import struct

    bits = {"r": 4, "rw": 6}[entry]
    rows = [(1, 6, 0xFFFFFFFF), (2, bits, 7), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
    packet = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    os.setxattr(path, "system.posix_acl_access", packet)


def test_an_acl_is_a_change_and_lands_with_the_file(everywhere: MakeBench) -> None:
    if os.geteuid() != 0:
        pytest.skip("the namespace of an ordinary user maps nobody else")
    bench = everywhere(lambda real: (real / "f").write_text("x"))
    bench.task(lambda view: acl(view / "f", "rw"))
    assert only(bench.changes()).kind is Kind.CHANGED
    bench.land()
    assert "system.posix_acl_access" in os.listxattr(bench.real / "f")
    assert stat.S_IMODE((bench.real / "f").stat().st_mode) == 0o664


@pytest.mark.needs_root
def test_file_capabilities_never_land(make_bench: MakeBench) -> None:
    bench = make_bench(lambda real: (real / "f").write_text("x"))
    bench.task(lambda view: subprocess.run(["setcap", "cap_net_raw+ep", str(view / "f")], check=True))
    assert "security.capability" in only(bench.changes()).never


@pytest.mark.parametrize("bits", [stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX, stat.S_ISUID | stat.S_ISGID])
@pytest.mark.parametrize("old", [False, True])
def test_special_mode_bits_never_land(make_bench: MakeBench, bits: int, old: bool) -> None:
    bench = make_bench(lambda real: (real / "f").write_text("x") if old else None)

    def act(view: Path) -> None:
        (view / "f").write_text("y")
        (view / "f").chmod(0o755 | bits)

    bench.task(act)
    change = only(bench.changes())
    assert "special mode bits" in change.never


@pytest.mark.parametrize("bits", [stat.S_ISUID, stat.S_ISVTX])
@pytest.mark.parametrize("old", [False, True])
def test_folders_with_special_mode_bits_never_land(make_bench: MakeBench, bits: int, old: bool) -> None:
    bench = make_bench(lambda real: (real / "d").mkdir() if old else None)

    def act(view: Path) -> None:
        (view / "d").mkdir(exist_ok=True)
        (view / "d").chmod(0o755 | bits)

    bench.task(act)
    assert "special mode bits" in only(bench.changes()).never


def test_pipes_sockets_and_devices_never_land(make_bench: MakeBench) -> None:
    bench = make_bench(lambda real: (real / "was_file").write_text("x"))

    def act(view: Path) -> None:
        os.mkfifo(view / "fifo")
        (view / "was_file").unlink()
        os.mkfifo(view / "was_file")
        os.chdir(view)
        socket.socket(socket.AF_UNIX).bind("socket")
        if os.getuid() == 0:
            os.mknod(view / "block", stat.S_IFBLK | 0o600, os.makedev(7, 250))
            os.mknod(view / "char", stat.S_IFCHR | 0o600, os.makedev(1, 250))

    bench.task(act)
    found = {one.path: one for one in bench.changes() if one.thing is Thing.SPECIAL}
    wanted = {"fifo", "was_file", "socket"} | ({"block", "char"} if os.geteuid() == 0 else set())
    assert set(found) == wanted
    assert all(one.never and one.kind is Kind.CREATED for one in found.values())


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("l", "/etc/passwd"), ("l", ".."), ("l", "../x"), ("d/l", "../../x"), ("d/l", "../.."), ("l", "d/../../x"),
        ("l", "./../x"), ("l", "d/l2/.."), ("d/e/l", "../../../x"), ("l", "/"), ("l", "//etc"), ("l", "out/secret"),
        ("l", "out"), ("d/l", "../out/x"), ("l", "d/up/x"), ("l", "{real}/../x"), ("l", "{real}-other/x"),
        ("l", "/proc/self/root/etc"),
    ],
)  # fmt: skip
def test_links_that_lead_out_never_land(make_bench: MakeBench, tmp_path: Path, place: str, target: str) -> None:
    def before(real: Path) -> None:
        (real / "d" / "e").mkdir(parents=True)
        (real / "out").symlink_to(tmp_path)  # the operator's own way out
        (real / "d" / "up").symlink_to("../..")

    bench = make_bench(before)
    bench.task(lambda view: os.symlink(target.format(real=view), view / place))
    assert "points out of the workspace" in only(bench.changes()).never


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("l", "f"), ("l", "nowhere"), ("d/l", "../f"), ("d/e/l", "../../f"), ("d/l", "e"), ("l", "{real}/d"), ("l", "."),
        ("l", "./d/./e"), ("l", "..."), ("d/l", ".."),
    ],
)  # fmt: skip
def test_links_that_stay_inside_land_as_they_are(make_bench: MakeBench, place: str, target: str) -> None:
    bench = make_bench(lambda real: (real / "d" / "e").mkdir(parents=True))
    target = target.format(real=bench.real)
    bench.task(lambda view: os.symlink(target, view / place))
    assert only(bench.changes()).never == ""
    bench.land()
    assert os.readlink(bench.real / place) == target


def changed(real: Path) -> None:
    """Write into the real file, as an editor that writes in place does."""
    (real / "f").write_text("somebody's\n")


def replaced(real: Path) -> None:
    """Replace it, as an editor does that renames."""
    (real / "f.new").write_text("somebody's\n")
    facts = (real / "f").stat()
    os.utime(real / "f.new", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (real / "f.new").rename(real / "f")


def removed(real: Path) -> None:
    """Remove it."""
    (real / "f").unlink()


def became_folder(real: Path) -> None:
    """Put a folder in its place."""
    (real / "f").unlink()
    (real / "f").mkdir()


def became_link(real: Path) -> None:
    """Put a link in its place."""
    (real / "f").unlink()
    (real / "f").symlink_to("g")


def mode_changed(real: Path) -> None:
    """Only its mode."""
    (real / "f").chmod(0o600)


MEANWHILE = [changed, replaced, removed, became_folder, became_link, mode_changed]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_file_that_changed_since_the_task_began_is_a_conflict(
    make_bench: MakeBench, meanwhile: Callable[[Path], None]
) -> None:
    bench = make_bench(lambda real: (real / "f").write_text("old\n"))
    bench.task(lambda view: (view / "f").write_text("the task's\n"))
    meanwhile(bench.real)
    written = [one for one in bench.changes() if one.kind is not Kind.DELETED]
    assert written
    assert all(one.conflict for one in written)


@pytest.mark.parametrize("meanwhile", [changed, replaced, became_folder, became_link, mode_changed])
def test_a_deletion_of_what_changed_since_the_task_began_is_a_conflict(
    make_bench: MakeBench, meanwhile: Callable[[Path], None]
) -> None:
    bench = make_bench(lambda real: (real / "f").write_text("old\n"))
    bench.task(lambda view: (view / "f").unlink())
    meanwhile(bench.real)
    if meanwhile is became_folder:  # an empty folder: nothing of somebody's would be lost
        assert only(bench.changes()).thing is Thing.FOLDER
    else:
        assert only(bench.changes()).conflict


def test_a_file_that_both_made_is_a_conflict(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.task(lambda view: (view / "f").write_text("the task's\n"))
    (bench.real / "f").write_text("somebody's\n")
    assert only(bench.changes()).conflict


def test_the_same_change_by_both_is_none(make_bench: MakeBench) -> None:
    bench = make_bench(lambda real: (real / "f").write_text("old\n"))

    def act(view: Path) -> None:
        (view / "f").write_text("agreed\n")
        os.utime(view / "f", ns=(5, 5))

    bench.task(act)
    act(bench.real)
    assert bench.changes() == []


def test_what_somebody_put_into_a_removed_folder_is_a_conflict_and_the_rest_is_not(make_bench: MakeBench) -> None:
    def before(real: Path) -> None:
        (real / "d").mkdir()
        (real / "d" / "old").write_text("old\n")

    bench = make_bench(before)
    bench.task(lambda view: shutil.rmtree(view / "d"))
    (bench.real / "d" / "fresh").write_text("somebody's\n")
    assert {one.path: bool(one.conflict) for one in bench.changes()} == {"d/old": False, "d/fresh": True, "d": False}


def test_a_layer_of_a_folder_that_was_replaced_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.real.rename(bench.real.with_name("moved"))
    bench.real.mkdir()
    with pytest.raises(WorkspaceMoved):
        bench.changes()


def test_paths_that_are_too_long_for_the_kernel_are_reported_and_do_not_land(make_bench: MakeBench) -> None:
    bench = make_bench()

    def act(view: Path) -> None:
        os.chdir(view)
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        Path("bottom").write_text("deep\n")

    bench.task_without_looking(act)
    assert any("too long" in one.never for one in bench.changes())
    assert not bench.land().conflicts
    assert any("too long" in one.never for one in bench.changes())
    bench.layer.remove()
    assert not bench.layer.folder.exists()


def test_large_files_of_one_size_count_as_changed_and_are_not_read(make_bench: MakeBench) -> None:
    bench = make_bench(lambda real: os.truncate(os.open(real / "f", os.O_CREAT | os.O_WRONLY), COMPARED + 1))
    bench.task(lambda view: os.utime(view / "f", ns=(5, 5)))
    assert only(bench.changes()).kind is Kind.CHANGED


def test_a_mode_of_a_file_with_other_names_is_a_new_file_so_that_the_other_names_keep_theirs(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    def before(real: Path) -> None:
        (tmp_path / "store").write_text("shared by projects\n")
        os.link(tmp_path / "store", real / "f")
        (tmp_path / "store").chmod(0o644)

    bench = make_bench(before)
    bench.task(lambda view: (view / "f").chmod(0o777))
    assert only(bench.changes()).kind is Kind.CHANGED
    bench.land()
    assert stat.S_IMODE((bench.real / "f").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o644


def test_the_staging_folder_of_a_landing_is_no_business_of_a_task(make_bench: MakeBench) -> None:
    def before(real: Path) -> None:
        (real / ".broker-landing-other").mkdir()
        (real / ".broker-landing-other" / "0").write_text("what another landing replaced\n")

    bench = make_bench(before)

    def act(view: Path) -> None:
        shutil.rmtree(view / ".broker-landing-other")
        (view / f".broker-landing-{bench.run}").mkdir()
        (view / f".broker-landing-{bench.run}" / "0").write_text("planted\n")

    bench.task(act)
    assert len(bench.changes()) == 4
    assert all("broker's own" in one.never for one in bench.changes())


def test_a_layer_with_attributes_that_no_mount_of_ours_writes_does_not_land(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.task(lambda view: (view / "f").write_text("x"))
    os.setxattr(Path(bench.layer.upper(0), "f"), "user.overlay.redirect", b"/etc/shadow")
    assert "overlay.redirect" in only(bench.changes()).never


def test_names_that_are_not_utf8_come_back_as_they_were(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.task(lambda view: (view / NOT_UTF8).write_text("x"))
    assert os.fsencode(only(bench.changes()).path) == b"caf\xe9"


def test_a_system_s_label_on_every_file_keeps_nothing_back(make_bench: MakeBench) -> None:
    """Where SELinux is on, each file has security.selinux. Set it where the kernel lets us, as it does without."""
    if os.geteuid() != 0:
        pytest.skip("only root can label a file")
    bench = make_bench(lambda real: (real / "f").write_text("x"))
    bench.task(lambda view: (view / "f").write_text("y"))
    os.setxattr(Path(bench.layer.upper(0), "f"), "security.selinux", b"system_u:object_r:x_t:s0")
    assert only(bench.changes()).never == ""
