"""Step 4: the layer that a task's changes go to, and what is known of it.

A layer is a folder: `layer.json` (the manifest), `lock`, and for each folder that the task sees copy-on-write a
numbered folder with overlayfs's `upper` and `work`. It outlives the task when something of it was not landed, until
the operator lands or discards it, or it grows old (`broker gc`).

Layers lie below the state directory, or in /var/lib/broker/layers when root is the broker: the task's user, who may
be another, must be able to reach them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from broker.enforce.beneath import FOLDER, file_user, open_beneath, rename
from broker.enforce.engine import Overlay
from broker.enforce.runtime import OwnerMark
from broker.errors import HostCannotEnforce, UsageError
from broker.values import dataclass

FORMAT = 1
MANIFEST = "layer.json"
FAR = 900  # characters of a path, of at most four bytes each: with one more name the kernel takes it (PATH_MAX)
CLOCK_REALTIME_COARSE = 5  # the clock that file systems take their times from, but for the finer ones (clock_gettime(2))
USE_DIRECT = 'Set sandbox.workspace = "direct" in the profile, or BROKER_LAYER_DIR to a folder on ext4, xfs, btrfs or tmpfs'


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a layer is of. Times are nanoseconds of the clock that file systems use.

    `parts` are the real folders (path, device, inode), in the order of the numbered folders. `state` is running, ended or kept.
    `judged` says that every change was looked at; `withheld` are the paths (absolute) that the profile did not permit,
    with the reason of each. `put_back` are the real files (part, path, ctime) that a landing took away and put back: to
    be moved changed their ctime. `parent` is the layer of the task that this one's changes land in, '' for the real files.
    `panel` says that a panel of judges did not pass the changes ('': it did, or none was asked). `session` are the paths
    (patterns, as an agent's adapter has them) of what the agent keeps for itself in the workspace.
    """

    run: str
    workspace: str
    uid: int
    gid: int
    profile: str
    digest: str
    trust: str
    engine: str
    began: int
    owner: str
    parts: tuple[tuple[str, int, int], ...]
    state: str = "running"
    ended: int = 0
    judged: bool = False
    withheld: tuple[tuple[str, str], ...] = ()
    put_back: tuple[tuple[int, str, int], ...] = ()
    parent: str = ""
    panel: str = ""
    session: tuple[str, ...] = ()
    format: int = FORMAT


