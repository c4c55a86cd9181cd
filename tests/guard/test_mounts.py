"""The guard's own mounts: the copy-on-write view of a folder, what lies over it, and nothing left to undo them with."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import guard_harness as harness
from broker.enforce import wire
from broker.enforce.sandbox import MOUNT_STEPS, _cannot

SOMEBODY = 1000
# What bubblewrap puts in place, and what the guard is to make of it.
VIEW = ("--overlay", "/work", "/run/layer/lower", "/run/layer/changes/upper", "/run/layer/changes/work")
OVER = ("--show", "/run/layer/note", "/work/note")
HIDDEN = ("--hide", "/run/layer")
SEALED = ("--seal", "/proc")

Place = Callable[..., AbstractContextManager[harness.Sandbox]]


@pytest.fixture(params=["owner", "somebody"])
def uid(request: pytest.FixtureRequest) -> int:
    """As whom the guard runs: as us (uid 0, when the suite is root's), and as an ordinary user."""
    if request.param == "owner":
        return os.geteuid()
    if os.geteuid():
        pytest.skip("only root can run the guard as somebody else")
    return SOMEBODY


@pytest.fixture
def place(tmp_path: Path, uid: int) -> Place:
    """Start a guard with mounts of one's own: `with place(*VIEW, *HIDDEN) as box:`."""
    made = Path(tmp_path, "made")
    for name in ("lower/folder", "layer/upper", "layer/work", "bin"):
        (made / name).mkdir(parents=True)
    (made / "lower/file").write_text("below\n")
    (made / "lower/note").write_text("below\n")
    (made / "note").write_text("over\n")
    shutil.copy(harness.guard_binary(), made / "bin")  # its own folder may be closed to others
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(made)], check=True)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)

    @contextmanager
    def start(*mounts: str, say_setup: bool = True) -> Iterator[harness.Sandbox]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = subprocess.Popen(
                    bubblewrap(made, uid, theirs.fileno(), mounts), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    user=uid if uid != os.geteuid() else None, group=uid if uid != os.geteuid() else None,
                    extra_groups=[] if uid != os.geteuid() else None,
                )  # fmt: skip
            box = harness.Sandbox(link=ours, process=process, work=made / "lower")
            try:
                if say_setup:
                    hello = box.receive()
                    assert isinstance(hello, wire.Hello), hello
                    box.hello = hello
                    box.send(harness.setup(watched_names=()))
                    ready = box.until(lambda message: isinstance(message, wire.Ready | wire.Fatal))
                    assert isinstance(ready, wire.Ready), ready
                yield box
            finally:
                ours.close()
                process.wait(10)

    return start


def bubblewrap(made: Path, uid: int, link: int, mounts: Sequence[str]) -> list[str]:
    """The harness's container, with the private places at which the guard finds what it mounts."""
    words = harness.bubblewrap(made / "lower", made / "bin" / harness.guard_binary().name, (), ())
    end = words.index("--remount-ro")
    staged = ["--ro-bind", made / "lower", "/run/layer/lower", "--bind", made / "layer", "/run/layer/changes"]
    staged += ["--ro-bind", made / "note", "/run/layer/note"]
    if uid == 0:
        staged += ["--cap-add", "CAP_SETFCAP"]  # or uid 0 could not be mapped (user_namespaces(7))
    words[end:end] = list(map(str, staged))
    return [*words, "--fd", str(link), *mounts]


