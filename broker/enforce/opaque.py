"""Step 4: a folder of a layer that hides what is below becomes one that says each deletion.

What lands out of such a folder is taken out of the layer, and would count as hidden, that is deleted, at the next walk.
"""

from __future__ import annotations

import contextlib
import os
import stat

from broker.enforce.beneath import Folders

OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


def say_each_deletion(upper: Folders, real: Folders, top: str) -> None:
    """Do so for a folder, and all below it, from the bottom: killed in between, what was hidden still is.

    Call it when the changes are in the real folder, and still in the layer: once they are taken out of it, and the folder
    hides nothing any more, it does nothing. What cannot be changed stays as it is.
    """
    if not _hides(upper, top):
        return
    below = [top]
    for path in below:
        with contextlib.suppress(OSError), os.scandir(f"/proc/self/fd/{upper.at(path)}") as entries:
            below += [f"{path}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in reversed(below):
        with contextlib.suppress(OSError):
            _say_each_deletion(upper.at(path), real.at(path))


def _hides(upper: Folders, path: str) -> bool:
    try:
        return any(name in OPAQUE for name in os.listxattr(f"/proc/self/fd/{upper.at(path)}"))
    except OSError:
        return False


def _say_each_deletion(upper: int, real: int) -> None:
    place = f"/proc/self/fd/{upper}"
    for name in set(os.listdir(f"/proc/self/fd/{real}")).difference(os.listdir(place)):
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=upper)  # a whiteout: anybody may make it (Linux 5.8)
    for attribute in OPAQUE:
        with contextlib.suppress(OSError):
            os.removexattr(place, attribute)
