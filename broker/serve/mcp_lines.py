"""MCP's framing: one JSON-RPC message a line. From bytes to messages and back, with a bound on everything.

In: bytes as they come, from whom nobody trusts. Out: messages for the server, or the error that answers what is none. What is
too long is passed over to its end and answered; nothing that comes makes this raise, or keep more than a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

MOST_LINE = 2 << 20  # bytes of a message
MOST_VALUES = 50_000  # of a message: each takes up to a hundred bytes of memory, also where it is two characters here
_LOOK_CLOSER = 128 * 1024  # a shorter message cannot have more values than that by much
_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class Lines:
    """Cuts bytes into lines. Of a line that is too long only its being there is kept."""

    def __init__(self, most: int = MOST_LINE) -> None:
        """Take lines of at most so many bytes."""
        self._most = most
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Yield each line that is complete now, without its newline; None for one that is too long."""
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            piece, at = data[at:end], end + 1
            if self._skipping:
                self._skipping = False
                continue
            if len(self._rest) + len(piece) > self._most:
                yield None
            else:
                yield bytes(self._rest) + piece
            self._rest.clear()
        if self._skipping:
            return
        if len(self._rest) + len(data) - at > self._most:
            self._rest.clear()
            self._skipping = True
            yield None
        else:
            self._rest += data[at:]


def parsed(line: bytes | None) -> SessionMessage | JSONRPCError | None:
    """Return the message of a line, or the answer to what is none; None for an empty line."""
    if line is None:
        return _error(INVALID_REQUEST, f"a message has at most {MOST_LINE} bytes")
    if not line.strip():
        return None
    if len(line) > _LOOK_CLOSER and _values(line) > MOST_VALUES:
        return _error(INVALID_REQUEST, f"a message has at most {MOST_VALUES} values")
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        if any(problem["type"] == "json_invalid" for problem in error.errors(include_input=False, include_url=False)):
            return _error(PARSE_ERROR, "this is no JSON in UTF-8")
        return _error(INVALID_REQUEST, "this is no JSON-RPC 2.0 message")
    except (ValueError, RecursionError):
        return _error(PARSE_ERROR, "this cannot be read")
    if isinstance(message, JSONRPCNotification) and not message.method.startswith("notifications/"):
        return _error(INVALID_REQUEST, "a request has an id, which is a text or a whole number")
    return SessionMessage(message)


def _values(line: bytes) -> int:
    bare = _TEXTS.sub(b"", line)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{")


def _error(code: int, message: str, about: RequestId | None = None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=about, error=ErrorData(code=code, message=message))


def line_of(message: JSONRPCMessage) -> bytes:
    """Return a message as its line."""
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8") + b"\n"
