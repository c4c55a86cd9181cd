# What an agent, and the person beside it, do with git in a day; each repository is the task's own.
set -e
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.invalid GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.invalid
export GIT_CONFIG_NOSYSTEM=1
git init --quiet --initial-branch=main one
cd one
printf 'a\nb\nc\n' >file
git add file
git commit --quiet --message first
git checkout --quiet -b side
printf 'a\nB\nc\n' >file
git commit --quiet --all --message side
git checkout --quiet main
printf 'x' >other
git add other
git commit --quiet --message other
git merge --quiet --no-edit side
git --no-pager log --oneline --graph
git tag --annotate --message tag v1
git describe
printf 'changed\n' >>file
git stash --quiet
git status --short
git stash pop --quiet
git diff --stat
git checkout --quiet -- file
git --no-pager blame -s file
git mv other renamed
git rm --quiet file
git status --short
git reset --quiet --hard
git rebase --quiet side
git cherry -v side
git --no-pager grep -n B
git gc --quiet
git fsck --no-progress
git repack -a -d -q
git archive HEAD | tar -t
git bundle create --quiet ../one.bundle main
git bisect start HEAD HEAD~1 >/dev/null
git bisect run sh -c 'exit 1' | tail -n 1
git bisect reset 2>/dev/null >/dev/null
git ls-files --stage

# worktrees: `.git` is a file there
git worktree add --quiet ../tree side
cd ../tree
git status --short --branch
printf 'in a tree\n' >new
git add new
git commit --quiet --message 'in a tree'
cd ../one
git worktree list | sed 's|.*/||'
git worktree remove ../tree
git worktree prune

# submodules, and clones over pipes to programs of git itself
cd ..
git clone --quiet one two
git -C two -c protocol.file.allow=always submodule --quiet add ../one part 2>&1
git -C two commit --quiet --message 'a part'
git -C two submodule status
cd two/part
git checkout --quiet -b within
printf 'sub' >sub
git add sub
git commit --quiet --message 'in the part'
cd ../..
git -c protocol.file.allow=always clone --quiet --recurse-submodules "file://$PWD/two" three
git -C three submodule foreach --quiet 'git rev-parse HEAD'
git -C three fetch --quiet
git -C three push --quiet origin HEAD:refs/heads/pushed
git -C two branch --list pushed

# hooks of a repository that the task made run as they would
printf '#!/bin/sh\necho hook ran\nexit 1\n' >one/.git/hooks/pre-commit
chmod +x one/.git/hooks/pre-commit
cd one
printf 'y' >y
git add y
code=0
git commit --message refused || code=$?
echo "$code"
git -c core.pager='tr a-z A-Z' -c color.ui=never --paginate log --format=%s -n 1
git -c alias.hi='!echo alias' hi
GIT_EXTERNAL_DIFF='echo external' git --no-pager diff --cached y | cut -d ' ' -f 1,2
git merge-base --is-ancestor main side
