"""What the broker's own client was let write: the operator agreed to it, so the gate need not ask again for each step of it.

In: who is to write which path. Out: whether a change to a path is a step of that. The client puts a new file beside the old one,
and then in its place (guard/client_file.c): these steps, and no others, of that one process.
"""

from __future__ import annotations

import posixpath
import re
from collections import OrderedDict
from dataclasses import field

from broker.request.operation import FileAction, FileChange
from broker.task.sight import parent_of
from broker.values import dataclass

MOST_PROCESSES = 64  # of which a pass is remembered, the latest
# What the client calls a new file before it is put in place: as much of its name as there is room for, and a number.
_BESIDE_NAME = re.compile(r"\.(.*)\.broker-[0-9a-f]{16}", re.DOTALL)
_BESIDE = frozenset({FileAction.WRITE, FileAction.MODE, FileAction.OWNER, FileAction.XATTR, FileAction.TIMES, FileAction.DELETE})


@dataclass(slots=True)
class Passes:
    """The passes of one task. A spawn's is taken back by who gave it; a process's goes with the process: its number and its time."""

    _spawns: dict[int, str] = field(default_factory=dict)
    _processes: OrderedDict[int, tuple[int, str]] = field(default_factory=OrderedDict)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._spawns or self._processes)

    def give_spawn(self, spawn: int, path: str) -> None:
        """Let the client that is started under this number write this path."""
        self._spawns[spawn] = path

    def take_back(self, spawn: int) -> None:
        """It has ended."""
        self._spawns.pop(spawn, None)

    def of_spawn(self, spawn: int, path: str) -> bool:
        """Whether the client that starts has a pass for this path."""
        return self._spawns.get(spawn) == path

    def give_process(self, place: str, pid: int, path: str) -> None:
        """Let the client that this process is about to become write this path."""
        try:
            began = parent_of(place, pid)[1]
        except OSError:  # it is gone
            return
        self._processes.pop(pid, None)
        self._processes[pid] = began, path
        if len(self._processes) > MOST_PROCESSES:
            self._processes.popitem(last=False)

    def covers(self, place: str, spawn: int, pid: int, change: FileChange) -> bool:
        """Whether a change is a step of what was let be written."""
        path = self._spawns.get(spawn)
        if path is None and (known := self._processes.get(pid)) is not None:
            try:
                path = known[1] if parent_of(place, pid)[1] == known[0] else None
            except OSError:
                path = None
        return path is not None and _is_step(change, path)


def _is_step(change: FileChange, path: str) -> bool:
    match change.action:
        case FileAction.MKDIR:
            return path.startswith(change.path + "/")
        case FileAction.RENAME | FileAction.LINK:
            return change.other == path and _is_beside(change.path, path)
        case action if action in _BESIDE:
            return _is_beside(change.path, path)
        case _:
            return False


def _is_beside(here: str, path: str) -> bool:
    folder, name = posixpath.split(path)
    found = _BESIDE_NAME.fullmatch(posixpath.basename(here))
    return found is not None and posixpath.dirname(here) == folder and name.startswith(found[1])
