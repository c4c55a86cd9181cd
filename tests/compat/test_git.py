"""git: a day's work, worktrees, submodules."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = pytest.mark.toolchain("base", "git")


# Writes what a task may not change (.git/config), so it runs before the task.
REPOSITORY = """
export GIT_AUTHOR_DATE=2024-01-01T00:00:00Z GIT_COMMITTER_DATE=2024-01-01T00:00:00Z
git init --quiet --initial-branch=main
git config user.name A
git config user.email a@example.invalid
printf 'text\\n' >file
git add file existing.sh
git commit --quiet --message first
"""
WORKTREE = f"""
mkdir ../real
cp existing.sh ../real
cd ../real
{REPOSITORY}
rm -r ../project
git worktree add --quiet ../project -b work
"""
SUBMODULE = f"""
mkdir ../real
cp existing.sh ../real
cd ../real
{REPOSITORY}
cd ..
rm -r project
git init --quiet
git -c protocol.file.allow=always submodule --quiet add ./real project
git -C project config user.name A
git -C project config user.email a@example.invalid
"""


@pytest.mark.parametrize("before", [REPOSITORY, WORKTREE, SUBMODULE], ids=["repository", "worktree", "submodule"])
def test_a_workspace_that_is_a(both: SideBySide, before: str) -> None:
    ran = both.same(["bash", "existing.sh"], project="git", before=before)
    assert ran.exit_code == 0
    assert "changed" in ran.stdout


def test_a_setting_of_the_workspaces_own_repository_stays_as_it_is(both: SideBySide) -> None:
    both.effects = ("unknown",)  # all the others here may leave behind what runs later
    both.fresh("git", REPOSITORY)
    both.inside(["git", "config", "alias.x", "!echo planted"])  # the task sees it; it does not land
    assert "planted" not in (both.workspace / ".git/config").read_text(encoding="utf-8")


def test_deleting_a_branch_there_works(both: SideBySide) -> None:
    """git writes the file with its settings anew, without those of the branch."""
    both.fresh("git", f"{REPOSITORY} git branch topic")
    ran = both.inside(["git", "branch", "--delete", "topic"])
    assert (ran.exit_code, ran.stdout[:20]) == (0, "Deleted branch topic")
    assert ran.stderr == ""


def test_a_day_with_git(both: SideBySide) -> None:
    # Cloning from a folder is labelled as egress too: what a path is for git is decided by git's settings.
    both.effects = (*both.effects, "network_egress")
    ran = both.same(["bash", "everyday.sh"], project="git")
    assert "hook ran" in ran.stderr + ran.stdout
