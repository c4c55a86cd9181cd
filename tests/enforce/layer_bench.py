"""A workspace and a layer on real file systems, changed through a real overlay: no sandbox, and nothing imagined.

The "task" is a function in a forked process with a mount namespace of its own, where the overlay lies over the
workspace as the product mounts it. When the process is gone the mount is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import shutil
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.enforce.changes import Change, Kind, changes_of
from broker.enforce.landing import Landed, land
from broker.enforce.layer import Layer, Manifest, file_clock, make_layer
from broker.enforce.runtime import OwnerMark

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC_PRIVATE = 0x4000 | 0x40000
SOMEBODY = 1000

Tree = dict[bytes, tuple[object, ...]]


@dataclass
class Bench:
    """A workspace (`real`), a place for layers (`base`), and the layer of one task."""

    real: Path
    base: Path
    uid: int = field(default_factory=os.getuid)
    gid: int = field(default_factory=os.getgid)
    run: str = "20260101-000000-bench"
    layer: Layer = field(init=False)

    def begin(self) -> Bench:
        """Make the layer: from here on every change of the real files is somebody else's."""
        facts = self.real.stat()
        manifest = Manifest(
            run=self.run, workspace=str(self.real), uid=self.uid, gid=self.gid, profile="bench", digest="", trust="trusted",
            engine="bubblewrap", began=file_clock(), owner=str(OwnerMark.mine()),
            parts=((str(self.real), facts.st_dev, facts.st_ino),),
        )  # fmt: skip
        self.layer = make_layer(self.base, manifest)
        self.layer.wait_for_the_clock()
        return self

    def begin_again(self) -> Bench:
        """Make the layer anew: what was changed so far is what the task finds."""
        self.layer.remove()
        return self.begin()

    def task_without_looking(self, act: Callable[[Path], object]) -> None:
        """Let `act` change the workspace through the overlay; the tree is too odd to be described."""
        self.task(act, look=False)

    def task(self, act: Callable[[Path], object], *, look: bool = True) -> Tree:
        """Let `act` change the workspace through the overlay. Returns what the task saw at its end."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(read)
                self._mount()
                act(self.real)
                with open(write, "wb") as answer:
                    pickle.dump(tree(self.real) if look else {}, answer)
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
                os._exit(1)
        os.close(write)
        with open(read, "rb") as answer:
            packet = answer.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, "the task failed: see stderr"
        seen: Tree = pickle.loads(packet)
        return seen

    def _mount(self) -> None:
        root = os.geteuid() == 0
        if _libc.unshare(CLONE_NEWNS | (0 if root else CLONE_NEWUSER)):
            raise OSError(ctypes.get_errno(), "unshare")
        if not root:
            Path("/proc/self/uid_map").write_text(f"{self.uid} {self.uid} 1")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/gid_map").write_text(f"{self.gid} {self.gid} 1")
        _mount(None, "/", None, MS_REC_PRIVATE, None)
        overlay = self.layer.overlays()[0]
        options = f"lowerdir={overlay.lower},upperdir={overlay.layer}/upper,workdir={overlay.layer}/work,userxattr"
        _mount("overlay", overlay.target, "overlay", 0, options)
        if root:
            os.setgroups([])
            os.setgid(self.gid)
            os.setuid(self.uid)
        os.umask(0o022)

    def changes(self) -> list[Change]:
        """Walk the layer."""
        return list(changes_of(self.layer))

    def rows(self) -> set[tuple[str, str, str]]:
        """Walk the layer, and return of each change its path, kind and thing."""
        return {(one.path, str(one.kind), str(one.thing)) for one in self.changes()}

    def land(self, changes: Iterable[Change] | None = None) -> Landed:
        """Land what may land: all that is no conflict and not refused for ever."""
        with self.layer.locked():
            return land(self.layer, landable(self.changes() if changes is None else changes))

    def leftovers(self) -> list[str]:
        """What a landing left in the workspace, or half-way in the layer."""
        found = [str(path) for path in self.real.rglob(".broker-landing-*")]
        return found + [name for name in ("landing.jsonl",) if (self.layer.folder / name).exists()]


def landable(changes: Iterable[Change]) -> list[Change]:
    """Leave out what a judge leaves out whatever the profile."""
    return [one for one in changes if not one.never and not one.conflict]


def tree(top: Path) -> Tree:
    """Describe a tree: kinds, modes, contents, times of files, attributes. Names as they are on disk."""
    found: Tree = {}
    start = os.fsencode(top)
    for folder, folders, files in os.walk(start):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[path[len(start) + 1 :]] = _described(path)
    return found


def _described(path: bytes) -> tuple[object, ...]:
    facts = os.lstat(path)
    if stat.S_ISLNK(facts.st_mode):
        return ("link", os.readlink(path))
    if stat.S_ISDIR(facts.st_mode):
        return ("folder", stat.S_IMODE(facts.st_mode))
    if not stat.S_ISREG(facts.st_mode):
        return ("special", facts.st_mode)
    names = [name for name in os.listxattr(path) if name.startswith("user.") and ".overlay." not in name]
    kept = tuple((name, os.getxattr(path, name)) for name in sorted(names))
    try:
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
    except PermissionError:
        content = "unreadable"
    return ("file", stat.S_IMODE(facts.st_mode), facts.st_size, facts.st_mtime_ns, content, kept)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), None if data is None else os.fsencode(data)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def may_mount() -> str | None:
    """Say why no overlay can be mounted here, or None."""
    if os.geteuid() == 0:
        return None
    tried = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, text=True, check=False)
    return f"no overlay without user namespaces: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def file_system(place: Path, kind: str, size: str) -> Iterator[Path]:
    """Mount a small file system of its own (tmpfs or ext4). Only root can."""
    place.mkdir(parents=True)
    if kind == "ext4":
        image = place.with_suffix(".image")
        subprocess.run(["truncate", "-s", size, str(image)], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
        shutil.rmtree(place / "lost+found")
    else:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


NOT_UTF8 = os.fsdecode(b"caf\xe9")
LONG = "l" * 255
OLD = 1_000_000_000_000_000_000  # a time that no test's file gets by itself


def everything_before(real: Path) -> None:
    """Make a tree with something for each kind of change."""
    for name in (
        "keep.txt", "changed.txt", "deleted.txt", "mode.sh", "times.txt", "file_to_folder", "file_to_link", "hard1",
        "attribute", "same_size", NOT_UTF8, "opened", "there and\nback",
    ):  # fmt: skip
        (real / name).write_text(f"old {len(name)}\n")
    os.link(real / "hard1", real / "hard2")
    (real / "link").symlink_to("keep.txt")
    (real / "link_to_file").symlink_to("keep.txt")
    (real / "deleted_link").symlink_to("nowhere")
    for path in (
        "gone/a", "gone/b/c", "remade/x", "remade/y", "remade/sub/old", "remade/deep/er/old", "folder_to_file/q",
        "folder_to_file/r/s", "emptied/z", "folder_mode/in", "closed/in", "untouched/in", "folder_to_link/in",
    ):  # fmt: skip
        (real / path).parent.mkdir(parents=True, exist_ok=True)
        (real / path).write_text(f"old {path}\n")
    (real / "empty_gone").mkdir()
    for folder, folders, files in os.walk(real):
        for name in (*folders, *files):
            os.utime(os.path.join(folder, name), ns=(OLD, OLD), follow_symlinks=False)


def everything(view: Path) -> None:
    """Make each kind of change that can land."""
    (view / "changed.txt").write_text("new and longer\n")
    (view / "same_size").write_text("NEW 9\n")
    (view / "deleted.txt").unlink()
    (view / "deleted_link").unlink()
    (view / "mode.sh").chmod(0o755)
    os.utime(view / "times.txt", ns=(OLD, OLD + 5))
    (view / "link").unlink()
    (view / "link").symlink_to("untouched/in")
    (view / "new_link").symlink_to("new")
    (view / "new").mkdir()
    (view / "new" / "empty").mkdir(mode=0o750)
    (view / "new" / "file").write_text("made\n")
    (view / "new" / "NEW").write_text("made too\n")
    (view / "new" / "new").write_text("and this\n")
    (view / "new" / LONG).write_text("long\n")
    (view / "new" / NOT_UTF8).write_text("strange\n")
    (view / "new" / "with\nnewline").write_text("strange\n")
    (view / "new" / "one").write_text("two names\n")
    os.link(view / "new" / "one", view / "new" / "two")
    (view / "hard1").write_text("changed under one name\n")
    (view / NOT_UTF8).write_text("changed\n")
    os.setxattr(view / "attribute", "user.note", b"\0bytes")
    shutil.rmtree(view / "gone")
    (view / "empty_gone").rmdir()
    shutil.rmtree(view / "remade")
    (view / "remade" / "sub").mkdir(parents=True)
    (view / "remade" / "deep" / "er").mkdir(parents=True)
    (view / "remade" / "y").write_text("made again\n")
    (view / "remade" / "sub" / "new").write_text("made\n")
    (view / "file_to_folder").unlink()
    (view / "file_to_folder").mkdir()
    (view / "file_to_folder" / "in").write_text("made\n")
    (view / "file_to_link").unlink()
    (view / "file_to_link").symlink_to("keep.txt")
    (view / "link_to_file").unlink()
    (view / "link_to_file").write_text("a file now\n")
    for name in ("folder_to_file", "folder_to_link"):
        shutil.rmtree(view / name)
    (view / "folder_to_file").write_text("a file now\n")
    (view / "folder_to_link").symlink_to("untouched")
    (view / "emptied" / "z").unlink()
    (view / "folder_mode").chmod(0o700)
    (view / "closed" / "in").write_text("changed, and the folder closed\n")
    (view / "closed").chmod(0o555)
    # What leaves no trace:
    (view / "keep.txt").chmod(0o600)
    (view / "keep.txt").chmod(0o644)
    with open(view / "opened", "r+b"):
        pass
    (view / "there and\nback").rename(view / "away")
    (view / "away").rename(view / "there and\nback")
    (view / "passing").write_text("made and removed\n")
    (view / "passing").unlink()


EVERYTHING = {
    ("changed.txt", Kind.CHANGED, "file"), ("same_size", Kind.CHANGED, "file"), ("deleted.txt", Kind.DELETED, "file"),
    ("deleted_link", Kind.DELETED, "link"), ("mode.sh", Kind.MODE, "file"), ("times.txt", Kind.TIMES, "file"),
    ("link", Kind.CHANGED, "link"), ("new_link", Kind.CREATED, "link"), ("new", Kind.CREATED, "folder"),
    ("new/empty", Kind.CREATED, "folder"), ("new/file", Kind.CREATED, "file"), ("new/NEW", Kind.CREATED, "file"),
    ("new/new", Kind.CREATED, "file"), (f"new/{LONG}", Kind.CREATED, "file"), (f"new/{NOT_UTF8}", Kind.CREATED, "file"),
    ("new/with\nnewline", Kind.CREATED, "file"), ("new/one", Kind.CREATED, "file"), ("new/two", Kind.CREATED, "file"),
    ("hard1", Kind.CHANGED, "file"), (NOT_UTF8, Kind.CHANGED, "file"), ("attribute", Kind.CHANGED, "file"),
    ("gone", Kind.DELETED, "folder"), ("gone/a", Kind.DELETED, "file"), ("gone/b", Kind.DELETED, "folder"),
    ("gone/b/c", Kind.DELETED, "file"), ("empty_gone", Kind.DELETED, "folder"), ("remade/x", Kind.DELETED, "file"),
    ("remade/y", Kind.CHANGED, "file"), ("remade/sub/old", Kind.DELETED, "file"), ("remade/sub/new", Kind.CREATED, "file"),
    ("remade/deep/er/old", Kind.DELETED, "file"), ("file_to_folder", Kind.DELETED, "file"),
    ("file_to_folder", Kind.CREATED, "folder"), ("file_to_folder/in", Kind.CREATED, "file"),
    ("file_to_link", Kind.DELETED, "file"), ("file_to_link", Kind.CREATED, "link"), ("link_to_file", Kind.DELETED, "link"),
    ("link_to_file", Kind.CREATED, "file"), ("folder_to_file", Kind.DELETED, "folder"),
    ("folder_to_file", Kind.CREATED, "file"), ("folder_to_file/q", Kind.DELETED, "file"),
    ("folder_to_file/r", Kind.DELETED, "folder"), ("folder_to_file/r/s", Kind.DELETED, "file"),
    ("folder_to_link", Kind.DELETED, "folder"), ("folder_to_link", Kind.CREATED, "link"),
    ("folder_to_link/in", Kind.DELETED, "file"), ("emptied/z", Kind.DELETED, "file"), ("folder_mode", Kind.MODE, "folder"),
    ("closed/in", Kind.CHANGED, "file"), ("closed", Kind.MODE, "folder"),
}  # fmt: skip