class LayerGone(UsageError):
    """Somebody else landed or discarded a layer meanwhile."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the changes of {run} are not kept any more: they were landed or discarded meanwhile")
        self.run = run


@dataclass(slots=True)
class Layer:
    """A layer on disk."""

    folder: Path
    manifest: Manifest
    # Of a child's layer, while its parent lives: the folders as the parent sees them, open, in the order of the parts; and
    # what lies between them and the real ones, topmost first, for each.
    views: tuple[int, ...] = ()
    between: tuple[tuple[str, ...], ...] = ()

    @property
    def run(self) -> str:
        """The run that it is of."""
        return self.manifest.run

    def overlays(self) -> tuple[Overlay, ...]:
        """Return what the engine is to mount."""
        return tuple(
            Overlay(
                lower=part, target=part, layer=str(self.folder / str(number)),
                between=self.between[number] if self.between else (),
            )
            for number, (part, _, _) in enumerate(self.manifest.parts)
        )

    def upper(self, number: int) -> str:
        """Return the folder with the changes of a part."""
        return str(self.folder / str(number) / "upper")

    def path(self, change: Any) -> str:
        """Return the absolute path of a change (broker.enforce.changes.Change)."""
        return f"{self.real(change.part)}/{change.path}"

    def real(self, number: int) -> str:
        """Return the real folder of a part."""
        return self.manifest.parts[number][0]

    def place(self, number: int) -> str:
        """Return where the files of a part are found that its changes land in."""
        return f"/proc/self/fd/{self.views[number]}" if self.views else self.real(number)

    def acting(self) -> contextlib.AbstractContextManager[None]:
        """Reach files as the task's user where the changes land in a view that only knows that user."""
        if self.views and os.geteuid() == 0 and self.manifest.uid != 0:
            return file_user(self.manifest.uid, self.manifest.gid)
        return contextlib.nullcontext()

    def update(self, *, sync: bool = True, **changed: Any) -> None:
        """Change the manifest, on disk too, in one step. Without `sync` a power cut may undo it."""
        self.manifest = replace(self.manifest, **changed)
        write_whole(self.folder / MANIFEST, json.dumps(asdict(self.manifest)).encode("ascii"), sync=sync)

    def abandoned(self) -> bool:
        """Whether its task was never seen to end: its broker is dead."""
        mark = OwnerMark.parse(self.manifest.owner)
        return self.manifest.state == "running" and (mark is None or not mark.alive())

    def running(self) -> bool:
        """Whether its task still runs."""
        return self.manifest.state == "running" and not self.abandoned()

    def wait_for_the_clock(self) -> None:
        """Return when a file that changes from now on can be told from one that was there when the task began.

        File systems take their times, at the least, from a clock that goes on in steps of some milliseconds.
        """
        while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= self.manifest.began:
            time.sleep(0.001)

    def leave(self) -> None:
        """The task is over, one way or the other: what was not settled is kept, unless nothing was changed."""
        if self.manifest.state != "running":
            return
        if self.untouched():
            self.remove()
        else:
            self.update(state="kept", ended=time.time_ns())

    def untouched(self) -> bool:
        """Whether nothing was changed."""
        return not any(os.listdir(self.upper(number)) for number in range(len(self.manifest.parts)))

    def size(self) -> int:
        """Return how many bytes it takes on disk."""
        return folder_size(self.folder)

    def remove(self) -> None:
        """Remove it. Missing is fine."""
        remove_tree(self.folder)

    @contextlib.contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the layer for oneself; yields False when somebody else does and `wait` is not wanted.

        What is known of it may be old by then: its manifest is read again. Raises LayerGone when it is not there any more.
        """
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            raise LayerGone(self.run) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            known = read_layer(self.folder)
            if known is None:
                raise LayerGone(self.run)
            self.manifest = known.manifest
            yield True
        finally:
            os.close(descriptor)


def layers_base(state: Path) -> Path:
    """Return the folder of all layers. May not exist."""
    if chosen := os.environ.get("BROKER_LAYER_DIR"):
        return Path(chosen).absolute()
    return Path("/var/lib/broker/layers") if os.geteuid() == 0 else state / "layers"


def file_clock() -> int:
    """Return a time, in nanoseconds, that no file changed so far has gone beyond.

    That is not the coarse clock's: since Linux 6.13 a file that somebody looked at gets a finer time at its next change.
    """
    return time.time_ns()


def make_layer(
    base: Path, manifest: Manifest, views: tuple[int, ...] = (), between: tuple[tuple[str, ...], ...] = ()
) -> Layer:
    """Make the layer of a task; `views` and `between`: of a child (see Layer). Raises HostCannotEnforce where overlayfs could not use the place."""
    folder = base / manifest.run
    try:
        prepare_base(base)
        folder.mkdir(mode=0o700)
        layer = Layer(folder, manifest, views, between)
        for number in range(len(manifest.parts)):
            _make_part(folder / str(number), layer.place(number), manifest)
        layer.update(sync=not manifest.parent)  # a child's changes would be of no use without its parent's
        if os.geteuid() == 0:
            # The task's user may go through, and nobody else.
            os.chown(folder, 0, manifest.gid)
            folder.chmod(0o710)
    except OSError as error:
        remove_tree(folder)
        raise HostCannotEnforce(
            "workspace", f"no layer can be made in {base}: {error.strerror}", "Set BROKER_LAYER_DIR to a folder of yours"
        ) from error
    return layer


def adopt_layer(base: Path, run: str, manifest: Manifest) -> Layer:
    """Let a new task go on with the kept changes of an earlier one, and return its layer: it is the same, under another name.

    What changed in the real files since the *earlier* task began stays a conflict. Raises UsageError where there are no kept
    changes of that run, or of another workspace.
    """
    layer = find_layer(base, run)
    with layer.locked():
        kept = layer.manifest
        if kept.state != "kept" or kept.parent:
            raise UsageError(f"{run} has no kept changes of its own that another task could go on with")
        if kept.parts != manifest.parts:
            raise UsageError(f"the changes of {run} are of {kept.workspace}. Go on with them there: --workspace DIR")
        folder = base / manifest.run
        # First the manifest: should we die in between, what says that nobody passed the changes still lies beside them.
        layer.update(**{**asdict(manifest), "parts": kept.parts, "began": kept.began, "put_back": kept.put_back, "panel": kept.panel})
        layer.folder.rename(folder)
    return Layer(folder, layer.manifest)


def prepare_base(base: Path) -> None:
    """Make the folder of all layers. Raises HostCannotEnforce when it is somebody else's."""
    base.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    facts = base.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise HostCannotEnforce(
            "workspace", f"{base} belongs to somebody else or others can write to it", f"Remove {base}"
        )


def _make_part(folder: Path, real: str, manifest: Manifest) -> None:
    folder.mkdir(mode=0o700)
    mode = stat.S_IMODE(os.stat(real).st_mode)
    for name in ("upper", "work"):
        inside = folder / name
        inside.mkdir(mode=0o700)
        inside.chmod(mode & 0o777 if name == "upper" else 0o700)
        if os.geteuid() == 0:
            os.chown(inside, manifest.uid, manifest.gid)
    if os.geteuid() == 0:
        os.chown(folder, manifest.uid, manifest.gid)
    try:
        os.setxattr(folder / "upper", "user.broker", b"probe")
        os.removexattr(folder / "upper", "user.broker")
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM):
            raise HostCannotEnforce(
                "workspace", f"the file system of {folder.parent.parent} keeps no extended attributes, which overlayfs needs",
                USE_DIRECT,
            ) from None  # fmt: skip
        raise


def list_layers(base: Path) -> list[Layer]:
    """Return the layers, newest first. What cannot be read is left out."""
    try:
        names = sorted(os.listdir(base), reverse=True)
    except FileNotFoundError:
        return []
    found = (read_layer(base / name) for name in names)
    return [layer for layer in found if layer is not None]


