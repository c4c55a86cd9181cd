"""What is shown as the workspace, and what lies in it before a task starts: an earlier task may have written it."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.driver import PROJECT, Broker, remove_folder

PLANT = "import sys\nfor p in sys.argv[1:]:\n try: open(p, 'a').write('planted'); print('ok', p)\n except OSError as e: print(e.errno, p)"


def git(folder: Path, *words: str) -> None:
    """Run git as the workspace's owner."""
    subprocess.run(
        ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "git", "-c", "user.name=x", "-c", "user.email=x@x", *words],
        cwd=folder, check=True, capture_output=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )  # fmt: skip


def given(path: Path, text: str) -> Path:
    """Make a file of the workspace's owner, its folders too."""
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            os.chown(parent, 1000, 1000)
    path.write_text(text)
    os.chown(path, 1000, 1000)
    return path


# Git folders outside


def test_a_git_file_that_points_at_a_foreign_folder_shows_nothing_of_it(for_somebody: Broker) -> None:
    foreign = for_somebody.folder / "foreign"
    given(foreign / "secret", "s3cret")
    given(foreign / "HEAD", "ref: refs/heads/main\n")
    for_somebody.file(".git", f"gitdir: {foreign}\n")
    done = for_somebody.run("sh", "-c", f"cat {foreign}/secret; ls {foreign}")
    assert b"s3cret" not in done.out and done.code != 0


def test_a_folder_that_calls_itself_a_worktree_does_not_show_what_lies_above_it(for_somebody: Broker) -> None:
    """Written by a task in a workspace beside this one, below a folder that happens to be called worktrees."""
    projects = for_somebody.folder / "projects"
    given(projects / "secret", "s3cret")
    liar = projects / "worktrees" / "liar"
    given(liar / "gitdir", f"{for_somebody.workspace}/.git\n")
    given(liar / "commondir", "../..\n")
    given(liar / "HEAD", "ref: refs/heads/main\n")
    for_somebody.file(".git", f"gitdir: {liar}\n")
    done = for_somebody.run("sh", "-c", f"cat {projects}/secret; ls {projects}")
    assert b"s3cret" not in done.out and done.code != 0


@pytest.fixture
def worktree(for_somebody: Broker) -> Path:
    """A repository beside the workspace, and the workspace as its worktree. Returns the repository."""
    main = for_somebody.folder / "area" / "main"
    given(main / "file", "one\n")
    git(main, "init", "-q", "-b", "main")
    git(main, "add", "file")
    git(main, "commit", "-q", "-m", "one")
    git(main, "worktree", "add", "-q", "../tree", "-b", "side")
    return main


def test_the_repository_behind_a_worktree_keeps_its_hooks_and_config(for_somebody: Broker, worktree: Path) -> None:
    own = worktree / ".git"
    shutil.rmtree(own / "hooks")
    config = (own / "config").read_text()
    targets = [own / "config", own / "hooks", own / "hooks/pre-commit", own / "config.worktree", own / "info/attributes"]
    script = "import os\ntry: os.mkdir(__import__('sys').argv[2])\nexcept OSError: pass\n" + PLANT
    done = for_somebody.run("python3", "-c", script, *map(str, targets), workspace=worktree.parent / "tree")
    # Of some the content decides, when it would land; these attributes name no filter.
    made = {os.fsdecode(line.split()[1]) for line in done.out.splitlines() if line.startswith(b"ok ")}
    assert len(done.out.splitlines()) == len(targets), done
    assert made <= {row["path"] for row in done["changes"]["withheld"]} | {str(own / "info/attributes")}
    assert (own / "config").read_text() == config
    assert not [*own.glob("hooks/*"), *own.glob("config.worktree")]


def test_git_works_in_a_worktree_all_the_same(for_somebody: Broker, worktree: Path) -> None:
    tree = worktree.parent / "tree"
    (tree / "file").write_text("two\n")
    words = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-a", "-m", "two"]
    done = for_somebody.run(*words, workspace=tree)
    assert done.code == 0, done.err
    git(worktree, "rev-parse", "-q", "--verify", "side~1")


# Sources that are swapped while the task starts


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names all the time, as a task that still runs in the same workspace can."""
    stop = threading.Event()
    libc = ctypes.CDLL(None)

    def swap() -> None:
        while not stop.is_set():
            libc.syscall(316, -100, os.fsencode(one), -100, os.fsencode(other), 2)
            stop.wait(0.002)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _swapped(broker: Broker, one: Path, other: Path, command: list[str]) -> None:
    for _ in range(3 if broker.engine == 'docker' else 5):
        with swapping(one, other):
            done = broker.run(*command)
        assert b"s3cret" not in done.out, done
        assert done.code in {0, 1, 64, 78}, done


@pytest.mark.parametrize("kind", ["hooks", "secret"])
def test_a_protected_path_that_turns_into_a_link_shows_nothing_else(for_somebody: Broker, kind: str) -> None:
    """Engines follow links while they mount: relative ones of a bind's source resolve on the host."""
    victim = for_somebody.folder / "victim"
    given(victim / "secret", "s3cret")
    inner = for_somebody.workspace / "sub" / ".git" / "hooks"
    given(inner / "keep", "")
    given(for_somebody.workspace / "sub/.git/HEAD", "ref: refs/heads/main\n")
    link = for_somebody.workspace / "sub" / ".git" / "other"
    if kind == "hooks":
        link.symlink_to("../../../victim")
        _swapped(for_somebody, inner, link, ["sh", "-c", f"cat {victim}/secret {inner}/secret {link}/secret"])
    else:
        env = given(for_somebody.workspace / "sub" / ".env", "KEY=s3cret\n")
        plain = given(for_somebody.workspace / "sub" / "plain", "nothing\n")
        _swapped(for_somebody, env, plain, ["true"])


