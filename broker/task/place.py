"""Where the files of a sandbox are found from outside, for who looks at what one of its processes wants.

In: the place behind process 1 of the sandbox, and the process that asks, by its number inside. Out: a place that may be looked at.
All processes of a sandbox have one root: the kernel refuses them to change it.
"""

from __future__ import annotations

import os

MOST_ABOVE = 256  # processes between one and process 1


def reach(place: str, pid: int) -> str:
    """Return `place`, or, where we may not look behind process 1, the place behind the process that asks.

    The guard has capabilities. On Docker they are those of the host's user namespace, and an operator who is not root has none there,
    so the kernel lets him look at the guard no more than at a set-uid program (ptrace(2), access modes). A task's process has none.
    """
    if not place or not pid:
        return place
    try:
        os.stat(f"{place}/")
    except PermissionError:
        outside = _outside(int(place.split("/")[2]), pid)
        return f"/proc/{outside}/root" if outside else place
    except OSError:
        pass
    return place


def program_of(place: str, pid: int) -> str:
    """Return which program a process of the sandbox runs: its file's name, no text of the process; '' where that cannot be seen."""
    try:
        return os.readlink(f"{place}/proc/{pid}/exe")
    except OSError:
        return ""


def _outside(first: int, pid: int) -> int:
    """Return the number that a process of a sandbox has for us, by that of process 1 and its own inside; 0: there is none."""
    above: dict[int, int] = {}
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status", "rb") as file:
                facts = dict(line.split(b":", 1) for line in file if b":" in line)
        except OSError:
            continue
        above[int(name)] = int(facts[b"PPid"])
        numbers = facts.get(b"NSpid", b"").split()
        if len(numbers) > 1 and int(numbers[-1]) == pid:
            found.append(int(name))
    return next((one for one in found if _is_below(one, first, above)), 0)


def _is_below(process: int, first: int, above: dict[int, int]) -> bool:
    for _ in range(MOST_ABOVE):
        if process in (0, first):
            break
        process = above.get(process, 0)
    return process == first
