"""A landing that is killed at any of its system calls, or whose system calls fail: the old tree or the new one.

Every call by which a landing changes something is its last one once; then the next start recovers.
"""

from __future__ import annotations

import functools
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from enforce.conftest import make_bench  # noqa: F401 - a fixture, used by name
from enforce.layer_bench import OLD, Bench, Tree, landable, tree
from faults.under_strace import under_strace

from broker.enforce import landing, landing_step
from broker.enforce.layer import read_layer
from broker.task.landing import recover_landings

MakeBench = Callable[..., Bench]

# What a landing or its recovery changes something with. Those that one of them never makes end at once.
CALLS = (
    "write", "fsync", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "linkat",
    "symlinkat", "fchmod", "chmod", "fchown", "fchownat", "utimensat", "setxattr", "fsetxattr", "removexattr",
    "lremovexattr", "mknodat", "ftruncate",
)  # fmt: skip
# And where the layer is on another file system than the workspace: those by which files are prepared there.
PREPARING = (
    "write", "mkdirat", "linkat", "symlinkat", "fchmod", "fchown", "fchownat", "utimensat", "fsetxattr", "ftruncate", "renameat2",
)  # fmt: skip
WHERE = [*((call, "") for call in CALLS), *((call, "tmpfs") for call in PREPARING)]
NO_FLAGS = "renameat2:error=EINVAL"


pytestmark = pytest.mark.needs_strace


def before(real: Path) -> None:
    """A small tree with one thing for each kind of step."""
    for path in ("changed", "deleted", "mode", "times", "becomes_folder", "becomes_link", "gone/in", "remade/old", "remade/kept"):
        (real / path).parent.mkdir(exist_ok=True)
        (real / path).write_text(f"old {path}\n")
        os.utime(real / path, ns=(OLD, OLD))
    (real / "link").symlink_to("changed")


def act(view: Path) -> None:
    """One change of each kind."""
    (view / "changed").write_text("new\n")
    (view / "deleted").unlink()
    (view / "mode").chmod(0o755)
    os.utime(view / "times", ns=(OLD, OLD + 9))
    (view / "link").unlink()
    (view / "link").symlink_to("mode")
    (view / "becomes_folder").unlink()
    (view / "becomes_folder").mkdir()
    (view / "becomes_folder" / "in").write_text("new\n")
    (view / "becomes_link").unlink()
    (view / "becomes_link").symlink_to("mode")
    (view / "gone" / "in").unlink()
    (view / "gone").rmdir()
    for name in ("old", "kept"):
        (view / "remade" / name).unlink()
    (view / "remade").rmdir()
    (view / "remade").mkdir()
    (view / "remade" / "kept").write_text("new\n")
    (view / "one").write_text("two names\n")
    os.link(view / "one", view / "two")
    os.setxattr(view / "one", "user.note", b"1")


class Case:
    """A bench whose task is over, and what the workspace may look like from now on."""

    def __init__(self, make: MakeBench, on: str, number: int) -> None:
        self.bench: Bench = make(before, on=on, name=f"case-{number}")
        self.new: Tree = self.bench.task(act)
        self.old: Tree = tree(self.bench.real)
        self.changes = landable(self.bench.changes())
        assert self.old != self.new

    def land(self) -> None:
        """Land everything, as a broker does."""
        layer = self.bench.layer
        with layer.locked():
            landed = landing.land(layer, self.changes)
        assert not landed.conflicts, landed.conflicts

    def recover(self) -> None:
        """What the next start does."""
        said = list(recover_landings(self.bench.base))
        assert all(line.endswith(("undone", "completed")) for line in said), said

    def prove(self) -> bool:
        """The old tree or the new one, nothing left over, and the layer whole or empty. Returns whether it is the new."""
        now = tree(self.bench.real)
        assert now in (self.old, self.new), {
            path: (self.old.get(path), now.get(path), self.new.get(path))
            for path in {*now, *self.old, *self.new} if now.get(path) != self.new.get(path)
        }  # fmt: skip
        assert self.bench.leftovers() == []
        layer = read_layer(self.bench.layer.folder)
        assert layer is not None
        self.bench.layer = layer
        if now == self.new:
            assert self.bench.changes() == []
            return True
        assert {(one.path, one.kind) for one in self.bench.changes()} == {(one.path, one.kind) for one in self.changes}
        assert not self.bench.land().conflicts
        assert tree(self.bench.real) == self.new
        return False