def children(pid: int) -> list[int]:
    """The host's pids of a process's children."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def first(box: harness.Sandbox) -> wire.GuardMessage | None:
    """What the guard says first; None when it said nothing and ended."""
    assert select.select([box.link], [], [], 20)[0], "the guard says nothing"
    return box.receive()


def test_what_is_written_goes_to_the_layer_and_what_lies_over_it_shows(place: Place, tmp_path: Path) -> None:
    with place(*VIEW, *OVER, *HIDDEN) as box:
        done = box.shell("cat file note; echo new >file; rm -r folder; echo x >made; cat file; ls; echo y >note")

    assert done.out == b"below\nover\nnew\nfile\nmade\nnote\n", done.err
    assert b"note: Read-only file system" in done.err
    assert (tmp_path / "made/lower/file").read_text() == "below\n"
    assert (tmp_path / "made/lower/folder").is_dir()
    assert (tmp_path / "made/layer/upper/made").read_text() == "x\n"
    assert (tmp_path / "made/note").read_text() == "over\n"


def test_the_guard_keeps_no_capability_of_its_mounts(place: Place) -> None:
    """Seen from outside: neither it nor what it starts has one, or could get one back."""
    with place(*VIEW, *HIDDEN, *SEALED) as box:
        box.started(box.start(["/bin/sleep", "60"]))
        [guard] = children(box.process.pid)
        [sleeper] = children(guard)
        for pid in (guard, sleeper):
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
            sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
            assert sets == dict.fromkeys(sets, 0), pid
            assert status["NoNewPrivs"] == "1"


def test_nobody_inside_can_see_or_uncover_the_private_places(place: Place) -> None:
    script = (
        "for p in /run/layer /run/layer/changes/upper /proc/1/root/run/layer /proc/self/root/run/layer; do ls -A $p 2>/dev/null; done;"
        "umount -l /run/layer && echo uncovered; umount -l /work && echo uncovered; umount -l /work/note && echo uncovered;"
        "mount -o remount,bind,rw /work/note && echo writable; mount --move /run/layer /tmp && echo moved;"
        "mount --bind /tmp /work && echo covered; cat /run/layer/changes/upper/made; echo end"
    )
    with place(*VIEW, *OVER, *HIDDEN) as box:
        done = box.shell(f"echo x >made; ({script}) 2>/dev/null")

    assert done.out == b"end\n"


def test_a_new_user_namespace_is_refused_too(place: Place) -> None:
    with place(*VIEW, *HIDDEN) as box:
        done = box.shell("unshare -Urm umount -l /run/layer && echo uncovered; echo end")

    assert done.out == b"end\n"


def test_a_sealed_proc_cannot_be_written_even_by_uid_0(place: Place) -> None:
    with place(*VIEW, *HIDDEN, *SEALED) as box:
        done = box.shell("for f in sys/kernel/core_pattern self/comm sysrq-trigger; do (echo x >/proc/$f) 2>/dev/null && echo $f; done; echo end")

    assert done.out == b"end\n"


FAILING = [
    ("overlay", ("--overlay", "/work", "/nowhere", *VIEW[3:])),
    ("overlay", (*VIEW[:4], "/run/layer/changes/upper")),  # upper and work folder are the same
    ("show", (*VIEW, "--show", "/nowhere", "/work/note")),
    ("show", (*VIEW, "--show", "/run/layer/note", "/work/missing")),
    ("hide", (*VIEW, "--hide", "/nowhere")),
    ("seal", (*VIEW, "--seal", "/work/folder")),  # no mount
]  # fmt: skip


@pytest.mark.parametrize(("step", "mounts"), FAILING, ids=range(len(FAILING)))
def test_a_mount_that_fails_is_the_end_with_its_step_and_the_broker_knows_what_to_do(
    place: Place, step: str, mounts: tuple[str, ...]
) -> None:
    with place(*mounts, say_setup=False) as box:
        message = first(box)
        assert isinstance(message, wire.Fatal), message
        assert message.step == step
        assert message.error > 0
        assert box.receive() is None  # and it is gone

    told = str(_cannot(message))
    assert step in MOUNT_STEPS
    assert f"cannot be made ({step})" in told
    assert 'workspace = "direct"' in told


@pytest.mark.parametrize(
    "words", [("--overlay",), ("--overlay", "/work", "/a", "/b"), ("--mount", "/work"), ("--hide",), (*VIEW, "--show", "/a"), (*HIDDEN, "x")],
    ids=range(6),
)  # fmt: skip
def test_words_that_make_no_sense_start_nothing(place: Place, words: tuple[str, ...]) -> None:
    with place(*words, say_setup=False) as box:
        assert first(box) is None
    assert box.process.returncode == 64


def test_a_path_longer_than_the_kernel_takes_is_an_error_and_no_overflow(place: Place) -> None:
    with place("--overlay", "/work", *("/" + "x" * 6000,) * 3, say_setup=False) as box:
        message = first(box)
        assert isinstance(message, wire.Fatal)
        assert (message.step, message.error) == ("overlay", 36)  # ENAMETOOLONG
