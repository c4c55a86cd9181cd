"""What a task does with git, under the profile for builders: commits land, what git would run later does not, and git
finds the real repository in order afterwards.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.driver import Broker, Done
from conformance.fixtures import ENGINES, SOMEBODY, as_root

pytestmark = as_root  # broker is root's, the repository somebody else's: then owners matter

NAMES = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "A"), ("EMAIL", "a@example.invalid"))}
EXPORTS = "; ".join(f"export {name}={value}" for name, value in NAMES.items())


class Repository:
    """A broker, its workspace, and git on the host as the workspace's owner."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.place = broker, broker.workspace
        broker.shipped("builder")
        home = broker.folder / "home"
        home.mkdir()
        (home / ".gitconfig").write_text('[init]\n\tdefaultBranch = main\n[protocol "file"]\n\tallow = always\n')
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C", **NAMES}

    def outside(self, script: str, where: Path | None = None) -> str:
        """Run a script on the host. Raises CalledProcessError."""
        words = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", "bash", "-ec", script]
        done = subprocess.run(words, cwd=where or self.place, env=self.environment, check=True, capture_output=True, text=True)
        return done.stdout

    def inside(self, script: str, profile: str = "builder") -> Done:
        """Run a script in the sandbox, to its end."""
        done = self.broker.run("bash", "-c", f"{EXPORTS}\n{script}", profile=profile, workspace=self.place)
        assert self.broker.nothing_survives()
        return done

    def is_in_order(self, where: Path | None = None) -> bool:
        """Whether git finds nothing wrong, and nothing changed since the last commit."""
        return self.outside("git fsck --strict; git status --porcelain", where) == ""


@pytest.fixture(params=ENGINES)
def git(request: pytest.FixtureRequest, make_broker: Callable[..., Broker]) -> Iterator[Repository]:
    return Repository(make_broker(str(request.param), owner=SOMEBODY))


COMMITTED = "git init -q; echo one >file; mkdir src; echo a >src/a; git add .; git commit -qm first"


def withheld(done: Done) -> dict[str, str]:
    return {row["path"]: row["class"] for row in done["changes"]["withheld"]}


def test_a_repository_made_inside_lands_whole(git: Repository) -> None:
    done = git.inside(f"set -e; {COMMITTED}; git branch topic; git checkout -q topic; echo two >>file; git commit -qam second")

    assert done.code == 0, done.err
    assert withheld(done) == {}
    assert done["changes"]["conflicts"] == []
    assert git.is_in_order()
    assert git.outside("git log --format=%s; git log --format=%s topic~1; git branch --format=x") == "second\nfirst\nfirst\nx\nx\n"
    assert all(path.lstat().st_uid == SOMEBODY for path in git.place.rglob("*"))


def test_work_in_a_repository_lands_and_git_status_is_right_afterwards(git: Repository) -> None:
    git.outside(COMMITTED)
    done = git.inside(
        "set -e; git checkout -q -b topic; echo two >>file; git mv src/a src/b; git rm -q --cached file; git add file; git commit -qm second;"
        "git checkout -q -; git merge -q topic; git tag v1; git branch -q -d topic; echo three >>file; git add file; echo loose >loose"
    )

    assert done.code == 0, done.err
    assert withheld(done) == {}
    assert git.outside("git fsck --strict; git log --format=%s; git tag; git branch --format=x; git status --porcelain") == (
        "second\nfirst\nv1\nx\nM  file\n?? loose\n"
    )


def test_a_clone_made_inside_lands(git: Repository) -> None:
    git.outside(COMMITTED)
    done = git.inside("git clone -q --no-hardlinks . copied && git -C copied log --format=%s")

    assert done.out == b"first\n", done.err
    # Where it was cloned from is something that later fetches obey.
    assert set(withheld(done)) <= {"copied/.git/config"}
    assert git.outside("git fsck --strict; git log --format=%s; git status --porcelain", git.place / "copied") == "first\n"


def test_harmless_settings_land(git: Repository) -> None:
    git.outside(COMMITTED)
    done = git.inside("git config user.name Somebody; git config core.autocrlf false; git config pull.rebase true; git checkout -q -b topic")

    assert withheld(done) == {}
    assert git.outside("git config user.name; git config core.autocrlf; git config pull.rebase") == "Somebody\nfalse\ntrue\n"
    assert git.is_in_order()


