"""Somebody swaps folders and files for links while a landing runs: nothing is touched outside of the workspace.

The swapper is a process of the task's user, as fast as it can be; where root runs the tests it is root who lands.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from enforce.conftest import make_bench  # noqa: F401 - a fixture, used by name
from enforce.layer_bench import SOMEBODY, Bench, landable

from broker.enforce.beneath import RENAME_EXCHANGE, rename
from broker.enforce.changes import Change, changes_of
from broker.enforce.landing import land
from broker.task.changes import Judged, hold_together

MakeBench = Callable[..., Bench]
ROUNDS = 40
NAMES = ("changed", "deleted", "mode", "times")


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Do something in another process, over and over, as the task's user."""
    ready, begun = os.pipe()
    child = os.fork()
    if not child:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
        with contextlib.suppress(OSError):
            act()
        os.write(begun, b"!")
        while True:
            with contextlib.suppress(OSError):
                act()
    try:
        assert os.read(ready, 1) == b"!"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(begun)


class Target:
    """A workspace with files in a/b, and a tree outside that looks the same, for links to lead to."""

    def __init__(self, make: MakeBench, on: str, place: Path) -> None:
        self.outside = place / "outside"
        self.uid = SOMEBODY if os.geteuid() == 0 else os.getuid()
        self._fill(self.outside)
        # The swapper may enter, and nobody but root or the owner may write: what changes here was changed by the landing.
        self.bench = make(self._fill, on=on, uid=self.uid)
        self.real = self.bench.real
        self._real = os.open(self.real / "a" / "b", os.O_PATH | os.O_DIRECTORY)
        upper = Path(self.bench.layer.upper(0))
        (upper / "a" / "b").mkdir(parents=True)
        for folder in (upper / "a", upper / "a" / "b"):
            os.chown(folder, self.uid, self.uid)
        self._upper = os.open(upper / "a" / "b", os.O_PATH | os.O_DIRECTORY)
        self.before = self.seen()

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._real)
        os.close(self._upper)

    def _fill(self, top: Path) -> None:
        (top / "a" / "b").mkdir(parents=True)
        for name in NAMES:
            (top / "a" / "b" / name).write_text("old\n")
            os.utime(top / "a" / "b" / name, ns=(7, 7))

    def seen(self) -> dict[str, tuple[int, ...]]:
        """Everything outside, with the times of its last change."""
        found = {}
        for path in (self.outside, *self.outside.rglob("*")):
            facts = path.lstat()
            found[str(path)] = (facts.st_ino, facts.st_mode, facts.st_uid, facts.st_size, facts.st_nlink, facts.st_ctime_ns)
        return found

    def change(self) -> None:
        """Put into the layer what a task's overlay would, and the old files into the workspace, by their folders."""
        for name in NAMES:
            self._put(self._real, name, b"old\n", 7)
        self._put(self._upper, "changed", b"new\n", 9)
        self._put(self._upper, "created", b"new\n", 9)
        self._put(self._upper, "times", b"old\n", 9)
        self._put(self._upper, "mode", b"old\n", 7, 0o777)
        for folder, name in ((self._upper, "deleted"), (self._real, "created"), (self._upper, "folder"), (self._real, "folder")):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=folder)
        os.mknod("deleted", stat.S_IFCHR, 0, dir_fd=self._upper)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir("folder", dir_fd=self._real)
        with contextlib.suppress(FileExistsError):
            os.mkdir("folder", 0o755, dir_fd=self._upper)
        self.bench.layer.manifest = replaced_began(self.bench)

    def _put(self, folder: int, name: str, content: bytes, time: int, mode: int = 0o644) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
        os.write(descriptor, content)
        os.fchown(descriptor, self.uid, self.uid)
        os.fchmod(descriptor, mode)
        os.utime(descriptor, ns=(time, time))
        os.close(descriptor)

    def land_often(self) -> tuple[int, int]:
        """Land again and again. Returns how many changes landed, and how many were conflicts or not to be seen."""
        done = lost = 0
        for _ in range(ROUNDS):
            with contextlib.suppress(FileExistsError):
                self.change()
            changes = list(changes_of(self.bench.layer))
            wanted = fit_to_land(changes)
            landed = land(self.bench.layer, wanted)
            done += len(landed.done)
            lost += len(landed.conflicts) + len(changes) - len(wanted) + (len(changes) != len(NAMES) + 2)
        return done, lost


def fit_to_land(changes: list[Change]) -> list[Change]:
    """Leave out what a judge leaves out, whatever the profile: a folder does not go for the sake of a link that stays."""
    fit = set(landable(changes))
    judged = Judged(landing=[one for one in changes if one in fit], conflicts=[(one, "") for one in changes if one not in fit])
    hold_together(judged)
    return judged.landing


def replaced_began(bench: Bench) -> object:
    """Let the task begin now: what is in the workspace is what it found."""
    import dataclasses
    import time

    return dataclasses.replace(bench.layer.manifest, began=time.time_ns())


