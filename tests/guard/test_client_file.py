"""`broker file read` and `broker file write`: the client's own verbs, on files of this host and in a sandbox."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import stat
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from broker.enforce import wire
from guard_harness import CLIENT, Sandbox, allow_all, guard_binary

Start = Callable[..., AbstractContextManager[Sandbox]]
Done = subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client."""
    path = tmp_path_factory.mktemp("client") / "broker"
    path.symlink_to(guard_binary())
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder that it runs in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def broker_file(program: Path, work: Path) -> Callable[..., Done]:
    """Run `broker file …`."""

    def run(*words: str | Path, content: bytes = b"", umask: int = 0o022, **options: object) -> Done:
        return subprocess.run(
            [program, "file", *words], input=content, capture_output=True, check=False, cwd=work, umask=umask, timeout=20,
            **options,  # type: ignore[call-overload]
        )  # fmt: skip

    return run


def facts(path: Path) -> str:
    """What `--if` wants to hear."""
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def left(work: Path) -> list[str]:
    """The names in a folder."""
    return sorted(os.listdir(work))


# read


def test_a_file_comes_after_its_facts(broker_file: Callable[..., Done], work: Path) -> None:
    content = bytes(range(256)) * 1000
    (work / "file").write_bytes(content)
    (work / "file").chmod(0o751)
    done = broker_file("read", "file")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == f"{facts(work / 'file')} 751\n".encode() + content


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("3",), b"3456789"), (("3", "4"), b"3456"), (("0", "0"), b""), (("10",), b""), (("99", "5"), b""), (("9", "9223372036854775807"), b"9")],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_part_of_a_file(broker_file: Callable[..., Done], work: Path, words: Sequence[str], expected: bytes) -> None:
    (work / "file").write_bytes(b"0123456789")
    done = broker_file("read", "file", *words)
    assert done.returncode == 0
    assert done.stdout.split(b"\n", 1) == [f"{facts(work / 'file')} 644".encode(), expected]


def test_an_empty_file_and_a_name_that_looks_like_an_option(broker_file: Callable[..., Done], work: Path) -> None:
    (work / "--help").touch()
    done = broker_file("read", "--", "--help")
    assert (done.returncode, done.stdout) == (0, f"{facts(work / '--help')} 644\n".encode())


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda path: None, 2, b": no such file\n"),
        (lambda path: path.mkdir(), 1, b": it is a folder\n"),
        (os.mkfifo, 1, b": it is no regular file\n"),
        (lambda path: path.symlink_to("/dev/zero"), 1, b": it is no regular file\n"),
        (lambda path: path.symlink_to(path), 1, b": Too many levels of symbolic links\n"),
        (lambda path: path.symlink_to("nowhere"), 2, b": no such file\n"),
    ],
    ids=["missing", "folder", "fifo", "device", "loop", "link to nothing"],
)
def test_what_is_no_file_is_not_read(
    broker_file: Callable[..., Done], work: Path, make: Callable[[Path], None], code: int, message: bytes
) -> None:
    make(work / "x")
    done = broker_file("read", "x")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"broker: x" + message)


def test_a_name_cannot_repaint_the_terminal(broker_file: Callable[..., Done]) -> None:
    done = broker_file("read", "a\x1b[2J\nb\x7f\udcff")
    assert done.stderr == b"broker: a\\x1b[2J\\x0ab\\x7f\xff: no such file\n"
    assert broker_file("read", "y" * 5000).stderr.endswith(b": File name too long\n")


def test_a_reader_that_leaves_ends_it_quietly(program: Path, work: Path) -> None:
    (work / "file").write_bytes(b"x" * 1_000_000)
    command = f"set -o pipefail; {shlex.quote(str(program))} file read file | head -c 5"
    done = subprocess.run(["bash", "-c", command], cwd=work, capture_output=True, check=False)
    assert (done.returncode, len(done.stdout), done.stderr) == (141, 5, b"")


