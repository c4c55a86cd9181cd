"""Step 4: waiting for descriptors. select(2) takes none above 1023, and a broker with a hundred tasks has more."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """A socket, for example."""

    def fileno(self) -> int:
        """Return its descriptor."""


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
