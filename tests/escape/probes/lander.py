"""Hostile code in a copy-on-write workspace: whatever it makes here is to land in the real one.

Usage: lander.py. Prints one JSON object: name -> "ok" or the errno's name. Each attempt works in a folder of its own
(`at-NAME`), or on what was in the workspace before.
"""

import ctypes
import errno
import json
import os
import shutil
import socket
import stat

LIBC = ctypes.CDLL(None, use_errno=True)
HERE = os.getcwd()
ATTEMPTS = {}
RENAME_EXCHANGE, RENAME_WHITEOUT = 2, 4


def attempt(function):
    ATTEMPTS[function.__name__] = function
    return function


def put(path, text="planted\n", mode=0o644, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, flags, mode)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    return path


def system(number, *arguments):
    ctypes.set_errno(0)
    if LIBC.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def folder(name):
    os.mkdir(f"at-{name}")
    return f"at-{name}"


# -- what is no file ----------------------------------------------------------------------------------------------------


@attempt
def fifo():
    os.mkfifo(folder("fifo") + "/x")


@attempt
def fifo_in_place_of_a_file():
    os.unlink("plain/fifo")
    os.mkfifo("plain/fifo")


@attempt
def unix_socket():
    socket.socket(socket.AF_UNIX).bind(folder("socket") + "/x")


@attempt
def whiteout():
    os.mknod(folder("whiteout") + "/x", stat.S_IFCHR | 0o666, os.makedev(0, 0))


@attempt
def whiteout_over_a_hook():
    os.mknod(".git/hooks/commit-msg", stat.S_IFCHR | 0o666, os.makedev(0, 0))


@attempt
def whiteout_by_rename():
    name = put(folder("whiteout-rename") + "/x")
    system(316, -100, name.encode(), -100, b"at-whiteout-rename/y", RENAME_WHITEOUT)


@attempt
def null_device():
    os.mknod(folder("device") + "/x", stat.S_IFCHR | 0o666, os.makedev(1, 3))


@attempt
def block_device():
    os.mknod(folder("block") + "/x", stat.S_IFBLK | 0o666, os.makedev(8, 0))


# -- special bits -------------------------------------------------------------------------------------------------------


def _bits(name, mode, way):
    def make():
        place = folder(f"bits-{name}")
        way(f"{place}/x", mode)

    ATTEMPTS[f"bits_{name}"] = make


def _by_chmod(path, mode):
    os.chmod(put(path), mode)


def _by_open(path, mode):
    os.umask(0)
    put(path, mode=mode)


def _by_unnamed_file(path, mode):
    os.umask(0)
    descriptor = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR, mode)
    os.write(descriptor, b"planted\n")
    os.link(f"/proc/self/fd/{descriptor}", path, follow_symlinks=True)


def _by_mkdir(path, mode):
    os.umask(0)
    LIBC.mkdir(path.encode(), mode)
    put(f"{path}/inner")


def _by_mkdir_and_chmod(path, mode):
    os.mkdir(path)
    os.chmod(path, mode)
    put(f"{path}/inner")


def _by_move(path, mode):
    os.chmod(put("/tmp/special"), mode)
    shutil.move("/tmp/special", path)


for _name, _mode in (("setuid", 0o4755), ("setgid", 0o2755), ("sticky", 0o1644)):
    _bits(f"{_name}-chmod", _mode, _by_chmod)
    _bits(f"{_name}-open", _mode, _by_open)
    _bits(f"{_name}-unnamed", _mode, _by_unnamed_file)
    _bits(f"{_name}-moved", _mode, _by_move)
    _bits(f"{_name}-folder", _mode | 0o777, _by_mkdir)
    _bits(f"{_name}-folder-chmod", _mode | 0o777, _by_mkdir_and_chmod)


@attempt
def setuid_on_a_file_that_is_there():
    os.chmod("plain/tool", 0o4755)


