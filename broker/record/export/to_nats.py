"""To a NATS JetStream stream. Each message carries its id (Nats-Msg-Id), so that the stream drops what comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.errors import UsageError
from broker.record.export.message import ExportError, Format, Message, Refused, Unreachable

try:
    import nats
    from nats.aio.client import Client
    from nats.errors import Error as NatsError
    from nats.js import JetStreamContext
    from nats.js.errors import APIError, NotFoundError
except ImportError:  # an extra
    raise UsageError("to export to NATS, install the client: pip install 'broker[nats]'") from None

SECONDS = 10.0


class NatsSink:
    """Publishes to one stream, and waits until the stream has acknowledged every message of a batch."""

    def __init__(self, url: str, stream: str, credentials: str | None = None) -> None:
        """Connect with the first batch. `credentials`: a file as `nsc` writes it."""
        self._url, self._stream, self._credentials = url, stream, credentials
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._stream_context: JetStreamContext | None = None
        self._lost = asyncio.Event()
        self._subject = ""

    def deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        """Publish them."""
        self._loop.run_until_complete(self._deliver(format_, messages))

    async def _deliver(self, format_: Format, messages: Sequence[Message]) -> None:
        try:
            context = await self._connected()
            await self._unless_lost(asyncio.gather(*(
                context.publish(
                    self._subject_of(message), format_.single(message), timeout=SECONDS, stream=self._stream,
                    headers={"Nats-Msg-Id": message.id},
                )
                for message in messages
            )))  # fmt: skip
        except APIError as error:
            if error.code is not None and 500 <= error.code < 600 and error.code != 501:
                raise Unreachable(f"stream {self._stream} at {self._shown}: {error.description or error}") from error
            raise Refused(f"stream {self._stream} at {self._shown} does not take it: {error.description or error}") from error
        except (NatsError, OSError, TimeoutError) as error:
            await self._drop()
            raise Unreachable(f"{self._shown} does not answer: {str(error) or type(error).__name__}") from error

    async def _unless_lost(self, publishing: asyncio.Future[list[Any]]) -> None:
        """Wait for all, but not for answers that cannot come any more because the connection is gone."""
        lost = asyncio.ensure_future(self._lost.wait())
        either: set[asyncio.Future[Any]] = {publishing, lost}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not publishing.done():
                raise ConnectionResetError("the connection was lost")
            publishing.result()
        finally:
            lost.cancel()
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    async def _connected(self) -> JetStreamContext:
        if self._client is not None and self._client.is_connected and self._stream_context is not None:
            return self._stream_context
        await self._drop()
        self._lost = asyncio.Event()
        self._client = await nats.connect(
            self._url, disconnected_cb=self._is_lost, name="broker export", connect_timeout=5, allow_reconnect=False, error_cb=_quiet,
            # To try again is the pump's business, which knows for how long.
            max_reconnect_attempts=1, reconnect_time_wait=0, user_credentials=self._credentials,
        )  # fmt: skip
        self._stream_context = self._client.jetstream(timeout=SECONDS, publish_async_max_pending=4_000)
        try:
            info = await self._stream_context.stream_info(self._stream)
        except NotFoundError:
            raise Refused(
                f"there is no stream {self._stream} at {self._shown}. Make it: nats stream add {self._stream} --subjects '{self._stream}.>'"
            ) from None
        self._subject = _subject(info.config.subjects or [], self._stream)
        return self._stream_context

    def _subject_of(self, message: Message) -> str:
        # `events.>` gets events.RUN.exec.decided, and `events.*` events.exec_decided.
        if self._subject.endswith(">"):
            return f"{self._subject[:-1]}{message.id.partition('/')[0]}.{message.type or 'event'}"
        return self._subject.replace("*", message.type.replace(".", "_") or "event")

    async def _is_lost(self) -> None:
        self._lost.set()

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                await client.close()
            except (NatsError, OSError):
                return

    @property
    def _shown(self) -> str:
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    def close(self) -> None:
        """Close the connection."""
        self._loop.run_until_complete(self._drop())
        self._loop.close()


def _subject(subjects: Sequence[str], stream: str) -> str:
    """Return which of a stream's subjects events are published under: the most general one."""
    for wanted in (lambda name: name.endswith(".>"), lambda name: name.count("*") == 1, lambda name: "*" not in name and ">" not in name):
        for subject in subjects:
            if wanted(subject):
                return subject
    raise Refused(f"no subject of the stream {stream} ({', '.join(subjects) or 'it has none'}) can be published to. Give it '{stream}.>'")


async def _quiet(_: Exception) -> None:
    """Say nothing: what failed is raised where it matters."""


__all__ = ["ExportError", "NatsSink"]
