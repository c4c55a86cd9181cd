"""INVARIANT: of two plain names in one folder the classifier says the same, so that landing may ask once a folder."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.classify import classify
from broker.classify.contents import looks_into
from broker.classify.context import Context
from broker.classify.plain_names import is_plain
from broker.request.operation import FileAction, FileChange

WORKSPACE = "/work/project"
CONTEXT = Context(cwd=WORKSPACE, home="/home/agent", workspace=WORKSPACE)

# Folders that mean something, alone and below others, and some that do not.
FOLDERS = st.sampled_from((
    "src", "lib", "docs", "build", "a", "node_modules", "vendor", ".git", "hooks", "info", "refs", "objects", "modules",
    ".github", "workflows", "actions", ".gitlab", "ci", ".vscode", ".idea", ".husky", "_", ".claude", "commands", "skills",
    ".cursor", "rules", ".config", "systemd", "user", "autostart", ".ssh", ".aws", ".kube", "bin", "sbin", "etc", "cron.d",
    "profile.d", "git-hooks", ".circleci", ".devcontainer", ".direnv", ".tekton", "tests", ".cargo", ".gnupg", ".local", "share",
    "__pycache__", "site-packages", ".venv", "GITHUB", ".GitHub", "Workflows", "HOOKS", "secrets", ".docker", "templates",
))  # fmt: skip
STEMS = st.sampled_from(("main", "a", "test", "index", "run", "hook", "deploy", "pre", "config", "x", "README", "util", "Make", "con"))
ENDS = st.sampled_from(("", ".py", ".c", ".go", ".js", ".txt", ".yml", ".yaml", ".json", ".toml", ".md", ".sh", ".cfg", ".pth",
                        ".service", ".pem", ".key", ".lock", ".xml", ".gradle", ".ini", ".conf", ".d", "~", ".bak"))  # fmt: skip
NAMES = st.one_of(
    st.builds(lambda stem, end: stem + end, STEMS, ENDS),
    st.text(st.sampled_from("abcXYZ019._- +@=%,:~#$&'\"(){}!;|<>`^"), min_size=1, max_size=12),
).filter(lambda name: name not in (".", "..") and is_plain(name))
ACTIONS = st.sampled_from((FileAction.WRITE, FileAction.DELETE, FileAction.MODE, FileAction.TIMES))
MODES = st.integers(0, 0o777).map(lambda mode: 0o100000 | mode)


def effects(folder: str, name: str, action: FileAction, mode: int) -> object:
    """What the classifier says of a change that lands."""
    path = f"{WORKSPACE}/{folder}/{name}" if folder else f"{WORKSPACE}/{name}"
    assessment = classify(FileChange(action=action, path=path, mode=mode, landing=True), CONTEXT)
    return assessment.effects, looks_into(path, CONTEXT)


@settings(max_examples=400, deadline=None)
@given(st.lists(FOLDERS, max_size=4).map("/".join), NAMES, NAMES, ACTIONS, MODES, MODES)
def test_two_plain_names_of_one_folder_are_judged_alike(
    folder: str, one: str, other: str, action: FileAction, mode: int, other_mode: int
) -> None:
    assume(one != other)
    assert effects(folder, one, action, mode) == effects(folder, other, action, other_mode)


def test_names_that_mean_something_are_not_plain() -> None:
    for name in (".envrc", "Makefile", "conftest.py", "package.json", ".bashrc", "id_rsa", ".env", "pre-commit", "a*b", "ÿ"):
        assert not is_plain(name), name
    for name in ("main.c", "notes.txt", "x"):
        assert is_plain(name), name
