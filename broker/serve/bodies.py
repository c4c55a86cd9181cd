"""The bodies of an upstream's answers, as they come (RFC 9112 §6 and §7): read in place, and passed on without a copy.

In: what was read behind the head, a buffer, and `fill`, which waits and reads into a view. Out: pieces, each good until the
next one is asked for; at the end, how many bytes came after the body. Strict: what others could read otherwise is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

Piece = bytes | memoryview
Fill = Callable[[memoryview], int]
MOST_LINE = 4096  # of a chunk's size with its extensions, or of a trailer
MOST_TRAILERS = 64 * 1024
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class Malformed(Exception):
    """The body is not what its head says. `str` of it says how."""


def sized(fill: Fill, buffer: bytearray, rest: bytes, length: int | None) -> Generator[Piece, None, int]:
    """Yield a body of a known length, or (None) all up to the end of the connection. Raises Malformed."""
    view = memoryview(buffer)
    if length is None:
        if rest:
            yield rest
        while count := fill(view):
            yield view[:count]
        return 0
    if rest and length:
        yield rest[:length]
    left = length - len(rest)
    while left > 0:
        count = fill(view[: min(left, len(buffer))])
        if not count:
            raise Malformed("the upstream ended the connection in the middle of its answer")
        left -= count
        yield view[:count]
    return -left


def chunked(fill: Fill, buffer: bytearray, rest: bytes) -> Generator[Piece, None, int]:
    """Yield a body that comes in chunks. Extensions and trailers are not passed on. Raises Malformed."""
    reader = _Reader(fill, buffer, rest)
    while True:
        line = _SIZE.fullmatch(reader.line())
        if line is None:
            raise Malformed("a chunk of the upstream's answer has no size")
        left = int(line[1], 16)
        if not left:
            break
        while left:
            piece = reader.some(left)
            left -= len(piece)
            yield piece
        if reader.line():
            raise Malformed("a chunk of the upstream's answer is longer than it says")
    trailers = 0
    while line_of := reader.line():
        trailers += len(line_of)
        if trailers > MOST_TRAILERS:
            raise Malformed("the trailers of the upstream's answer do not end")
    return reader.end - reader.at


class _Reader:
    """A window on the buffer: what was read and not yet taken lies from `at` to `end`."""

    def __init__(self, fill: Fill, buffer: bytearray, rest: bytes) -> None:
        self._fill, self._buffer, self._view = fill, buffer, memoryview(buffer)
        self.at, self.end = 0, len(rest)
        self._view[: self.end] = rest

    def line(self) -> bytes:
        """Take a line, without its end."""
        while (found := self._buffer.find(b"\r\n", self.at, min(self.end, self.at + MOST_LINE))) < 0:
            if self.end - self.at >= MOST_LINE:
                raise Malformed("a line in the upstream's answer does not end")
            self._more()
        line = bytes(self._view[self.at : found])
        self.at = found + 2
        return line

    def some(self, most: int) -> memoryview:
        """Take what there is, at least a byte."""
        if self.at == self.end:
            self._more()
        piece = self._view[self.at : min(self.end, self.at + most)]
        self.at += len(piece)
        return piece

    def _more(self) -> None:
        kept = self.end - self.at
        self._buffer[:kept] = self._buffer[self.at : self.end]
        self.at, self.end = 0, kept
        count = self._fill(self._view[kept:])
        if not count:
            raise Malformed("the upstream ended the connection in the middle of its answer")
        self.end += count
