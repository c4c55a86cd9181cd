"""What goes from a format to a sink, and what the two are to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from broker.errors import BrokerError
from broker.record.export.facts import Facts
from broker.values import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One event as a format says it. `id` is the same however often it is sent: `RUN/SEQ`. `content` is the format's own."""

    id: str
    type: str
    content: Any


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body. `path` is what the format appends to the address, if it does."""

    media: str
    data: bytes
    path: str = ""


class Format(Protocol):
    """Says events in the words of another system."""

    name: str

    def messages(self, line: bytes, one: dict[str, Any], facts: Facts) -> Iterable[Message]:
        """Return what is to be said of an event: nothing, one message, or more. `line` is the event as it is written."""

    def single(self, message: Message) -> bytes:
        """Return one message on its own."""

    def lines(self, messages: Sequence[Message]) -> Iterator[bytes]:
        """Yield the lines of a file, without their newlines."""

    def bodies(self, messages: Sequence[Message]) -> Iterator[Body]:
        """Yield the requests that messages are posted in."""


class Sink(Protocol):
    """Takes messages, and keeps them."""

    def deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        """Return when the other side has them for good. Raises Refused, or Unreachable when it can be tried again."""

    def close(self) -> None:
        """Let go of it."""


class ExportError(BrokerError):
    """The other side does not take what is exported. What it has not taken is sent again the next time."""

    exit_code = 69


class Refused(ExportError):
    """It understood, and said no: to try again changes nothing."""


class Unreachable(ExportError):
    """It cannot be reached, or is too busy. `after`: how many seconds it asked to wait."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
