"""Bytes both ways between two sockets, until both sides have ended: for websockets and for CONNECT.

In: two connected sockets. Out: how many bytes went each way. Neither direction waits for the other: a side that does not
read stops only what is meant for it, and what waits is one piece per direction.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from dataclasses import field

from broker.values import dataclass

CHUNK = 1 << 18
STUCK_SECONDS = 600.0  # nothing came, and nothing could be written


@dataclass(slots=True)
class _Way:
    """One direction. `left` is how many more bytes may go, None any number."""

    source: socket.socket
    target: socket.socket
    left: int | None
    waiting: memoryview = field(default_factory=lambda: memoryview(b""))
    carried: int = 0
    ended: bool = False

    def step(self) -> bool:
        """Carry what can be carried without waiting. Returns whether anything was."""
        moved = False
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not self.waiting and not self.ended:
                data = self.source.recv(CHUNK)
                moved = True
                if not data:
                    self._end()
                    return True
                if self.left is not None:
                    self.left -= len(data)
                    if self.left < 0:
                        raise TooMuchCarried
                self.waiting = memoryview(data)
            if self.waiting:
                sent = self.target.send(self.waiting)
                self.carried += sent
                self.waiting = self.waiting[sent:]
                moved = True
        return moved

    def _end(self) -> None:
        self.ended = True
        if not isinstance(self.target, ssl.SSLSocket):
            with contextlib.suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)


class TooMuchCarried(Exception):
    """One direction has carried more than it may."""


def carry(
    inner: socket.socket, outer: socket.socket, first: bytes = b"", *, most: tuple[int | None, int | None] = (None, None)
) -> tuple[int, int, bool]:
    """Carry bytes until both sides have ended. `first` was already read from `inner`. `most`: bytes out, and back.

    Returns how many went out and came back, and whether one was too many. Half a TLS connection cannot be closed (the
    other side would take it for an attack), so there one end ends both.
    """
    out = _Way(inner, outer, most[0], memoryview(first))
    back = _Way(outer, inner, most[1])
    for one in (inner, outer):
        one.setblocking(False)
    either_ends = isinstance(outer, ssl.SSLSocket)
    began = time.monotonic()
    try:
        while not (out.ended and back.ended):
            if any([out.step(), back.step()]):
                began = time.monotonic()
                if either_ends and (out.ended or back.ended):
                    break
                continue
            if time.monotonic() - began > STUCK_SECONDS:
                break
            _wait(out, back)
    except TooMuchCarried:
        return out.carried, back.carried, True
    except OSError:
        pass  # one of them is gone; what it had sent was carried
    return out.carried, back.carried, False


def _wait(out: _Way, back: _Way) -> None:
    """Wait until one of the two can go on."""
    wanted: dict[socket.socket, int] = {out.source: 0, out.target: 0}
    for way in (out, back):
        if way.ended:
            continue
        if way.waiting:
            wanted[way.target] |= select.POLLOUT
        else:
            wanted[way.source] |= select.POLLIN
    poller = select.poll()
    for one, events in wanted.items():
        poller.register(one, events)  # also with none: a side that is gone shows as an error
    found = dict(poller.poll(STUCK_SECONDS * 1000))
    for way in (out, back):
        if way.ended and found.get(way.source.fileno(), 0) & (select.POLLERR | select.POLLHUP):
            raise ConnectionResetError  # nothing will come from it, and nothing can be sent to it
