"""`commondir` in a repository's own folder says where its configuration and hooks are read (gitrepository-layout(5)).

A submodule's folder below `.git/modules`, and a worktree's below `.git/worktrees`, obey it as `.git` itself does: written
there, it hands the host's next `git status` a configuration of the task's own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conformance.driver import Broker

SCRIPT = """
import errno, os
for name in NAMES:
    try:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        open(name, 'w').write('../../../evil')
    except OSError as e: print(name, errno.errorcode[e.errno])
    else: print(name, 'written')
    try:
        open('plain', 'w').close()
        os.rename('plain', name)
    except OSError as e: print(name, errno.errorcode[e.errno])
    else: print(name, 'renamed')
"""
NAMES = [".git/modules/a/commondir", ".git/modules/new/commondir", ".git/modules/new/deep/commondir",
         ".git/worktrees/wt/commondir", ".git/worktrees/new/commondir"]  # fmt: skip
WHO = ["-c", "user.name=somebody", "-c", "user.email=somebody@host.example", "-c", "protocol.file.allow=always"]


@pytest.fixture
def repository(for_somebody: Broker) -> Path:
    """A repository with a submodule, and a worktree elsewhere."""

    def git(where: Path, *words: str) -> None:
        subprocess.run(["git", *WHO, *words], cwd=where, check=True, capture_output=True)

    library, work = for_somebody.folder / "library", for_somebody.workspace
    library.mkdir()
    git(library, "init", "-q")
    git(library, "commit", "-q", "--allow-empty", "-m", "first")
    subprocess.run(["git", "init", "-q", str(work)], check=True, capture_output=True)
    subprocess.run(["chown", "-R", "0:0", str(work)], check=True)  # git mistrusts other people's folders
    git(work, "submodule", "--quiet", "add", str(library), "a")
    git(work, "commit", "-q", "-m", "first")
    git(work, "worktree", "add", "-q", str(for_somebody.folder / "wt"))
    subprocess.run(["chown", "-R", "1000:1000", str(work)], check=True)
    return work


def test_no_repository_is_pointed_at_another_configuration(for_somebody: Broker, repository: Path) -> None:
    before = (repository / ".git/worktrees/wt/commondir").read_text()
    done = for_somebody.run("python3", "-c", SCRIPT.replace("NAMES", repr(NAMES)), stdin=b"")
    lines = done.out.decode().splitlines()
    assert len(lines) == 2 * len(NAMES), done
    assert not [line for line in lines if line.endswith(("written", "renamed"))]
    assert (repository / ".git/worktrees/wt/commondir").read_text() == before
    assert not list((repository / ".git/modules").rglob("commondir"))
