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


CHANGES = "/run/layer/changes"


@pytest.fixture
def layers(place: Place, tmp_path: Path, uid: int) -> str:
    """Three layers as LOWERS: real files, and two that guards made, one above the other."""
    made = tmp_path / "made"
    (made / "lower/gone").write_text("below\n")
    (made / "lower/folder/below").write_text("below\n")
    for name in ("upper2", "work2", "upper3", "work3"):
        (made / "layer" / name).mkdir()
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(made)], check=True)
    with place("--overlay", "/work", "/run/layer/lower", f"{CHANGES}/upper", f"{CHANGES}/work", *HIDDEN) as box:
        done = box.shell("rm gone; rm -r folder; mkdir folder; echo middle >folder/middle; echo middle >file")
        assert (done.code, done.err) == (0, b"")
    lowers = f"{CHANGES}/upper:/run/layer/lower"
    with place("--overlay", "/work", lowers, f"{CHANGES}/upper2", f"{CHANGES}/work2", *HIDDEN) as box:
        done = box.shell("find . -type f | sort; cat file; echo top >top; rm note")
    assert done.out == b"./file\n./folder/middle\n./note\nmiddle\n", done.err
    return f"{CHANGES}/upper2:{lowers}"


def test_what_a_layer_in_the_middle_deleted_or_replaced_is_gone(place: Place, layers: str, tmp_path: Path) -> None:
    with place("--overlay", "/work", layers, f"{CHANGES}/upper3", f"{CHANGES}/work3", *HIDDEN) as box:
        done = box.shell("find . -type f | sort; cat file top folder/middle; echo mine >>file; cat file")

    assert done.out == b"./file\n./folder/middle\n./top\nmiddle\ntop\nmiddle\nmiddle\nmine\n", done.err
    assert (tmp_path / "made/layer/upper/file").read_text() == "middle\n"
    assert (tmp_path / "made/layer/upper3/file").read_text() == "middle\nmine\n"


def test_layers_without_an_upper_one_can_be_read_and_not_written(place: Place, layers: str) -> None:
    with place("--overlay", "/work", layers, "", "", *HIDDEN) as box:
        done = box.shell(
            "find . -type f | sort; for c in 'echo x >file' 'echo x >new' 'rm file' 'mv file f' 'chmod 600 file' 'ln file g' 'touch file'"
            " 'mkdir d' 'rm -r folder'; do (eval $c) 2>/dev/null && echo $c; done; mount -o remount,rw /work 2>/dev/null && echo writable; echo end"
        )

    assert done.out == b"./file\n./folder/middle\n./top\nend\n", done.err


def test_a_single_folder_without_an_upper_one_is_shown_read_only(place: Place, tmp_path: Path) -> None:
    with place("--overlay", "/work", "/run/layer/lower", "", "", *HIDDEN) as box:
        done = box.shell("cat file; (echo x >file; echo x >new; rm file; chmod 600 file) 2>/dev/null; cat file; ls")

    assert done.out == b"below\nbelow\nfile\nfolder\nnote\n", done.err
    assert (tmp_path / "made/lower/file").read_text() == "below\n"


def test_lowers_that_fill_more_than_a_page_are_an_error_and_are_not_cut(place: Place) -> None:
    """The kernel reads 4,095 bytes of a mount's options and would lose the rest without a word."""
    fixed = len("lowerdir=,userxattr")
    fits = ":".join(["/run/layer/lower/" + "./" * 1000] * 2)
    fits += "/" * (4095 - fixed - len(fits))
    with place("--overlay", "/work", fits, "", "", say_setup=False) as box:
        message = first(box)
        assert isinstance(message, wire.Fatal)
        assert (message.step, message.error) != ("overlay", 36)  # the kernel's own word about one folder twice
    with place("--overlay", "/work", fits + "/", "", "", say_setup=False) as box:
        message = first(box)
        assert isinstance(message, wire.Fatal)
        assert (message.step, message.error) == ("overlay", 36)


def test_a_path_longer_than_the_kernel_takes_is_an_error_and_no_overflow(place: Place) -> None:
    with place("--overlay", "/work", *("/" + "x" * 6000,) * 3, say_setup=False) as box:
        message = first(box)
        assert isinstance(message, wire.Fatal)
        assert (message.step, message.error) == ("overlay", 36)  # ENAMETOOLONG
