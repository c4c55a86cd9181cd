"""Step 4: the proof, from outside, that a task sees what the plan says, and nothing in its place.

An engine takes paths, and follows symbolic links while it mounts. Whoever can write to a workspace while
another task is started in it (an earlier task that still runs) could swap a folder for a link between the
survey and the mount, and have another part of the host shown. So the kernel is asked what was mounted,
before anything runs: /proc/PID/mountinfo names the file system and the path in it of every mount.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from broker.enforce.engine import Bind, Overlay, Plan
from broker.errors import HostCannotEnforce
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo (proc(5)): which file system, which path in it, where, and whether read-only.

    `kind` is the file system's type, `options` are those of the file system itself.
    """

    device: str
    root: str
    point: str
    read_only: bool
    kind: str = ""
    options: tuple[str, ...] = ()


def mounts_of(pid: int | str) -> tuple[Mount, ...]:
    """Return the mounts that a process sees, lowest first."""
    text = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    found = []
    for line in text.splitlines():
        _, _, device, root, point, options = line.split(" ")[:6]
        kind, _, own = line.partition(" - ")[2].split(" ")[:3]
        found.append(
            Mount(
                device=device, root=_unescape(root), point=_unescape(point), read_only="ro" in options.split(","),
                kind=kind, options=tuple(_unescape(own).split(",")),
            )
        )  # fmt: skip
    return tuple(found)


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def visible(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    """Drop the binds that a later one hides.

    "Later binds lie over earlier ones", but the engine mounts by depth, and refuses a target named twice.
    """
    kept: list[Bind] = []
    for bind in binds:
        kept = [other for other in kept if not is_below(other.target, bind.target)]
        kept.append(bind)
    return tuple(kept)


def submounts(source: str, mountinfo: str | None = None) -> tuple[str, ...]:
    """Return the mount points that lie strictly below a host folder (proc(5), mountinfo), sorted."""
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    real = os.path.realpath(source)
    points = {_unescape(line.split(" ")[4]) for line in mountinfo.splitlines()}
    return tuple(sorted(p for p in points if p != real and is_below(p, real)))


def prove_mounts(init_pid: int, plan: Plan, overlay_words: tuple[tuple[str, str, str], ...] = ()) -> int:
    """Compare what is mounted with what was planned, and return how many mounts that were.

    Raises HostCannotEnforce at the first difference: another source, a missing read-only, a missing mask.
    INVARIANT: nothing runs on a mount that is not the planned one (tests/escape/test_workspace_sources.py).
    """
    ours, theirs = mounts_of("self"), mounts_of(init_pid)
    # The last mount at a place is the one that shows.
    shown = {mount.point: mount for mount in theirs}
    binds = visible(plan.binds)
    for bind in binds:
        wanted = identity(bind.source, ours)
        mount = shown.get(bind.target)
        if mount is None or (mount.device, mount.root) != wanted:
            raise _differs(bind.target, f"it shows {mount.root if mount else 'nothing'}, not {bind.source}")
        if bind.read_only and not mount.read_only:
            raise _differs(bind.target, "it is writable")
    for overlay, words in zip(plan.overlays, overlay_words, strict=True):
        _prove_overlay(overlay, words, theirs, ours)
    for path in plan.masked:
        if path not in shown and os.path.lexists(path):
            raise _differs(path, "it is not hidden")
    return len(binds) + len(plan.overlays) + len(plan.masked)


def _prove_overlay(
    overlay: Overlay, words: tuple[str, str, str], theirs: tuple[Mount, ...], ours: tuple[Mount, ...]
) -> None:
    """Whether the copy-on-write view is made of the planned folders, and nobody sees these.

    Where the words are descriptors that the broker held open (docker), the kernel could mount nothing else. Where
    they are places inside (bubblewrap), what was mounted at those is compared, and that it is covered.
    """
    shown = [mount for mount in theirs if mount.point == overlay.target][-1:]
    lowers, upper, work = words
    wanted = {f"lowerdir={lowers}", "userxattr"} | ({f"upperdir={upper}", f"workdir={work}"} if upper else set())
    if not shown or shown[0].kind != "overlay" or not wanted <= set(shown[0].options):
        raise _differs(overlay.target, "it is not the copy-on-write view")
    if not upper and ("ro" not in shown[0].options or any(option.startswith("upperdir=") for option in shown[0].options)):
        raise _differs(overlay.target, "it is writable")
    if lowers.startswith("/proc/"):
        return
    staged = list(zip(lowers.split(":"), (*overlay.between, overlay.lower), strict=True))
    if upper:
        staged.append((os.path.dirname(upper), overlay.layer))
    for place, source in staged:
        at = [mount for mount in theirs if mount.point == place][-1:]
        if not at or (at[0].device, at[0].root) != identity(source, ours):
            raise _differs(overlay.target, f"it is made of {at[0].root if at else 'nothing'}, not {source}")
        cover = max((m for m in theirs if place.startswith(m.point.rstrip("/") + "/")), key=lambda m: len(m.point))
        if cover.kind != "tmpfs" or not cover.read_only or theirs.index(cover) < theirs.index(at[0]):
            raise _differs(overlay.target, "what it is made of can be seen")


def identity(path: str, mounts: Iterable[Mount]) -> tuple[str, str]:
    """Return the file system of an absolute path without links, and the path in it, by the letters alone."""
    holder = max((mount for mount in mounts if is_below(path, mount.point)), key=lambda mount: len(mount.point))
    # Of several mounts at one place the last one shows: max() returns the first, so look again.
    for mount in mounts:
        if mount.point == holder.point:
            holder = mount
    rest = path[len(holder.point.rstrip("/")) :]
    return holder.device, (holder.root.rstrip("/") + rest).rstrip("/") or "/"


def _differs(path: str, how: str) -> HostCannotEnforce:
    return HostCannotEnforce(
        "workspace", f"what was mounted at {path} is not what was planned: {how}",
        "Something changed the workspace while the task was started: end the other tasks in it, and try again",
    )  # fmt: skip


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo (space, tab, newline, backslash)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