@attempt
def capabilities_of_a_file():
    value = b"\x01\x00\x00\x02" + b"\xff\xff\xff\xff" * 4
    os.setxattr(put(folder("caps") + "/x", mode=0o755), "security.capability", value)


# -- overlayfs's own marks ----------------------------------------------------------------------------------------------


def _mark(name, attribute, value, path):
    def make():
        os.setxattr(path, attribute, value)

    ATTEMPTS[f"mark_{name}"] = make


_mark("opaque", "user.overlay.opaque", b"y", "marks/folder")
_mark("opaque-git", "user.overlay.opaque", b"y", ".git")
_mark("opaque-trusted", "trusted.overlay.opaque", b"y", "marks/folder")
_mark("whiteout", "user.overlay.whiteout", b"", "marks/empty")
_mark("redirect", "user.overlay.redirect", b"/../../etc", "marks/folder")
_mark("metacopy", "user.overlay.metacopy", b"", "marks/file")
_mark("origin", "user.overlay.origin", b"\x00\xfb\x15\x00\x01" + bytes(24), "marks/file")


@attempt
def mark_on_a_new_folder():
    os.makedirs(folder("mark") + "/x")
    put("at-mark/x/file", "mine\n")
    os.setxattr("at-mark/x", "user.overlay.redirect", b"/.git")


# -- links --------------------------------------------------------------------------------------------------------------

LINKS = {
    "absolute": "/etc/passwd", "up": "../../outside", "through": "inside/../../../outside", "proc": "/proc/self/root/etc/passwd",
    "back": f"{HERE}/../outside", "beside": f"{HERE}-beside/x", "root": "/", "dots": "./../..//../x", "long": "../" * 40 + "etc",
}  # fmt: skip
for _name, _target in LINKS.items():

    def _link(name=_name, target=_target):
        os.symlink(target, folder(f"link-{name}") + "/x")

    ATTEMPTS[f"link_{_name}"] = _link


@attempt
def link_that_stays_inside():
    os.makedirs(folder("link-inside") + "/deep")
    os.symlink("../../plain/tool", "at-link-inside/deep/up")
    os.symlink(f"{HERE}/plain/tool", "at-link-inside/absolute")


@attempt
def link_in_place_of_a_folder():
    """What is written below afterwards must not go where it leads."""
    shutil.rmtree("plain/folder")
    os.symlink("/tmp", "plain/folder")
    put("plain/folder/through")


@attempt
def link_to_git():
    os.symlink("../.git", folder("link-git") + "/x")
    put("at-link-git/x/hooks/pre-commit", mode=0o755)


@attempt
def link_called_git():
    os.makedirs(folder("link-called-git") + "/x/hooks")
    put("at-link-called-git/x/hooks/post-checkout", mode=0o755)
    os.symlink("x", "at-link-called-git/.git")


# -- other names of what is protected -----------------------------------------------------------------------------------


@attempt
def config_by_hard_link():
    os.link(".git/config", folder("hard-link") + "/alias")
    put("at-hard-link/alias", "[core]\n\tfsmonitor = ./x\n")


@attempt
def config_by_descriptor():
    descriptor = os.open(".git/config", os.O_RDONLY)
    put(f"/proc/self/fd/{descriptor}", "[core]\n\tfsmonitor = ./x\n", flags=os.O_WRONLY | os.O_TRUNC)


@attempt
def config_by_rename():
    put(folder("config") + "/x", "[core]\n\thooksPath = ./x\n")
    os.rename("at-config/x", ".git/config")


@attempt
def config_by_exchange():
    put(folder("exchange") + "/x", "[alias]\n\tst = !./x\n")
    system(316, -100, b"at-exchange/x", -100, b".git/config", RENAME_EXCHANGE)


@attempt
def hook_by_unnamed_file():
    descriptor = os.open("plain", os.O_TMPFILE | os.O_RDWR, 0o755)
    os.write(descriptor, b"planted\n")
    os.link(f"/proc/self/fd/{descriptor}", ".git/hooks/pre-commit", follow_symlinks=True)