# write


def test_a_new_file_has_the_usual_mode_and_nothing_else_is_left(broker_file: Callable[..., Done], work: Path) -> None:
    content = os.urandom(200_000)
    done = broker_file("write", "file", content=content)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (work / "file").read_bytes() == content
    assert stat.S_IMODE((work / "file").stat().st_mode) == 0o644
    assert broker_file("write", "private", umask=0o077).returncode == 0
    assert stat.S_IMODE((work / "private").stat().st_mode) == 0o600
    assert left(work) == ["file", "private"]


def test_an_old_file_is_replaced_and_keeps_its_mode(broker_file: Callable[..., Done], work: Path) -> None:
    (work / "file").write_text("a long content\n")
    (work / "file").chmod(0o750)
    with (work / "file").open() as reader:
        assert broker_file("write", "file", content=b"new", umask=0o077).returncode == 0
        assert reader.read() == "a long content\n"  # who had it open still reads the old one
    assert (work / "file").read_text() == "new"
    assert stat.S_IMODE((work / "file").stat().st_mode) == 0o750


@pytest.mark.parametrize("path", ["{work}/file", "./file", "deep/../file"])
def test_any_path_to_it_will_do(broker_file: Callable[..., Done], work: Path, path: str) -> None:
    (work / "deep").mkdir()
    assert broker_file("write", path.format(work=work), content=b"x").returncode == 0
    assert (work / "file").read_text() == "x"