@pytest.fixture
def on() -> str:
    """Where the layer is: '' is on the workspace's file system."""
    return ""


@pytest.fixture
def cases(make_bench: MakeBench, on: str) -> Callable[[], Case]:  # noqa: F811
    """Return how to make one case after the other."""
    if on and os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    numbers = iter(range(10_000))
    return lambda: Case(make_bench, on, next(numbers))


def killed_at_each(call: str, make: Callable[[], Case], *others: str) -> Iterator[Case]:
    """Yield a case for each time that a landing makes this call, killed there; until one comes to its end."""
    for number in range(1, 200):
        case = make()
        ended = under_strace(case.land, f"{call}:signal=KILL:when={number}", *others)
        if ended == 0:
            assert tree(case.bench.real) == case.new
            return
        assert ended == -signal.SIGKILL
        yield case
    pytest.fail(f"it makes {call} without end")


@pytest.mark.parametrize(("call", "on"), WHERE)
def test_killed_at_any_call_the_next_start_makes_it_the_old_tree_or_the_new(
    cases: Callable[[], Case], call: str, on: str
) -> None:
    del on
    for case in killed_at_each(call, cases):
        case.recover()
        case.prove()


@pytest.mark.parametrize("call", ["linkat", "unlinkat", "rename", "renameat"])
def test_the_same_where_the_file_system_knows_no_flags_of_a_rename(cases: Callable[[], Case], call: str) -> None:
    for case in killed_at_each(call, cases, NO_FLAGS):
        assert under_strace(case.recover, NO_FLAGS) == 0
        case.prove()


def test_where_there_are_no_hard_links_either_everything_lands_all_the_same(cases: Callable[[], Case]) -> None:
    case = cases()
    # Two of the changes are names of one file, for which the landing makes a link itself.
    case.changes = [change for change in case.changes if change.path != "two"]
    assert under_strace(case.land, NO_FLAGS, "linkat:error=EPERM") == 0
    assert {path for path in case.new if path not in tree(case.bench.real)} == {b"two"}
    assert case.bench.leftovers() == []


@pytest.mark.parametrize(
    ("stage", "call"),
    [
        ("mkdirat:signal=KILL:when=2", "unlinkat"), ("mkdirat:signal=KILL:when=2", "rmdir"),
        ("renameat2:signal=KILL:when=8", "renameat2"), ("renameat2:signal=KILL:when=8", "unlinkat"),
        ("unlinkat:signal=KILL:when=9", "unlinkat"), ("unlinkat:signal=KILL:when=9", "unlink"),
    ],
)  # fmt: skip
def test_killed_while_it_recovers_the_start_after_that_recovers(cases: Callable[[], Case], stage: str, call: str) -> None:
    for number in range(1, 100):
        case = cases()
        assert under_strace(case.land, stage) == -signal.SIGKILL
        ended = under_strace(case.recover, f"{call}:signal=KILL:when={number}")
        assert ended in (0, -signal.SIGKILL)
        if ended:
            case.recover()
        case.prove()
        if not ended:
            return


# Calls that fail


@pytest.mark.parametrize("why", ["ENOSPC", "EIO"])
def test_a_step_that_fails_undoes_all_before_it(cases: Callable[[], Case], why: str) -> None:
    failed = 0
    for number in range(1, 100):
        case = cases()
        ended = under_strace(functools.partial(land_and_say, case), f"renameat2:error={why}:when={number}")
        if ended == 0:
            break
        failed += 1
        assert tree(case.bench.real) == case.old
        assert not case.prove()
    assert failed >= 10


def land_and_say(case: Case) -> None:
    """Land; the error that comes must be the one that says that everything is as it was."""
    try:
        case.land()
    except landing.LandingFailed as error:
        if not error.undone or "the workspace is as it was" not in str(error):
            os._exit(9)
        raise


