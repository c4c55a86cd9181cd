"""ArcSight Common Event Format, revision 25 ("Micro Focus Security ArcSight Common Event Format", implementation standard).

One line an event: `CEF:0|vendor|product|version|signature|name|severity|extension`. In the header `|` and the backslash are
escaped, in the extension `=`, the backslash and line ends; UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from broker import __version__
from broker.record.export import wording
from broker.record.export.facts import Facts
from broker.record.export.message import Body, Message
from broker.record.select import when

_SEVERITY = {1: 1, 2: 4, 3: 6, 4: 8, 5: 10}  # of ten
_HEAD = str.maketrans({"|": "\\|", "\\": "\\\\", "\n": " ", "\r": " "})
_VALUE = str.maketrans({"=": "\\=", "\\": "\\\\", "\n": "\\n", "\r": "\\r"})
# Of a text that a process chose a syslog daemon, a terminal or a log viewer would make something.
_CONTROLS = re.compile(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LONGEST = 4000


class Cef:
    """Every event becomes a line."""

    name = "cef"

    def messages(self, line: bytes, one: dict[str, Any], facts: Facts) -> Iterable[Message]:
        """Return the event as a line."""
        kind, task = str(one.get("type", "")), str(one.get("task", ""))
        id_ = f"{one.get('run', facts.run)}/{one.get('seq', 0)}"
        head = [_head(kind), _head(wording.name_of(one)), str(_SEVERITY[wording.severity(one)])]
        text = " ".join(f"{key}={_value(value)}" for key, value in self._extension(one, facts, id_, task) if value not in ("", None))
        data = f"CEF:0|Broker|broker|{__version__}|{'|'.join(head)}|{text}"
        return (Message(id_, kind, data.encode("utf-8")),)

    def _extension(self, one: dict[str, Any], facts: Facts, id_: str, task: str) -> Iterator[tuple[str, object]]:
        yield "rt", when(one) // 1000
        yield "externalId", id_
        yield "cat", str(one.get("type", "")).partition(".")[0]
        yield "act", one.get("verdict") or ("deny" if wording.is_refusal(one) else "")
        if "status" in one:
            yield "outcome", one["status"]
        yield "msg", wording.what_of(one)
        yield "reason", one.get("reason", "") if isinstance(one.get("reason"), str) else ""
        yield "suid", facts.user
        operation = one.get("operation")
        if isinstance(operation, dict):
            yield from _of_operation(operation)
        known = facts.task(task)
        if isinstance(exit_code := one.get("exit_code"), int):
            yield "cn1", exit_code
            yield "cn1Label", "exitCode"
        effects = one.get("refused") or one.get("effects") or one.get("class")
        labels = ",".join(map(str, effects)) if isinstance(effects, list) else effects
        texts = (("task", task), ("profile", known.profile), ("rule", one.get("rule")), ("classes", labels), ("layer", one.get("layer")), ("run", facts.run))
        for number, (label, value) in enumerate(texts, 1):
            if value:
                yield f"cs{number}", value
                yield f"cs{number}Label", label

    def single(self, message: Message) -> bytes:
        """Return the line."""
        data: bytes = message.content
        return data

    def lines(self, messages: Sequence[Message]) -> Iterator[bytes]:
        """Yield the lines."""
        return map(self.single, messages)

    def bodies(self, messages: Sequence[Message]) -> Iterator[Body]:
        """Yield all lines as one text."""
        yield Body("text/plain; charset=utf-8", b"".join(self.single(message) + b"\n" for message in messages))


def _of_operation(operation: dict[str, Any]) -> Iterator[tuple[str, object]]:
    match operation.get("kind"):
        case "exec":
            yield "dproc", operation.get("program") or operation.get("path") or ""
            yield "filePath", operation.get("cwd", "")
        case "file_change" | "file_read":
            yield "filePath", operation.get("path", "")
            yield "fname", str(operation.get("path", "")).rpartition("/")[2]
            if operation.get("action") == "rename":
                yield "oldFilePath", operation.get("path", "")
        case "connection":
            yield "dhost", operation.get("address", "")
            yield "dpt", operation.get("port", "")
            yield "proto", str(operation.get("protocol", "tcp")).upper()


def _head(text: str) -> str:
    return _CONTROLS.sub(_shown, text).translate(_HEAD)


def _value(value: object) -> str:
    text = str(value)
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return _CONTROLS.sub(_shown, text).translate(_VALUE)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"<{code - 0xDC00:02x}>" if 0xDC80 <= code <= 0xDCFF else f"<{code:02x}>"
