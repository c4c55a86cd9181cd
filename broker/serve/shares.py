"""What the gateways of several tasks share: places for connections in this process, and the requests of a minute in a tree.

In: a task that wants one more. Out: whether it gets it. No task can take everything from the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from weakref import WeakKeyDictionary

from broker.task.task import Task

MOST_HERE = 512  # connections of all tasks of this process together
KEPT_FREE = 128  # of them, for tasks that have only a few
FEW = 8


class Places:
    """The connections of all tasks of this process: a task that holds on to many leaves places for those that want few."""

    def __init__(self) -> None:
        """Start with all of them free."""
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, own: int) -> bool:
        """Take a place for a task that has `own` already. Returns whether there was one."""
        with self._lock:
            if self.taken >= MOST_HERE - (KEPT_FREE if own >= FEW else 0):
                return False
            self.taken += 1
            return True

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self.taken -= 1


class Rates:
    """Requests of the last minute, of a task and all tasks below it: a sub-task's gateways are its parent's."""

    def __init__(self) -> None:
        """Start with none."""
        self._recent: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def too_often(self, name: str, per_minute: int) -> float:
        """Count a request through a gateway. Returns 0.0, or the seconds until it may be made."""
        now = time.monotonic()
        with self._lock:
            recent = self._recent.setdefault(name, deque())
            while recent and now - recent[0] >= 60.0:
                recent.popleft()
            if len(recent) >= per_minute:
                return 60.0 - (now - recent[0])
            recent.append(now)
            return 0.0


HERE = Places()
_RATES: WeakKeyDictionary[Task, Rates] = WeakKeyDictionary()


def rates_of(task: Task) -> Rates:
    """Return what a whole tree of tasks shares."""
    while task.parent is not None:
        task = task.parent
    return _RATES.setdefault(task, Rates())