# What git would run, or obey, later. Written with cp and rename, so that no word of a command names it.
PLANTS = {
    "hook": (".git/hooks/pre-commit", "#!/bin/sh\\ntouch ran\\n"),
    "alias": (".git/config", "[core]\\n\\tbare = false\\n[alias]\\n\\tst = !touch ran\\n"),
    "fsmonitor": (".git/config", "[core]\\n\\tfsmonitor = ./x\\n"),
    "hooks-path": (".git/config", "[core]\\n\\thooksPath = ./x\\n"),
    "include": (".git/config", "[include]\\n\\tpath = ../x\\n"),
    "attributes": (".git/info/attributes", "* filter=x\\n"),
    "submodule-hook": (".git/modules/sub/hooks/post-checkout", "#!/bin/sh\\ntouch ran\\n"),
    "submodule-config": (".git/modules/sub/config", "[core]\\n\\tfsmonitor = ./x\\n"),
    "worktree-config": (".git/config.worktree", "[core]\\n\\tfsmonitor = ./x\\n"),
    "nested-hook": ("nested/.git/hooks/post-checkout", "#!/bin/sh\\ntouch ran\\n"),
}  # fmt: skip
PLANT = """
import os, sys
for target, text in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open("new", "w") as file: file.write(text.encode().decode("unicode_escape"))
        os.chmod("new", 0o755)
        os.rename("new", target)
    except OSError as error: print(target, error.strerror)
    if os.path.exists("new"): os.unlink("new")
"""


def test_what_git_would_run_later_does_not_land(git: Repository) -> None:
    git.outside(f"{COMMITTED}; mkdir -p .git/modules/sub/hooks nested; echo '[core]' >.git/modules/sub/config; echo ref: refs/heads/x >.git/modules/sub/HEAD")
    before = {path: path.read_bytes() for path in git.place.rglob("*") if path.is_file()}
    for name, (target, text) in PLANTS.items():
        done = git.broker.run("python3", "-c", PLANT, target, text, workspace=git.place)
        refused = target.encode() in done.out or target in withheld(done)
        assert refused, (name, done.out, done["changes"])
        assert {path: path.read_bytes() for path in git.place.rglob("*") if path.is_file()} == before, name
        assert any(row["class"] == "persistence" for row in done["denials"]), name
    git.outside("git status; git commit -q --allow-empty -m mine; git checkout -q -b other; ! test -e ran")


# Repositories whose `.git` is a file


@pytest.fixture
def worktree(git: Repository) -> Path:
    """The workspace is a worktree; its repository lies beside it."""
    real = git.broker.folder / "real"
    real.mkdir()
    git.place = git.broker.folder / "tree"
    git.place.mkdir()
    subprocess.run(["chown", f"{SOMEBODY}:{SOMEBODY}", str(git.place), str(real)], check=True)
    git.outside(f"{COMMITTED}; git worktree add -q ../tree -b work", real)
    return real


def test_in_a_worktree_commits_land_in_the_repository_beside_it(git: Repository, worktree: Path) -> None:
    done = git.inside("set -e; echo two >>file; git add file; git commit -qm second; git status --porcelain")

    assert (done.code, done.out) == (0, b""), done.err
    assert withheld(done) == {}
    assert git.outside("git log --format=%s; cat file") == "second\nfirst\none\ntwo\n"
    assert git.is_in_order()
    assert git.is_in_order(worktree)
    assert git.outside("git log --format=%s work", worktree) == "second\nfirst\n"


def test_from_a_worktree_nothing_is_planted_in_the_repository_beside_it(git: Repository, worktree: Path) -> None:
    before = {path: path.read_bytes() for path in worktree.rglob("*") if path.is_file()}
    for target, text in ((".git/hooks/pre-commit", "x\\n"), (".git/config", PLANTS["alias"][1]), (".git/worktrees/tree/config.worktree", PLANTS["fsmonitor"][1]),
                         (".git/worktrees/tree/commondir", "/tmp\\n")):  # fmt: skip
        git.broker.run("python3", "-c", PLANT, f"{worktree}/{target}", text, workspace=git.place)
        assert {path: path.read_bytes() for path in worktree.rglob("*") if path.is_file()} == before, target


def test_in_a_submodule_commits_land(git: Repository) -> None:
    git.outside(COMMITTED)
    git.outside("mkdir library; cd library; git init -q; echo l >l; git add l; git commit -qm library")
    git.outside('git submodule --quiet add "$PWD/library" sub; rm -rf library; git commit -qm submodule')
    done = git.inside("set -e; cd sub; echo m >>l; git add l; git commit -qm inner; cd ..; git add sub; git commit -qm outer")

    assert withheld(done) == {}, done.err
    assert git.outside("git log -1 --format=%s; git -C sub log -1 --format=%s; git status --porcelain") == "outer\ninner\n"
    assert git.outside("git fsck --strict; git -C sub fsck --strict") == ""


def test_a_submodule_may_be_the_workspace(git: Repository) -> None:
    git.outside(COMMITTED)
    git.outside("mkdir library; cd library; git init -q; echo l >l; git add l; git commit -qm library")
    git.outside('git submodule --quiet add "$PWD/library" sub; rm -rf library; git commit -qm submodule')
    top, git.place = git.place, git.place / "sub"
    done = git.inside("set -e; echo m >>l; git add l; git commit -qm inner")

    assert (done.code, withheld(done)) == (0, {}), done.err
    assert git.outside("git log -1 --format=%s; cat l") == "inner\nl\nm\n"
    assert git.is_in_order()
    assert git.outside("git status --porcelain", top) == " M sub\n"