def test_a_workspace_that_turns_into_a_link_is_not_followed(for_somebody: Broker) -> None:
    victim = for_somebody.folder / "victim"
    given(victim / "secret", "s3cret")
    link = for_somebody.folder / "other"
    link.symlink_to("victim")
    before = victim.stat().st_mtime_ns
    for _ in range(3 if for_somebody.engine == 'docker' else 5):
        with swapping(for_somebody.workspace, link):
            done = for_somebody.run("sh", "-c", f"cat secret {victim}/secret; echo made > made")
        # The name may lead there before the survey looks: then that is the workspace that was asked for.
        surveyed = [event for event in for_somebody.events() if event["type"] == "run.started"]
        if surveyed and surveyed[-1]["workspace"] == str(for_somebody.workspace):
            assert b"s3cret" not in done.out, done
    if not (victim / "made").exists():
        assert victim.stat().st_mtime_ns == before


# What a workspace must not hold


def test_a_profile_planted_in_the_workspace_is_refused(for_somebody: Broker) -> None:
    for_somebody.file("profiles/evil.json", '{"profiles": {"evil": {"max_risk": "destructive"}}}')
    done = for_somebody.run("true", options=["--profile-dir", str(for_somebody.workspace / "profiles")], profile="evil")
    assert done.code == 65, done


@pytest.mark.parametrize("place", ["inside", "around"])
def test_the_journals_cannot_lie_in_the_workspace(for_somebody: Broker, place: str) -> None:
    state = for_somebody.workspace / "state" if place == "inside" else for_somebody.folder
    for_somebody.environment["BROKER_STATE_DIR"] = str(state)
    done = for_somebody.run("true")
    assert done.code == 64 and b"reach" in done.err, done


def test_the_owners_home_is_no_workspace_even_for_root(for_somebody: Broker) -> None:
    homes = [e.pw_dir for e in pwd.getpwall() if e.pw_uid and e.pw_dir.count("/") > 1 and os.path.isdir(e.pw_dir)
             and os.stat(e.pw_dir).st_uid == e.pw_uid]  # fmt: skip
    if not homes:
        pytest.skip("nobody here but root has a home")
    done = for_somebody.run("true", workspace=Path(homes[0]))
    assert done.code == 64 and b"home" in done.err, done


def test_the_broker_that_runs_the_task_cannot_be_rewritten_by_it(for_somebody: Broker) -> None:
    """Somebody works on this very project, or keeps it in the project's virtual environment."""
    for name in ("broker", "profiles"):
        shutil.copytree(PROJECT / name, for_somebody.workspace / name, symlinks=True)
    shutil.copytree(PROJECT / "sandbox_images", for_somebody.workspace / "sandbox_images")
    subprocess.run(["chown", "-R", "1000:1000", str(for_somebody.workspace)], check=True)
    for_somebody.environment["PYTHONPATH"] = str(for_somebody.workspace)
    names = ("broker/supervisor.py", "profiles/default.toml", "broker/new.py")
    before = [(for_somebody.workspace / name).read_bytes() for name in names[:2]]
    done = for_somebody.run("python3", "-c", PLANT, *names)
    # It may write to its own view of them; nothing of that lands.
    assert sorted(row["path"] for row in done["changes"]["withheld"]) == sorted(names), done
    assert [(for_somebody.workspace / name).read_bytes() for name in names[:2]] == before
    assert not (for_somebody.workspace / names[2]).exists()


def test_a_pipe_that_a_program_of_the_host_reads_is_hidden(for_somebody: Broker) -> None:
    path = for_somebody.workspace / "commands"
    os.mkfifo(path)
    os.chmod(path, 0o666)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = for_somebody.run("sh", "-c", "echo 'rm -rf /' > commands")
        assert os.read(reader, 100) == b"", done
    finally:
        os.close(reader)


def test_below_var_tmp_a_workspace_is_still_a_workspace(engine: str, make_broker: Callable[..., Broker]) -> None:
    """Temporary space has no protected names; the workspace must not be taken for it under a second name."""
    broker = make_broker(engine, owner=1000)
    place = Path(tempfile.mkdtemp(prefix="broker-test-", dir="/var/tmp"))
    try:
        os.chown(place, 1000, 1000)
        done = broker.run("python3", "-c", PLANT, ".envrc", "plain", workspace=place)
        assert done.out.splitlines()[1:] == [b"ok plain"], done
        assert not (place / ".envrc").exists() and (place / "plain").exists()
    finally:
        remove_folder(place)
