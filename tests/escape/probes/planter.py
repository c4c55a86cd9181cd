"""Hostile code that may run, in a workspace: it plants what somebody else will run later, by every alias it knows.

Usage: planter.py NAME... Prints one JSON object: name -> "ok" or the errno's name. Each attempt works in a folder of
its own (`at-NAME`), or on what was in the workspace before.
"""

import ctypes
import errno
import json
import os
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
TEXT = "planted\n"
ATTEMPTS = {}


def attempt(function):
    ATTEMPTS[function.__name__] = function
    return function


def put(path, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    descriptor = os.open(path, flags, 0o755)
    os.write(descriptor, TEXT.encode())
    os.close(descriptor)


def stage(*names):
    """A folder of one's own, with plain files in it."""
    for name in names:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        put(name)


def system(number, *arguments):
    ctypes.set_errno(0)
    if LIBC.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


# -- what exists ----------------------------------------------------------------------------------------------------


@attempt
def hook_new():
    put(".git/hooks/pre-commit")


@attempt
def hook_existing():
    put(".git/hooks/commit-msg", os.O_WRONLY | os.O_APPEND)


@attempt
def config_open():
    put(".git/config", os.O_WRONLY)


@attempt
def config_truncate():
    os.truncate(".git/config", 0)


@attempt
def config_rename_over():
    put("mine")
    os.rename("mine", ".git/config")


@attempt
def config_unlink():
    os.unlink(".git/config")


@attempt
def config_hard_link():
    os.link(".git/config", "alias")
    put("alias", os.O_WRONLY)


@attempt
def config_by_proc_cwd():
    put("/proc/self/cwd/.git/config", os.O_WRONLY)


@attempt
def config_by_proc_root():
    put("/proc/self/root" + os.getcwd() + "/.git/config", os.O_WRONLY)


@attempt
def config_by_descriptor():
    put(f"/proc/self/fd/{os.open('.git/config', os.O_RDONLY)}", os.O_WRONLY)


@attempt
def config_by_path_descriptor():
    put(f"/dev/fd/{os.open('.git/config', os.O_PATH)}", os.O_WRONLY)


@attempt
def config_by_folder_descriptor():
    descriptor = os.open("config", os.O_WRONLY, dir_fd=os.open(".git", os.O_PATH))
    os.write(descriptor, TEXT.encode())


@attempt
def config_by_dots():
    put("sub/.././/.git/./hooks/../config", os.O_WRONLY)


@attempt
def config_by_link():
    os.symlink(".git", "link-to-git")
    put("link-to-git/config", os.O_WRONLY)


@attempt
def config_mode():
    os.chmod(".git/config", 0o777)


@attempt
def config_times():
    os.utime(".git/config", (0, 0))


@attempt
def config_attribute():
    os.setxattr(".git/config", "user.planted", b"1")


@attempt
def config_exchange():
    put("mine-too")
    system(316, -100, b"mine-too", -100, b".git/config", 2)


@attempt
def config_by_mapping():
    import mmap

    descriptor = os.open(".git/config", os.O_RDONLY)
    with mmap.mmap(descriptor, 6, prot=mmap.PROT_READ | mmap.PROT_WRITE) as area:
        area[:6] = b"planted"[:6]


@attempt
def git_renamed_away():
    os.rename(".git", "old-git")
    os.mkdir(".git")
    stage(".git/hooks/pre-commit", ".git/config")


@attempt
def hooks_renamed_away():
    os.rename(".git/hooks", ".git/hooks-old")
    stage(".git/hooks/pre-commit")


@attempt
def parent_renamed_and_rebuilt():
    """The mounts go with the folder; the name is free for another."""
    os.rename("sub", "sub-old")
    os.mkdir("sub")
    stage("sub/.git/hooks/pre-commit")


@attempt
def submodule_hook():
    put(".git/modules/libs/inner/hooks/post-checkout")


@attempt
def submodule_config():
    put(".git/modules/libs/inner/config", os.O_WRONLY)


@attempt
def workflow_existing():
    put(".github/workflows/ci.yml")


@attempt
def workflow_new():
    put(".github/workflows/new.yml")


@attempt
def workflow_folder_exchanged():
    stage("other/ci.yml")
    system(316, -100, b"other", -100, b".github/workflows", 2)


@attempt
def editor_existing():
    put(".vscode/settings.json")


@attempt
def editor_new():
    put(".vscode/tasks.json")


# -- what does not exist yet --------------------------------------------------------------------------------------------

FILES = (".envrc", ".bashrc", ".gitattributes", ".gitmodules", ".claude/settings.json", ".cursor/mcp.json", ".mcp.json",
         ".pre-commit-config.yaml", ".husky/pre-commit", ".gitlab-ci.yml", ".idea/workspace.xml", ".npmrc", ".exrc",
         "sitecustomize.py", "x.pth", ".devcontainer/devcontainer.json", ".git-file/.git", "CLAUDE.md", "AGENTS.md",
         ".zshrc", ".profile", ".ssh/authorized_keys", ".config/autostart/x.desktop", ".cargo/config.toml")  # fmt: skip
for _name in FILES:

    def _plain(name=_name):
        stage(f"at-plain/{name}")

    ATTEMPTS[f"new:{_name}"] = _plain

CASES = (".ENVRC", ".GIT/hooks/pre-commit", ".Git/config", ".VSCode/tasks.json", ".BashRC", ".GitHub/Workflows/ci.yml",
         "Claude.MD", ".Claude/settings.json")  # fmt: skip
for _name in CASES:

    def _case(name=_name):
        stage(f"at-case/{name}")

    ATTEMPTS[f"case:{_name}"] = _case


@attempt
def new_by_rename():
    stage("at-rename/x")
    os.rename("at-rename/x", "at-rename/.envrc")


@attempt
def new_by_link():
    stage("at-link/x")
    os.link("at-link/x", "at-link/.envrc")


@attempt
def new_by_symlink():
    stage("at-symlink/x")
    os.symlink("x", "at-symlink/.envrc")


@attempt
def new_by_dangling_link():
    os.mkdir("at-dangling")
    os.symlink(".envrc", "at-dangling/x")
    put("at-dangling/x")


@attempt
def new_by_unnamed_file():
    os.mkdir("at-unnamed")
    descriptor = os.open("at-unnamed", os.O_TMPFILE | os.O_RDWR, 0o755)
    os.write(descriptor, TEXT.encode())
    os.link(f"/proc/self/fd/{descriptor}", "at-unnamed/.envrc", follow_symlinks=True)


@attempt
def new_by_empty_path():
    os.mkdir("at-empty")
    descriptor = os.open("at-empty", os.O_TMPFILE | os.O_RDWR, 0o755)
    system(265, descriptor, b"", -100, b"at-empty/.envrc", 0x1000)


@attempt
def new_by_mknod():
    os.mkdir("at-mknod")
    os.mknod("at-mknod/.envrc")


@attempt
def new_by_pipe():
    os.mkdir("at-pipe")
    os.mkfifo("at-pipe/.envrc")


@attempt
def new_by_openat2():
    os.mkdir("at-openat2")
    how = ctypes.create_string_buffer(os.O_WRONLY.to_bytes(8, "little"), 24)
    how[0:8] = (os.O_WRONLY | os.O_CREAT).to_bytes(8, "little")
    how[8:16] = (0o755).to_bytes(8, "little")
    system(437, -100, b"at-openat2/.envrc", how, 24)


@attempt
def new_by_renamed_folder():
    stage("at-folder/x/workflows/ci.yml")
    os.rename("at-folder/x", "at-folder/.github")


@attempt
def new_by_renamed_folder_with_slash():
    stage("at-slash/x/settings.json")
    os.rename("at-slash/x/", "at-slash/.vscode/")


@attempt
def new_by_linked_folder():
    stage("at-linked/x/workflows/ci.yml")
    os.symlink("x", "at-linked/.github")


@attempt
def new_by_exchange():
    stage("at-exchange/x/settings.json", "at-exchange/y")
    system(316, -100, b"at-exchange/x", -100, b"at-exchange/.vscode", 0)


@attempt
def nested_repository():
    stage("at-nested/.git/hooks/post-checkout")


@attempt
def nested_repository_by_rename():
    stage("at-nested-rename/x/hooks/post-checkout", "at-nested-rename/x/HEAD", "at-nested-rename/x/config")
    os.rename("at-nested-rename/x", "at-nested-rename/.git")


@attempt
def nested_repository_by_link():
    stage("at-nested-link/x/hooks/post-checkout")
    os.symlink("x", "at-nested-link/.git")


@attempt
def nested_repository_by_file():
    stage("at-nested-file/x/hooks/post-checkout")
    with open("at-nested-file/.git", "w") as file:
        file.write("gitdir: x\n")


@attempt
def new_by_socket():
    os.mkdir("at-socket")
    socket.socket(socket.AF_UNIX).bind("at-socket/.envrc")


# -- secrets ------------------------------------------------------------------------------------------------------------


def secret_in(path):
    with open(path, errors="replace") as file:
        if "s3cret" in file.read():
            return "READ"
    return "empty"


@attempt
def secret_plain():
    return secret_in(".env")


@attempt
def secret_renamed():
    os.rename(".env", "env-mine")
    return secret_in("env-mine")


@attempt
def secret_linked():
    os.link(".env", "env-link")
    return secret_in("env-link")


@attempt
def secret_removed():
    os.unlink(".env")


@attempt
def secret_in_renamed_folder():
    os.rename("conf", "conf-mine")
    return secret_in("conf-mine/.env.production")


@attempt
def secret_behind_link():
    return secret_in("settings/prod")


@attempt
def secret_in_a_second_case():
    return secret_in("conf/.ENV")


@attempt
def secret_by_proc():
    return secret_in("/proc/self/cwd/.env")


names = sys.argv[1:] or list(ATTEMPTS)
found = {}
for name in names:
    try:
        found[name] = ATTEMPTS[name]() or "ok"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno or 0, str(error))
print(json.dumps(found))