def test_a_name_as_long_as_may_be(broker_file: Callable[..., Done], work: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        assert broker_file("write", name, content=b"x").returncode == 0
        assert broker_file("write", name, content=b"y").returncode == 0
        assert (work / name).read_text() == "y"
    done = broker_file("write", "n" * 256)
    assert (done.returncode, done.stderr[-21:]) == (1, b": File name too long\n")
    assert len(left(work)) == 2


def test_a_symlink_stays_and_what_it_leads_to_is_written(broker_file: Callable[..., Done], work: Path) -> None:
    (work / "deep/er").mkdir(parents=True)
    (work / "deep/file").write_text("old")
    (work / "link").symlink_to("deep/er/inner")
    (work / "deep/er/inner").symlink_to("../file")
    (work / "dangling").symlink_to(work / "deep/made")
    assert broker_file("write", "link", content=b"new").returncode == 0
    assert broker_file("write", "dangling", content=b"made").returncode == 0
    assert (work / "link").readlink() == Path("deep/er/inner")
    assert (work / "deep/er/inner").is_symlink()
    assert ((work / "deep/file").read_text(), (work / "deep/made").read_text()) == ("new", "made")
    assert left(work / "deep") == ["er", "file", "made"]
    (work / "loop").symlink_to("loop")
    done = broker_file("write", "loop")
    assert (done.returncode, done.stderr) == (1, b"broker: loop: Too many levels of symbolic links\n")


def test_parents_are_made_when_asked_for(broker_file: Callable[..., Done], work: Path) -> None:
    done = broker_file("write", "a/b/c", content=b"x")
    assert (done.returncode, done.stderr) == (1, b"broker: a/b/c: its folder does not exist (--parents makes it)\n")
    assert broker_file("write", "--parents", "a//b/c", content=b"x").returncode == 0
    assert broker_file("write", "--parents", work / "a/b/d", content=b"y").returncode == 0
    assert ((work / "a/b/c").read_text(), (work / "a/b/d").read_text()) == ("x", "y")
    (work / "file").touch()
    for words in (("file/x",), ("--parents", "file/x/y")):
        done = broker_file("write", *words)
        assert done.returncode == 1, words
        assert done.stderr.endswith((b": Not a directory\n", b": File exists\n"))


@pytest.mark.parametrize("path", ["deep", "deep/", ".", "..", "deep/.", "/", "deep/link"])
def test_a_folder_is_not_replaced(broker_file: Callable[..., Done], work: Path, path: str) -> None:
    (work / "deep").mkdir()
    (work / "deep/link").symlink_to(".")
    done = broker_file("write", path)
    assert (done.returncode, done.stderr) == (1, f"broker: {path}: it is a folder\n".encode())
    assert left(work) == ["deep"]
    os.mkfifo(work / "fifo")
    assert broker_file("write", "fifo").stderr == b"broker: fifo: it is no regular file\n"


def test_new_means_that_nothing_is_there(broker_file: Callable[..., Done], work: Path) -> None:
    assert broker_file("write", "--new", "file", content=b"x").returncode == 0
    (work / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        done = broker_file("write", "--new", name, content=b"y")
        assert (done.returncode, done.stderr) == (3, f"broker: {name}: it exists already\n".encode())
    assert (work / "file").read_text() == "x"
    assert left(work) == ["file", "link"]


def test_if_means_that_it_is_still_that_file(broker_file: Callable[..., Done], work: Path) -> None:
    file = work / "file"
    file.write_text("one")
    before = facts(file)
    assert broker_file("write", "--if", before, "file", content=b"two").returncode == 0
    for words in (("--if", before, "file"), ("--if", before, "missing")):
        done = broker_file("write", *words, content=b"three")
        assert (done.returncode, done.stderr) == (3, f"broker: {words[-1]}: it changed meanwhile\n".encode())
    assert file.read_text() == "two"
    size, mtime, inode = facts(file).split()
    for near in (f"{int(size) + 1} {mtime} {inode}", f"{size} {int(mtime) + 1} {inode}", f"{size} {mtime} {int(inode) + 1}"):
        assert broker_file("write", "--if", near, "file").returncode == 3
    assert left(work) == ["file"]


@pytest.fixture
def under_way(program: Path, work: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start a write, and come back when its temporary file holds the first bytes."""

    def start(*words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([program, "file", "write", *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=work)
        assert process.stdin
        process.stdin.write(b"begun")
        process.stdin.flush()
        while not any(path.stat().st_size == 5 for path in work.glob(".*.broker-*")):
            assert process.poll() is None
        return process

    return start


@pytest.mark.parametrize(
    ("words", "message"), [(("--if",), b": it changed meanwhile\n"), (("--new",), b": it exists already\n")], ids=["if", "new"]
)
def test_what_changes_while_the_input_comes_counts(
    under_way: Callable[..., subprocess.Popen[bytes]], work: Path, words: tuple[str, ...], message: bytes
) -> None:
    if words == ("--if",):
        (work / "file").write_text("old")
        words = ("--if", facts(work / "file"))
    process = under_way(*words, "file")
    (work / "file").write_text("somebody else's")
    _, said = process.communicate()
    assert (process.returncode, said) == (3, b"broker: file" + message)
    assert (work / "file").read_text() == "somebody else's"
    assert left(work) == ["file"]


def test_the_temporary_file_is_beside_it_private_and_named_after_it(
    under_way: Callable[..., subprocess.Popen[bytes]], work: Path
) -> None:
    process = under_way("file")
    [name] = left(work)
    assert re.fullmatch(r"\.file\.broker-[0-9a-f]{16}", name)
    assert stat.S_IMODE((work / name).stat().st_mode) == 0o600
    process.communicate()
    assert (process.returncode, left(work)) == (0, ["file"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_write_leaves_nothing(
    under_way: Callable[..., subprocess.Popen[bytes]], work: Path, number: signal.Signals
) -> None:
    (work / "file").write_text("old")
    process = under_way("file")
    process.send_signal(number)
    process.communicate()
    assert process.returncode == -number
    assert (work / "file").read_text() == "old"
    assert left(work) == ["file"]


@pytest.mark.parametrize("stdin", ["closed", "folder"])
def test_an_input_that_cannot_be_read_leaves_the_old_file(program: Path, work: Path, stdin: str) -> None:
    (work / "file").write_text("old")
    how = {"closed": "<&-", "folder": "</"}[stdin]
    done = subprocess.run(["bash", "-c", f"{shlex.quote(str(program))} file write file {how}"], cwd=work, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr in (b"broker: file: Bad file descriptor\n", b"broker: file: Is a directory\n")
    assert (work / "file").read_text() == "old"
    assert left(work) == ["file"]


def test_a_limit_of_file_size_is_an_error_like_another(broker_file: Callable[..., Done], work: Path) -> None:
    (work / "file").write_text("old")

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = broker_file("write", "file", content=b"x" * 5000, preexec_fn=small)
    assert (done.returncode, done.stderr) == (1, b"broker: file: File too large\n")
    assert (work / "file").read_text() == "old"
    assert left(work) == ["file"]


@pytest.mark.parametrize(
    "words",
    [
        (), ("reed", "x"), ("read",), ("read", "x", "-1"), ("read", "x", "1x"), ("read", "x", ""), ("read", "x", "0", "1", "2"),
        ("read", "x", "99999999999999999999"), ("write",), ("write", ""), ("write", "a", "b"), ("write", "--mode", "a"), ("write", "--if", "a"),
        ("write", "--if", "1 2", "a"), ("write", "--if", "1 2 3 ", "a"), ("write", "--if", " 1 2 3", "a"), ("write", "--if", "1 2 x", "a"),
        ("write", "--new", "--if", "1 2 3", "a"), ("write", "--if"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_words_that_make_no_sense_change_nothing(broker_file: Callable[..., Done], work: Path, words: tuple[str, ...]) -> None:
    done = broker_file(*words, content=b"x")
    assert (done.returncode, done.stdout) == (64, b"")
    assert done.stderr.startswith(b"broker: usage: broker file read PATH")
    assert left(work) == []


def test_help_comes_with_examples(broker_file: Callable[..., Done]) -> None:
    done = broker_file("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"broker file read src/main.go 0 4096" in done.stdout


# In a sandbox


@pytest.mark.needs_bubblewrap
def test_it_needs_no_calls_and_obeys_the_sandbox(start: Start) -> None:
    with start() as box:
        assert box.shell(f"echo hello | {CLIENT} file write --parents a/b").code == 0
        assert (box.work / "a/b").read_text() == "hello\n"
        assert box.run(CLIENT, "file", "read", "a/b").out.endswith(b" 644\nhello\n")
        refused = box.shell(f"echo x | {CLIENT} file write /dev/x")
        assert (refused.code, refused.err) == (13, b"broker: /dev/x: Permission denied\n")
        refused = box.shell(f"echo x | {CLIENT} file write /usr/x")
        assert (refused.code, refused.err) == (1, b"broker: /usr/x: Read-only file system\n")


@pytest.mark.needs_bubblewrap
@pytest.mark.parametrize("op", [wire.FileOp.WRITE, wire.FileOp.RENAME])
def test_a_refusal_by_the_gate_has_its_own_exit_code_and_leaves_nothing(start: Start, op: wire.FileOp) -> None:
    def policy(question: wire.ExecAsked | wire.FileAsked) -> wire.Answer:
        refuse = isinstance(question, wire.FileAsked) and question.op is op
        return wire.Answer(request=question.request, allow=not refuse)

    with start(policy, flags=wire.SetupFlag.FILE_CHANGES, watched_names=(".bashrc", "*.broker-*")) as box:
        (box.work / ".bashrc").write_text("old")
        done = box.shell(f"echo x | {CLIENT} file write .bashrc")
        assert (done.code, done.err) == (13, b"broker: .bashrc: Permission denied\n")
        assert (box.work / ".bashrc").read_text() == "old"
        assert os.listdir(box.work) == [".bashrc"]
        assert {question.op for question in box.files()} >= {op}
        box.policy = allow_all
        assert box.shell(f"echo x | {CLIENT} file write .bashrc").code == 0
        assert (box.work / ".bashrc").read_text() == "x\n"
