"""CloudEvents 1.0, JSON (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md): by renaming alone.

The line goes into `data` as it stands in the journal, byte for byte, so that whoever has all of them can check the chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from broker.record.export.facts import Facts
from broker.record.export.message import Body, Message


class CloudEvents:
    """Every event becomes one."""

    name = "cloudevents"

    def messages(self, line: bytes, one: dict[str, Any], facts: Facts) -> Iterable[Message]:
        """Return the event in its envelope."""
        run, kind = one.get("run", facts.run), one.get("type", "")
        id_ = f"{run}/{one.get('seq', 0)}"
        head = {
            "specversion": "1.0", "id": id_, "source": f"urn:broker:run:{run}", "type": f"broker.{kind}",
            "subject": one.get("task", ""), "time": one.get("time", ""), "datacontenttype": "application/json",
            "dataschema": "urn:broker:event:1",
        }  # fmt: skip
        if facts.traceparent:  # the extension of distributed tracing
            head["traceparent"] = facts.traceparent
        return (Message(id_, str(kind), json.dumps(head, separators=(",", ":")).encode("ascii")[:-1] + b',"data":' + line + b"}"),)

    def single(self, message: Message) -> bytes:
        """Return structured mode: the whole event."""
        data: bytes = message.content
        return data

    def lines(self, messages: Sequence[Message]) -> Iterator[bytes]:
        """Yield one event a line."""
        return map(self.single, messages)

    def bodies(self, messages: Sequence[Message]) -> Iterator[Body]:
        """Yield one batch."""
        yield Body("application/cloudevents-batch+json", b"[" + b",".join(map(self.single, messages)) + b"]")