@attempt
def git_moved_away_and_made_again():
    os.rename(".git", folder("git-moved") + "/old")
    put(".git/hooks/pre-commit", mode=0o755)


@attempt
def git_copied_and_replaced():
    shutil.copytree(".git", folder("git-copied") + "/copy")
    shutil.rmtree(".git")
    put(".git/config", "[core]\n\tfsmonitor = ./x\n")


@attempt
def attributes():
    put(".git/info/attributes", "* filter=x\n")


@attempt
def hook_of_a_submodule():
    put(".git/modules/sub/hooks/post-checkout", mode=0o755)


@attempt
def repository_below_another_name():
    for name in ("HEAD", "config", "objects/keep", "refs/keep", "hooks/post-checkout"):
        put(f"at-renamed/x/{name}")
    os.rename("at-renamed/x", "at-renamed/.git")


@attempt
def repository_by_file():
    put("at-by-file/.git", "gitdir: x\n")


@attempt
def repository_in_another_case():
    put("at-case/.GIT/hooks/post-checkout", mode=0o755)


@attempt
def names_composed_and_decomposed():
    put("at-names/caf\u00e9", "composed\n")
    put("at-names/cafe\u0301", "decomposed\n")


@attempt
def lifecycle_script():
    put("package.json", '{"scripts": {"test": "node t.js", "postinstall": "node x.js"}}\n')


@attempt
def lifecycle_script_by_rename():
    put("at-package/x", '{"scripts": {"prepare": "node x.js"}}\n')
    os.rename("at-package/x", "at-package/package.json")


@attempt
def file_that_python_loads():
    put("at-python/sitecustomize.py")


# -- broker's own places ------------------------------------------------------------------------------------------------


@attempt
def staging_folder():
    for number in range(40):
        put(f".broker-landing-{RUN}/{number}")


@attempt
def staging_folder_of_another():
    put(".broker-landing-20200101-000000-0000/0")


@attempt
def private_places():
    for place in ("/run/layer", "/proc/1/root/run/layer", "/run/layer/0/changes/upper", "/run/layer/0/lower"):
        try:
            found = os.listdir(place)
        except OSError:
            continue
        if found:
            return f"{place}: {found}"
    return "nothing"


@attempt
def private_places_uncovered():
    """The kernel lets nobody unmount what was mounted before (mount_namespaces(7))."""
    won = []
    for place in ("/run/layer", HERE, "/proc"):
        for number, arguments in ((166, (2,)), (165, (0, 0, 0x1020, 0))):  # umount2(MNT_DETACH), mount(MS_REMOUNT|MS_BIND)
            ctypes.set_errno(0)
            words = [place.encode(), *arguments] if number == 166 else [b"none", place.encode(), *arguments[1:]]
            if LIBC.syscall(ctypes.c_long(number), *words) == 0:
                won.append(f"{number} {place}")
    return ", ".join(won) or "nothing"


@attempt
def layer_by_its_mount_options():
    """The words of the mount name places of somebody else's."""
    with open("/proc/self/mountinfo") as file:
        line = next(line for line in file if " - overlay " in line and line.split()[4] == HERE)
    for word in line.split()[-1].split(","):
        key, _, place = word.partition("=")
        if key in ("upperdir", "workdir", "lowerdir"):
            try:
                put(f"{place}/planted")
            except OSError:
                continue
            return place
    return "nothing"


def run_id():
    """The run's own id, if anything inside tells it."""
    for place in ("/run/broker", "/proc/self/cgroup", "/proc/self/mountinfo"):
        try:
            text = " ".join(os.listdir(place)) if os.path.isdir(place) else open(place).read()
        except OSError:
            continue
        at = text.find("task-20")
        if at >= 0:
            return text[at + 5 : at + 25]
    return "unknown"


RUN = run_id()
found = {"run": RUN}
for name, function in ATTEMPTS.items():
    try:
        found[name] = function() or "ok"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno or 0, str(error))
    os.chdir(HERE)
    os.umask(0o022)
print(json.dumps(found))
