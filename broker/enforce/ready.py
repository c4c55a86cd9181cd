"""Step 4: having and waiting for descriptors. A broker with a hundred tasks has more than the 1,024 of a usual shell.

select(2) takes none above 1023.
"""

from __future__ import annotations

import math
import resource
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """A socket, for example."""

    def fileno(self) -> int:
        """Return its descriptor."""


MOST_DESCRIPTORS = 65_536


def make_room() -> None:
    """Let this process have as many descriptors as it may: a task takes thirteen. Programs inside get a limit of their own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


T = TypeVar("T", bound="int | HasFileno")


def readable(sources: Iterable[T], seconds: float | None = None) -> list[T]:
    """Wait until something can be read, or has come to its end; return what. Nothing: so many seconds have passed."""
    return _ready(sources, select.POLLIN, seconds)


def writable(target: int) -> None:
    """Wait until something can be written, or nobody reads any more."""
    _ready([target], select.POLLOUT, None)


def _ready(sources: Iterable[T], events: int, seconds: float | None) -> list[T]:
    poller = select.poll()
    by_number = {one if isinstance(one, int) else one.fileno(): one for one in sources}
    for number in by_number:
        poller.register(number, events)
    # Rounded up: a wait for less than a millisecond must not become a loop without one.
    return [by_number[number] for number, _ in poller.poll(None if seconds is None else math.ceil(seconds * 1000))]