@pytest.fixture(params=["same", "tmpfs"])
def target(request: pytest.FixtureRequest, make_bench: MakeBench, tmp_path: Path) -> Iterator[Target]:  # noqa: F811
    """Return a target whose layer is where a rename carries over, or must be copied from."""
    if request.param == "tmpfs" and os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    made = Target(make_bench, "" if request.param == "same" else request.param, tmp_path)
    yield made
    made.close()


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Let two paths change places, over and over."""
    folders = [os.open(path.parent, os.O_PATH | os.O_DIRECTORY) for path in (one, other)]
    try:
        with meanwhile(lambda: rename(folders[0], one.name, folders[1], other.name, RENAME_EXCHANGE)):
            yield
    finally:
        for folder in folders:
            os.close(folder)


def test_without_a_swapper_everything_lands(target: Target) -> None:
    done, lost = target.land_often()
    assert (done, lost) == (ROUNDS * (len(NAMES) + 2), 0)


@pytest.mark.parametrize("what", ["a", "a/b"])
def test_a_folder_swapped_for_a_link_that_leads_out(target: Target, what: str) -> None:
    link = target.real / "evil"
    link.symlink_to(target.outside / what)
    with swapping(target.real / what, link):
        done, lost = target.land_often()
    assert target.seen() == target.before
    assert done, "nothing landed: the race was none"
    assert lost, "everything landed: the race was none"


def test_a_folder_moved_out_of_the_workspace_and_back(target: Target, tmp_path: Path) -> None:
    parking = tmp_path / "parking"
    parking.mkdir()
    os.chown(parking, target.uid, target.uid)
    there = [False]

    def move() -> None:
        places = [target.real / "a", parking / "a"]
        os.rename(places[there[0]], places[not there[0]])
        there[0] = not there[0]

    with meanwhile(move):
        done, lost = target.land_often()
    assert target.seen() == target.before
    assert {path.name for path in parking.iterdir()} <= {"a"}
    assert {path.name for top in (parking, target.real) for path in top.rglob("b/*")} <= {*NAMES, "created", "folder"}
    assert done
    assert lost


@pytest.mark.parametrize("target", ["same"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_file_swapped_for_a_link_to_one_outside(target: Target, name: str, kind: str) -> None:
    link, secret = target.real / "evil", target.outside / "a" / "b" / name
    if kind == "symbolic":
        link.symlink_to(secret)
    else:
        os.link(secret, link)
        target.before = target.seen()
    with swapping(target.real / "a" / "b" / name, link):
        target.land_often()
    after = target.seen()
    if kind == "hard":
        # It has a name in the workspace: moving that, or removing it, counts its names and their time, and no more.
        for found in (target.before, after):
            found[str(secret)] = found[str(secret)][:4]
    assert after == target.before
    assert secret.read_text() == "old\n"


@pytest.mark.parametrize("what", ["a", "a/b", "a/b/changed", "a/b/created", "a/b/mode"])
def test_the_layer_s_own_folders_and_files_swapped_for_links(target: Target, what: str) -> None:
    secret = target.outside / "a" / "b"
    for name in ("changed", "created", "mode"):
        (secret / name).write_text("secret\n")
        (secret / name).chmod(0o600)
    target.before = target.seen()
    upper = Path(target.bench.layer.upper(0))
    evil = upper.parent / "evil"
    evil.symlink_to(target.outside / what)
    with swapping(upper / what, evil):
        target.land_often()
    assert target.seen() == target.before
    for path in target.real.rglob("*"):
        if stat.S_ISREG(path.lstat().st_mode):
            assert path.read_text() != "secret\n"


@pytest.mark.needs_root
@pytest.mark.parametrize("target", ["same"], indirect=True)
def test_root_gives_nothing_away_while_the_staging_folder_is_swapped(target: Target) -> None:
    """Whoever may write to the workspace may rename root's staging folder, and put another in its place."""
    mine = target.real / "mine"
    mine.mkdir()
    for number in range(8):
        (mine / str(number)).symlink_to(target.outside / "a" / "b" / "changed")
    os.chown(mine, target.uid, target.uid)
    staging = target.real / f".broker-landing-{target.bench.run}"
    command = f"""
        while :; do mv -T '{staging}' '{target.real}/away' 2>/dev/null && mv -T '{mine}' '{staging}' 2>/dev/null
        mv -T '{staging}' '{mine}' 2>/dev/null; rm -rf '{target.real}/away' 2>/dev/null; done"""
    with subprocess.Popen(["bash", "-c", command], user=SOMEBODY, group=SOMEBODY, extra_groups=[]) as swapper:
        try:
            for _ in range(ROUNDS):
                with contextlib.suppress(OSError):
                    target.change()
                with contextlib.suppress(Exception):
                    land(target.bench.layer, fit_to_land(list(changes_of(target.bench.layer))))
        finally:
            swapper.kill()
    assert target.seen() == target.before
