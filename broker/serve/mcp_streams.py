"""A client of MCP as the server's two streams of messages, with a bound on what of it is open.

In: a source of bytes and a sink for them, which both may wait. Out: streams. Nothing is kept that somebody does not take: a client
that does not read its answers is not read either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from anyio import CapacityLimiter
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from broker.enforce.calls import CallEnded
from broker.serve.mcp_lines import Lines, line_of, parsed
from broker.values import dataclass

MOST_OPEN = 64  # requests of one client that are not answered yet
MOST_OPEN_BYTES = 4 << 20  # and their sizes together
LAST_SECONDS = 1.0  # for answers to what was asked just before the end of the input

Source = Callable[[], bytes]  # waits; b"" at the end
Sink = Callable[[bytes], None]  # waits; raises OSError or CallEnded when nobody is there


@dataclass(slots=True)
class _Flow:
    """What of a client is not answered yet: while it is much, nothing more is read of it."""

    sizes: dict[types.RequestId, list[int]] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def admit(self, request: types.RequestId, size: int) -> None:
        """Wait for room."""
        while self.count and (self.count >= MOST_OPEN or self.size + size > MOST_OPEN_BYTES):
            await self.changed.wait()
        self.sizes.setdefault(request, []).append(size)
        self.count, self.size = self.count + 1, self.size + size

    def settled(self, request: types.RequestId | None) -> None:
        """A request was answered, or never will be."""
        if request is None or not (sizes := self.sizes.get(request)):
            return
        self.count, self.size = self.count - 1, self.size - sizes.pop()
        if not sizes:
            del self.sizes[request]
        self.changed.set()
        self.changed = anyio.Event()

    async def idle(self) -> None:
        """Wait until everything is answered."""
        while self.count:
            await self.changed.wait()


Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def connected(source: Source, sink: Sink) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Give the server its two streams: what comes from `source` a line at a time, what goes to `sink`. Both wait on threads."""
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    flow, answers = _Flow(), outgoing.clone()

    async def read() -> None:
        async with arrived, answers:
            lines, limiter = Lines(), CapacityLimiter(1)
            while data := await anyio.to_thread.run_sync(source, abandon_on_cancel=True, limiter=limiter):
                for line in lines.feed(data):
                    message = parsed(line)
                    if isinstance(message, types.JSONRPCError):
                        await answers.send(SessionMessage(message))
                    elif message is not None:
                        await deliver(message, len(line or b""))
            with anyio.move_on_after(LAST_SECONDS):
                await flow.idle()

    async def deliver(message: SessionMessage, size: int) -> None:
        request = message.message
        if isinstance(request, types.JSONRPCRequest):
            await flow.admit(request.id, size)

            async def unanswered() -> None:
                flow.settled(request.id)

            message.metadata = ServerMessageMetadata(on_request_unanswered=unanswered)
        await arrived.send(message)

    async def write() -> None:
        limiter = CapacityLimiter(1)
        async with leaving:
            async for message in leaving:
                data = line_of(message.message)
                await anyio.to_thread.run_sync(sink, data, abandon_on_cancel=True, limiter=limiter)
                if isinstance(message.message, (types.JSONRPCResponse, types.JSONRPCError)):
                    flow.settled(message.message.id)

    async def until_gone(work: Callable[[], Any]) -> None:
        with suppress(OSError, CallEnded, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await work()
            return
        group.cancel_scope.cancel()  # nobody is there

    async with anyio.create_task_group() as group:
        group.start_soon(until_gone, read)
        group.start_soon(until_gone, write)
        yield incoming, outgoing
        group.cancel_scope.cancel()