def test_what_can_neither_be_done_nor_undone_is_said_and_the_next_start_completes_it(cases: Callable[[], Case]) -> None:
    stuck = 0
    for number in range(2, 12):
        case = cases()

        def land(case: Case = case) -> None:
            try:
                case.land()
            except landing.LandingFailed as error:
                if not error.undone and "the next start goes on" in str(error):
                    os._exit(0)
                raise

        if under_strace(land, f"renameat2:error=EIO:when={number}+") == 0:
            stuck += 1
            assert landing.interrupted(case.bench.layer)
            case.recover()
            assert case.prove()
    assert stuck >= 5


@pytest.mark.parametrize("call", ["mkdirat", "fsync", "fchmod", "linkat", "utimensat", "fsetxattr", "write", "symlinkat"])
@pytest.mark.parametrize("on", ["tmpfs"])
def test_staging_that_fails_leaves_everything_as_it_was(cases: Callable[[], Case], call: str, on: str) -> None:
    """With the layer on another file system each of these prepares a file; none of them is a step yet."""
    del on
    case = cases()
    ended = under_strace(functools.partial(land_and_say, case), f"{call}:error=ENOSPC:when=1")
    assert ended == 1
    assert not case.prove()


# Somebody else, between the kill and the next start


def test_what_somebody_changed_between_a_kill_and_the_recovery_is_not_overwritten(cases: Callable[[], Case]) -> None:
    met = 0
    for case in killed_at_each("renameat2", cases):
        real = case.bench.real
        if not landing.interrupted(case.bench.layer):
            continue
        mine: dict[Path, str] = {}
        for name in ("changed", "deleted", "mode", "two", "remade/old", "fresh"):
            place = real / name
            if place.parent.is_dir():
                place.with_name("new.tmp").write_text(f"somebody's {name}\n")
                place.with_name("new.tmp").rename(place)
                mine[place] = f"somebody's {name}\n"
        case.recover()
        for place, text in mine.items():
            assert place.read_text() == text
        assert case.bench.leftovers() == []
        met += 1
    assert met >= 10


def test_a_change_that_slipped_in_while_the_landing_was_killed_is_put_back(cases: Callable[[], Case]) -> None:
    """The exchange happened, the look at what came out did not: it was another file than the task saw."""
    case = cases()
    real = case.bench.real
    steps = [change for change in case.changes if change.path == "changed"]
    assert len(steps) == 1

    def land() -> None:
        rename = landing_step.rename

        def late(*words: object) -> None:
            (real / "changed").write_text("somebody's\n")
            rename(*words)  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGKILL)

        landing_step.rename = late
        landing.land(case.bench.layer, steps)

    assert under_strace(land, "swapon:error=EPERM") == -signal.SIGKILL
    case.recover()
    assert (real / "changed").read_text() == "somebody's\n"
    assert case.bench.leftovers() == []
    assert Path(case.bench.layer.upper(0), "changed").read_text() == "new\n"


def test_a_folder_that_was_filled_while_the_landing_was_killed_comes_back(cases: Callable[[], Case]) -> None:
    case = cases()
    real = case.bench.real
    steps = [change for change in case.changes if change.path.startswith("gone")]

    def land() -> None:
        rename = landing_step.rename

        def late(*words: object) -> None:
            if words[1] == "gone":
                (real / "gone" / "fresh").write_text("somebody's\n")
            rename(*words)  # type: ignore[arg-type]
            if words[1] == "gone":
                os.kill(os.getpid(), signal.SIGKILL)

        landing_step.rename = late
        landing.land(case.bench.layer, steps)

    assert under_strace(land, "swapon:error=EPERM") == -signal.SIGKILL
    case.recover()
    assert (real / "gone" / "fresh").read_text() == "somebody's\n"
    assert case.bench.leftovers() == []


def test_a_staging_folder_that_somebody_removed_takes_nothing_out_of_the_layer(cases: Callable[[], Case]) -> None:
    import shutil

    case = cases()
    assert under_strace(case.land, "renameat2:signal=KILL:when=6") == -signal.SIGKILL
    staging = next(case.bench.real.glob(".broker-landing-*"))
    assert stat.S_IMODE(staging.stat().st_mode) == 0o700
    shutil.rmtree(staging)
    case.recover()
    left = {one.path for one in case.bench.changes()}
    for path in ("one", "two"):  # copied for their two names, and gone with the folder
        assert (case.bench.real / path).exists() or path in left
