"""The result of a sub-task as its parent gets it: one JSON object, always parseable, never too large.

In: a Result and what the task wrote. Out: a table, and its bytes. What a sub-task wrote is data: control characters are
escaped, what is not UTF-8 is shown as `\\xNN`, and of long output the beginning and the end are kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from broker.task.result import Result

MOST_BYTES = 256 * 1024  # of the whole object
MOST_OUTPUT = 64 * 1024  # of each stream
MOST_ROWS = 100  # denials, changes of each kind


class Capture:
    """Takes what a stream says, and keeps its beginning and its end. Memory stays bounded whatever comes."""

    def __init__(self, most: int = MOST_OUTPUT) -> None:
        """Keep at most so many bytes."""
        self._half = most // 2
        self._head, self._tail = bytearray(), bytearray()
        self._lock = threading.Lock()
        self.total = 0

    def __call__(self, data: bytes) -> None:
        """Take some."""
        with self._lock:
            self.total += len(data)
            room = self._half - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            self._tail += data[-self._half :]
            if len(self._tail) > 2 * self._half:
                del self._tail[: -self._half]

    def text(self) -> str:
        """Return it as text, and say how much is left out."""
        with self._lock:
            tail = bytes(self._tail[-self._half :])
            left_out = self.total - len(self._head) - len(tail)
            if left_out <= 0:
                return _text(bytes(self._head) + tail)
            return f"{_text(bytes(self._head))}\n[… {left_out} bytes left out …]\n{_text(tail)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace").replace("\x7f", "\\x7f")


def outcome(result: Result, *, stdout: Capture | None = None, stderr: Capture | None = None, **facts: object) -> dict[str, Any]:
    """Return the result of a sub-task; `facts` (profile, trust …) are added."""
    table = result.as_dict()
    for key in ("layers", "journal", "engine"):
        del table[key]  # the operator's business
    table |= facts
    if stdout is not None:
        table |= {"stdout": stdout.text(), "stdout_bytes": stdout.total}
    if stderr is not None:
        table |= {"stderr": stderr.text(), "stderr_bytes": stderr.total}
    return capped(table)


def capped(table: dict[str, Any], most: int = MOST_BYTES) -> dict[str, Any]:
    """Return a table whose JSON has at most so many bytes: long lists and texts are cut, and that is said."""
    table = dict(table)
    for key in ("denials", "denials_below"):
        if len(rows := table.get(key) or ()) > MOST_ROWS:
            table[key], table[f"{key}_left_out"] = list(rows[:MOST_ROWS]), len(rows) - MOST_ROWS
    if changes := table.get("changes"):
        table["changes"] = {
            key: value[:MOST_ROWS] if isinstance(value, list) else value for key, value in changes.items()
        }
    size = len(encoded(table))
    for key in ("stdout", "stderr", "goal", "denials_below", "denials", "changes"):
        if size <= most:
            break
        if isinstance(table.get(key), str):
            keep = max(1024, len(table[key]) - (size - most))  # ASCII takes one byte a character; other texts are cut again
            table[key] = table[key][: keep // 6] + "\n[… cut …]\n" + table[key][-keep // 6 :]
        elif table.get(key):
            table[key] = [] if isinstance(table[key], list) else {"counts": table[key].get("counts", {})}
            table[f"{key}_cut"] = True
        size = len(encoded(table))
    return table


def encoded(table: dict[str, Any]) -> bytes:
    """Return a table as one line of ASCII."""
    return json.dumps(table, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def denial_texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return denials in one line each, for people."""
    return [f"{row['what']}: {row['reason']} Instead: {row['hint']}" for row in rows]
