"""Labels for changes to paths: which changes are asked about, and as what."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from broker.enforce import wire
from broker.enforce.wire import FileOp
from guard_harness import RULES, Sandbox

Start = Callable[..., AbstractContextManager[Sandbox]]
Question = wire.ExecAsked | wire.FileAsked

PYTHON = "/usr/bin/python3"


@pytest.fixture
def labelled(start: Start) -> Iterator[Sandbox]:
    """A sandbox with labels on; paths in .git and .bashrc are watched, /work and /tmp writable."""
    with start(flags=wire.SetupFlag.FILE_CHANGES) as box:
        (box.work / ".git").mkdir()
        (box.work / ".git/config").write_text("old")
        (box.work / "plain").write_text("old")
        yield box


def labels(box: Sandbox) -> list[tuple[str, str, str]]:
    return [(q.op.action.value, q.path, q.other) for q in box.files()]


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ("echo x > .git/new", ("write", "/work/.git/new", "")),
        ("echo x > .git/config", ("write", "/work/.git/config", "")),
        ("echo x >> ./sub/../.GIT/c || true", ("write", "/work/.GIT/c", "")),
        ("rm .git/config", ("delete", "/work/.git/config", "")),
        ("mv plain .git/moved", ("rename", "/work/plain", "/work/.git/moved")),
        ("mv .git/config plain", ("rename", "/work/.git/config", "/work/plain")),
        ("ln .git/config alias", ("link", "/work/.git/config", "/work/alias")),
        ("ln -s ../x .git/link", ("symlink", "/work/.git/link", "../x")),
        ("mkdir .git/hooks", ("mkdir", "/work/.git/hooks", "")),
        ("mkdir -p new/.git/", ("mkdir", "/work/new/.git", "")),
        ("mkfifo .git/pipe", ("mknod", "/work/.git/pipe", "")),
        ("chmod 600 .git/config", ("mode", "/work/.git/config", "")),
        ("chown $(id -u) .git/config", ("owner", "/work/.git/config", "")),
        ("touch -t 200001010000 .git/config", ("write", "/work/.git/config", "")),
        ("cd .git; echo x > config", ("write", "/work/.git/config", "")),
        ("ln -s .git alias; echo x > alias/y", ("write", "/work/.git/y", "")),
        ("ln -s .git/z alias; echo x > alias", ("write", "/work/.git/z", "")),
        ("echo x > /proc/self/cwd/.git/p", ("write", "/work/.git/p", "")),
        ("echo x > /proc/self/root/work/.git/p", ("write", "/work/.git/p", "")),
        ("echo x > /proc/$$/root/work/.git/p", ("write", "/work/.git/p", "")),
        ("echo x > /etc/cron", ("write", "/etc/cron", "")),
        ("cd /; mkdir ..//x || true", ("mkdir", "/x", "")),
        ("rmdir /usr/lib || true", ("delete", "/usr/lib", "")),
    ],
)
def test_a_change_that_matters_is_asked_about(
    labelled: Sandbox, command: str, label: tuple[str, str, str]
) -> None:
    (labelled.work / "sub").mkdir()
    if ".GIT" in command:
        (labelled.work / ".GIT").mkdir()
    labelled.shell(command)
    assert label in labels(labelled)


@pytest.mark.parametrize(
    "command",
    [
        "echo x > plain; echo x > new; mkdir -p a/b/c; mv new a; rm -r a; ln -s x y; chmod 600 plain",
        "echo x > /tmp/f; echo x > /dev/null; cat .git/config; ls -la .git; cat < .git/config > copy",
        "echo x > /dev/stderr; echo x > /dev/stdout; echo y >&2; echo x | tee /dev/fd/1",
        "exec 5<.git/config; cat <&5; cat .git/nosuch; rm .git/nosuch; touch nosuch/x; true",
        "mktemp; echo x > github; echo x > .gitignore; echo x > bashrc",
    ],
)
def test_a_change_that_does_not_matter_is_not_asked_about(labelled: Sandbox, command: str) -> None:
    labelled.shell(command)
    assert labels(labelled) == []


CALLS = {
    "open": "os.open('.git/x', os.O_CREAT)",
    "truncate": "os.truncate('.git/config', 0)",
    "xattr": "os.setxattr('.git/config', 'user.x', b'1')",
    "times": "os.utime('.git/config')",
    "tmpfile": "os.open('/usr', os.O_TMPFILE | os.O_WRONLY)",
    "fd": "os.open('/proc/self/fd/%d' % os.open('.git/config', os.O_RDONLY), os.O_WRONLY)",
    "dirfd": "os.unlink('config', dir_fd=os.open('.git', os.O_RDONLY))",
    "exclusive": "os.open('.git/x', os.O_CREAT | os.O_EXCL | os.O_WRONLY)",
}
OPERATIONS = {
    "open": (FileOp.WRITE, "/work/.git/x"),
    "truncate": (FileOp.TRUNCATE, "/work/.git/config"),
    "xattr": (FileOp.XATTR, "/work/.git/config"),
    "times": (FileOp.TIMES, "/work/.git/config"),
    "tmpfile": (FileOp.WRITE, "/usr"),
    "fd": (FileOp.WRITE, "/work/.git/config"),
    "dirfd": (FileOp.DELETE, "/work/.git/config"),
    "exclusive": (FileOp.WRITE, "/work/.git/x"),
}


@pytest.mark.skipif(not os.path.exists(PYTHON), reason="needs the system's python3 in the sandbox")
@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_its_operation(labelled: Sandbox, name: str) -> None:
    labelled.run(PYTHON, "-c", f"import os, ctypes\n{CALLS[name]}")
    assert OPERATIONS[name] in [(q.op, q.path) for q in labelled.files()]


def test_a_refused_change_does_not_happen_and_has_the_errno_of_the_answer(labelled: Sandbox) -> None:
    labelled.policy = lambda q: wire.Answer(request=q.request, allow=isinstance(q, wire.ExecAsked), error=1)
    result = labelled.shell(
        "echo x > .git/config; rm -f .git/config; mv .git gone; ln .git/config alias; echo x > plain"
    )
    assert result.err.count(b"Operation not permitted") == 4
    assert (labelled.work / ".git/config").read_text() == "old"
    assert (labelled.work / "plain").read_text() == "x\n"


def test_quiet_paths_are_exact(start: Start) -> None:
    with start(flags=wire.SetupFlag.FILE_CHANGES, quiet_paths=("/dev/null",), writable_roots=()) as box:
        box.shell("echo x > /dev/null; echo x > /dev/zero")
        asked = {q.path for q in box.files()} - {"/dev/tty"}  # which bash opens at its start
        assert asked == {"/dev/zero"}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*.pem", "a.pem", True),
        ("*.pem", "A.PEM", True),
        ("*.pem", ".pem", True),
        ("*.pem", "pem", False),
        (".env*", ".env.local", True),
        (".env*", "x.env", False),
        ("*cron*", "Anacrontab", True),
        ("*", "anything", True),
        ("makefile", "Makefile", True),
        ("makefile", "makefile2", False),
        ("", "x", False),
    ],
)
def test_watched_names_match_one_component_in_any_case(
    start: Start, pattern: str, name: str, matches: bool
) -> None:
    with start(flags=wire.SetupFlag.FILE_CHANGES, watched_names=(pattern,)) as box:
        box.shell(f"echo x > {name}; mkdir -p d/{name}/e")
        assert bool(box.files()) is matches


def test_the_root_itself_may_have_a_watched_name(start: Start) -> None:
    with start(flags=wire.SetupFlag.FILE_CHANGES, writable_roots=("/work/.git/", "/tmp")) as box:
        (box.work / ".git").mkdir()
        box.shell("echo x > .git/a; mkdir .git/.git; echo x > b")
        assert [q.path for q in box.files()] == ["/work/.git/.git", "/work/b"]


def test_a_path_that_cannot_be_read_is_refused(labelled: Sandbox) -> None:
    if os.path.exists(PYTHON):
        call = "import ctypes; c = ctypes.CDLL(None, use_errno=True)\n"
        call += "print(c.mkdir(ctypes.c_void_p(0x123456789000), 0o700), ctypes.get_errno())\n"
        call += "print(c.mkdir(None, 0o700), ctypes.get_errno())\n"
        call += "print(c.mkdir(b'x' * 5000, 0o700), ctypes.get_errno())"
        assert labelled.run(PYTHON, "-c", call).out.decode().split() == ["-1", "13", "-1", "14", "-1", "36"]
        assert len(labelled.notes(wire.NoteKind.PATH_UNREADABLE)) == 1


def test_labels_do_not_replace_landlock(start: Start) -> None:
    with start(flags=wire.SetupFlag.FILE_CHANGES, landlock=RULES[:1]) as box:
        assert box.shell("echo x > .git/x; echo x > y").code != 0
        assert not os.listdir(box.work)


def test_a_call_whose_flags_lie_in_memory_does_not_exist(start: Start) -> None:
    """They could change after any look; libraries fall back to openat."""
    with start(flags=wire.SetupFlag.FILE_CHANGES) as box:
        result = box.run(
            PYTHON, "-c",
            "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True);"
            "libc.syscall(437, -100, b'plain', (ctypes.c_uint64 * 3)(0o101, 0o600, 0), 24);"
            "print(errno.errorcode[ctypes.get_errno()])",
        )  # fmt: skip
        assert result.out.strip() == b"ENOSYS"
        assert not (box.work / "plain").exists()
