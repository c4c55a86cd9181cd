"""Step 4: a call: a process of the sandbox that talks to the broker, through the guard.

In: packets, as the guard relays them. Out: the client's words, and frames for it. Who calls is known by the link that
the call came over: a sandbox has one task. Nothing that a caller writes says who it is.

A call is served on a thread of its own. The link's thread only puts packets here, and never waits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from broker.enforce import wire
from broker.stop import Stop

MOST_PACKET = 60 * 1024  # of a frame; the guard takes 64 KiB
MOST_WORDS = 192 * 1024
WORDS_SECONDS = 10.0  # for what is called; the client has it ready before it connects
MOST_AT_ONCE = 16  # calls of a sandbox: as many as the guard keeps open
Send = Callable[[wire.Reply | wire.CallNext | wire.HangUp], None]


class CallEnded(Exception):
    """The caller is gone, or broke the rules. Nobody is there to hear an answer."""


class CallLine:
    """One call."""

    def __init__(self, call: int, pid: int, send: Send) -> None:
        """Take a call; `send` puts a message on the guard's link."""
        self.call, self.pid = call, pid
        self._send = send
        self._packets: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._free = threading.Event()  # the last reply was delivered
        self._free.set()
        self._sending = threading.Lock()
        self._gone = Stop()
        self._gone.does(lambda: self._packets.put(None))
        self._gone.does(self._free.set)

    @property
    def closed(self) -> bool:
        """Whether the caller is gone."""
        return self._gone.asked

    # From the link's thread

    def put(self, data: bytes) -> None:
        """A packet came."""
        self._packets.put(data)

    def taken(self) -> None:
        """The last reply was delivered."""
        self._free.set()

    def gone(self) -> None:
        """The caller is gone, or the sandbox is."""
        self._gone.ask()

    # From the call's own thread

    def when_gone(self, tell: Callable[[], None]) -> None:
        """Have something done when the caller is gone: at once, if it is already."""
        self._gone.does(tell)

    def words(self, within: float = WORDS_SECONDS) -> tuple[str, tuple[str, ...]]:
        """Read who calls: its folder and its arguments. Raises CallEnded for nonsense, or when all of it takes too long.

        INVARIANT: callers who say nothing keep nobody else out for ever (tests/enforce/test_calls.py).
        """
        gathered = bytearray()
        end = time.monotonic() + within
        while True:
            packet = self._receive(end)
            kind, data = packet[:1], packet[1:]
            if kind == b"s" and not data:
                break
            gathered += data
            if kind != b"c" or len(gathered) > MOST_WORDS:
                self.hang_up()
                raise CallEnded
            self._send(wire.CallNext(call=self.call))
        words = bytes(gathered).decode("utf-8", "surrogateescape").split("\0")
        if len(words) < 2 or words.pop():
            self.hang_up()
            raise CallEnded
        return words[0], tuple(words[1:])

    def read(self) -> bytes:
        """Return the next piece of the caller's stdin; empty at its end, or when the caller is gone."""
        try:
            self._reply(b"i")
            self._send(wire.CallNext(call=self.call))
            packet = self._receive()
        except CallEnded:
            return b""
        return packet[1:] if packet[:1] == b"i" else b""

    def write(self, data: bytes, *, stderr: bool = False) -> None:
        """Write to the caller's stdout, or stderr. Raises CallEnded when nobody is there."""
        kind = b"e" if stderr else b"o"
        for at in range(0, len(data), MOST_PACKET):
            self._reply(kind + data[at : at + MOST_PACKET])

    def exit(self, code: int) -> None:
        """End the caller with this code. Raises CallEnded when it is gone already."""
        self._reply(b"x" + bytes([code & 0xFF]))
        self.hang_up()

    def hang_up(self) -> None:
        """End the call, once what was written is delivered."""
        self._send(wire.HangUp(call=self.call))

    def _receive(self, end: float | None = None) -> bytes:
        """Wait for a packet; until `end` (monotonic), where that is given, and then hang up."""
        left = None if end is None else end - time.monotonic()
        try:
            if left is not None and left <= 0:
                raise queue.Empty  # also if a packet is there: who sends all the time comes to no end either
            packet = self._packets.get(timeout=left)
        except queue.Empty:
            self.hang_up()
            raise CallEnded from None
        if packet is None:
            self._packets.put(None)
            raise CallEnded
        return packet

    def _reply(self, data: bytes) -> None:
        with self._sending:
            self._free.wait()
            if self.closed:
                raise CallEnded
            self._free.clear()
            self._send(wire.Reply(call=self.call, data=data))


class Desk:
    """Where the calls of one sandbox are served, so many at once. The next ones wait in their order.

    A caller that is gone makes room for another at the guard's, while what it asked for is still worked on here. INVARIANT:
    threads are bounded all the same, and so is what waits (tests/escape/test_delegation_calls.py).
    """

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        """Start with nobody at it."""
        self._most, self._at_work = most, 0
        self._waiting: deque[tuple[CallLine, Callable[[CallLine], None]]] = deque()
        self._lock = threading.Lock()

    def serve(self, line: CallLine, answer: Callable[[CallLine], None]) -> None:
        """Have a call answered on a thread of its own, as soon as one is free. Returns at once."""
        with self._lock:
            self._waiting = deque(one for one in self._waiting if not one[0].closed)
            self._waiting.append((line, answer))
            if self._at_work == self._most:
                return
            self._at_work += 1
        threading.Thread(target=self._work, name="call", daemon=True).start()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            line, answer = found
            answer(line)

    def _next(self) -> tuple[CallLine, Callable[[CallLine], None]] | None:
        """Return who is next; None: nobody, and whoever comes later starts another thread."""
        with self._lock:
            while self._waiting:
                if not (found := self._waiting.popleft())[0].closed:
                    return found
            self._at_work -= 1
            return None
