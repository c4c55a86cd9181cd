# In a repository that was there before the task: what an agent does in its workspace.
set -e
export GIT_AUTHOR_DATE='2024-01-02T00:00:00Z' GIT_COMMITTER_DATE='2024-01-02T00:00:00Z'
git status --short --branch
printf 'changed\n' >>file
git diff --stat
git add file
git commit --quiet --message changed
git checkout --quiet -b topic
printf 'more\n' >more
git add more
git commit --quiet --message more
git checkout --quiet -
git merge --quiet --no-edit topic
printf 'stashed\n' >>file
git stash --quiet
git stash pop --quiet
git checkout --quiet -- file
git tag done
git worktree add --quiet --detach tree
git -C tree log --oneline
git worktree remove tree
git --no-pager log --oneline
git status --short