def read_layer(folder: Path) -> Layer | None:
    """Return the layer in a folder, or None when there is none that can be read."""
    try:
        table = json.loads((folder / MANIFEST).read_bytes())
        table["parts"] = tuple((path, device, inode) for path, device, inode in table["parts"])
        table["withheld"] = tuple((path, reason) for path, reason in table["withheld"])
        table["put_back"] = tuple((part, path, ctime) for part, path, ctime in table.get("put_back", ()))
        table["session"] = tuple(table.get("session", ()))
        manifest = Manifest(**table)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Layer(folder, manifest) if manifest.format == FORMAT else None


def find_layer(base: Path, word: str) -> Layer:
    """Return the layer that a word means: a run id, the start or end of only one, or `last`.

    `last` is the newest of the workspace that the current folder lies in: nobody lands what was done elsewhere by mistake.
    Raises UsageError when it means none or several.
    """
    layers = list_layers(base)
    if word == "last":
        return _last(layers)
    found = [one for one in layers if one.run == word] or [
        # A sub-task's is written whole: RUN.1 is not the start of RUN.10, nor RUN that of RUN.1.
        one for one in layers if one.run.endswith(f"-{word}") or ("." not in one.run and one.run.startswith(word))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{word!r} could mean {len(found)} tasks. Write more of the id")
    kept = ", ".join(layer.run for layer in layers[:4])
    raise UsageError(
        f"no changes are kept of {word!r}. " + (f"There are some of: {kept}" if kept else "None are kept at all")
    )


def _last(layers: list[Layer]) -> Layer:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    roots = [one for one in layers if not one.manifest.parent]
    for one in roots:
        if os.path.commonpath([one.manifest.workspace, here or "/"]) == one.manifest.workspace:
            return one
    elsewhere = ", ".join(f"{one.run} in {one.manifest.workspace}" for one in roots[:4])
    raise UsageError(
        "no changes are kept of a task in this folder. "
        + (f"Go to its workspace, or write the id; there are some of: {elsewhere}" if elsewhere else "None are kept at all")
    )


@contextlib.contextmanager
def one_landing_at_a_time(base: Path, layer: Layer) -> Iterator[None]:
    """Let two tasks of one workspace land one after the other. The kernel frees a dead one's lock."""
    _, device, inode = layer.manifest.parts[0]
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(base / f".landing-{device}-{inode}", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a small file so that it is either the old one or the new one, whatever happens."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    temporary.replace(path)


def folder_size(folder: str | os.PathLike[str], *, least: int = 0) -> int:
    """Return the bytes that a tree takes on disk, however deep. What vanishes meanwhile counts nothing.

    `least`: each file and folder counts for as much.
    """
    total = 0
    try:
        top = os.open(folder, FOLDER)
    except OSError:
        return 0
    # An open folder, and the path of one below it; no path: the open one is not needed any more.
    pending: list[tuple[int, str | None]] = [(top, None), (top, "")]
    while pending:
        base, path = pending.pop()
        if path is None:
            os.close(base)
            continue
        try:
            here = open_beneath(base, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        with os.scandir(here) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False), _blocks(entry)) for entry in entries]
        total += sum(max(blocks * 512, least) for _, _, blocks in found)
        if len(path) > FAR:
            pending.append((here, None))
            base, path = here, ""
        else:
            os.close(here)
        pending += [(base, f"{path}/{name}" if path else name) for name, is_folder, _ in found if is_folder]
    return total


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks
    except OSError:
        return 0


def remove_tree(folder: Path) -> None:
    """Remove a tree, however deep, whose folders a task may have made unreadable.

    Follows no link. Missing is fine; what cannot be removed stays.
    """
    try:
        top = _open_to_empty(os.fspath(folder), None)
    except NotADirectoryError:
        folder.unlink(missing_ok=True)
        return
    except OSError:
        return
    numbers = itertools.count()
    try:
        pending = _emptied(top, top, numbers)
        while pending:
            name = pending.pop()
            with contextlib.suppress(OSError):
                here = _open_to_empty(name, top)
                try:
                    pending += _emptied(here, top, numbers)
                finally:
                    os.close(here)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _open_to_empty(name: str, above: int | None) -> int:
    """Open a folder to look into it and to remove what is there."""
    place = os.open(name, FOLDER, dir_fd=above)
    try:
        if os.fstat(place).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{place}", stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


def _emptied(folder: int, top: int, numbers: Iterator[int]) -> list[str]:
    """Remove what is in a folder, and bring the folders in it to the top. Returns their names there."""
    names = []
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
            elif folder == top:
                names.append(name)
            else:
                os.close(_open_to_empty(name, folder))  # the kernel moves no folder that cannot be written to
                names.append(_brought_up(name, folder, top, numbers))
    return names


def _brought_up(name: str, folder: int, top: int, numbers: Iterator[int]) -> str:
    while True:
        new = f".gone-{next(numbers)}"
        with contextlib.suppress(FileExistsError):
            rename(folder, name, top, new)
            return new
