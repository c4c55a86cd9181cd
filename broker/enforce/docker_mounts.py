"""Step 4, Docker only: what a plan shows inside, as the engine's mount list. Looks at the host, changes nothing.

In: the binds, temporary spaces and masks of a Plan. Out: entries for `Mounts` and `Tmpfs` of a HostConfig.
Mounts are given in the engine's JSON form, never as `source:target` texts: paths may hold colons, commas,
quotes and newlines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from broker.enforce.engine import Bind, Tmpfs
from broker.enforce.masks import mask_file
from broker.enforce.mounts import is_below, submounts
from broker.errors import HostCannotEnforce

Mount = dict[str, object]

# Docker joins the options of a tmpfs with commas, so a target needs no care but these values do.
_TMPFS = "rw,exec,nosuid,nodev,size={size},mode={mode:o},uid={uid},gid={gid}"
EMPTY_TMPFS = "ro,noexec,nosuid,nodev,size=4096,mode=555"


def bind_mounts(bind: Bind) -> list[Mount]:
    """Return the mounts that show one host path.

    A read-only bind must be read-only all the way down. Engines before API 1.44 leave the mounts below it
    writable, so there each of them is bound on its own.
    """
    if not os.path.lexists(bind.source):
        raise HostCannotEnforce(
            "docker", f"{bind.source!r} is to be shown inside but does not exist", "Make it"
        )
    if not bind.read_only:
        return [_bind(bind.source, bind.target, read_only=False, recursive=True)]
    mounts = [_bind(bind.source, bind.target, read_only=True, recursive=False)]
    real = os.path.realpath(bind.source)
    for point in submounts(bind.source):
        mounts.append(_bind(point, bind.target + point[len(real) :], read_only=True, recursive=False))
    return mounts


def _bind(source: str, target: str, *, read_only: bool, recursive: bool) -> Mount:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": not recursive},
    }


def tmpfs_options(space: Tmpfs, uid: int, gid: int) -> str:
    """Return the mount options of a temporary space: executable, because test binaries are built there."""
    return _TMPFS.format(size=space.size, mode=space.mode, uid=uid, gid=gid)


def host_path(path: str, binds: Iterable[Bind]) -> str | None:
    """Return the host path behind a path inside, or None when no bind shows it."""
    for bind in reversed(tuple(binds)):
        if is_below(path, bind.target):
            return bind.source + path[len(bind.target) :]
    return None


def masks(paths: Iterable[str], binds: tuple[Bind, ...], run_dir: str) -> tuple[list[Mount], dict[str, str]]:
    """Return the mounts that hide secrets: an empty read-only file or folder over each.

    What does not exist is left alone: the engine would make a file in the user's own tree to mount over.
    """
    files: list[Mount] = []
    folders: dict[str, str] = {}
    for number, path in enumerate(paths):
        host = host_path(path, binds)
        if host is None or not os.path.exists(host):
            continue
        if os.path.isdir(host):
            folders[path] = EMPTY_TMPFS
        else:
            files.append(_bind(mask_file(run_dir, number), path, read_only=True, recursive=False))
    return files, folders
