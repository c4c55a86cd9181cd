"""OpenTelemetry: a run is a trace, a task a span, an event a log record of its task's span; OTLP over HTTP, or as JSON lines.

The values are the SDK's, their encoding its exporters'. Ids are made from the run's id and the task's path, so that what is sent
again is the same again, and a trace that broker was started in (TRACEPARENT) goes on in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker import __version__
from broker.errors import UsageError
from broker.record import event
from broker.record.export import wording
from broker.record.export.facts import Facts
from broker.record.export.message import Body, Message
from broker.record.select import when

try:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
except ImportError:  # an extra
    raise UsageError("for OpenTelemetry, install its SDK: pip install 'broker[otel]'") from None

SCOPE = InstrumentationScope("broker", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SEVERITIES = {
    1: SeverityNumber.INFO, 2: SeverityNumber.WARN, 3: SeverityNumber.WARN2, 4: SeverityNumber.ERROR, 5: SeverityNumber.FATAL,
}  # fmt: skip
_IDS = ("traceId", "spanId", "parentSpanId")
_OWN = ("verdict", "rule", "layer", "reason", "status", "tool", "class", "count", "of", "child", "profile", "trust", "limit", "budget", "outcome")


class Otel:
    """Every event becomes a log record; the end of a task its span as well."""

    name = "otel"

    def __init__(self) -> None:
        """Name the resource: this host's broker."""
        self._resource = Resource({"service.name": "broker", "service.version": __version__, "host.name": socket.gethostname()})

    def messages(self, line: bytes, one: dict[str, Any], facts: Facts) -> Iterable[Message]:
        """Return the event as the SDK's values."""
        id_, kind = f"{one.get('run', facts.run)}/{one.get('seq', 0)}", str(one.get("type", ""))
        yield Message(id_, kind, self._log(one, facts, id_))
        # A run that failed before its first task could begin is a span, too.
        if kind == event.TASK_FINISHED or (kind == event.RUN_FINISHED and not facts.task(event.ROOT).ended):
            yield Message(f"{id_}/span", kind, self._span(one, facts))

    def _log(self, one: dict[str, Any], facts: Facts, id_: str) -> ReadableLogRecord:
        path, time = str(one.get("task", "")), when(one) * 1000
        attributes: dict[str, Any] = {
            "log.record.uid": _text(id_), "broker.run": _text(facts.run), "broker.task": _text(path),
            "broker.seq": _number(one.get("seq")), "broker.task.profile": _text(facts.task(path).profile),
        }  # fmt: skip
        attributes |= {f"broker.{name}": text for name in _OWN if (text := _plain(one.get(name))) is not None}
        for name in ("effects", "refused"):
            if isinstance(labels := one.get(name), list) and labels:
                attributes[f"broker.{name}"] = [_text(label) for label in labels]
        if isinstance(operation := one.get("operation"), dict):
            attributes |= _of_operation(operation)
        severity = _SEVERITIES[wording.severity(one)]
        what = wording.what_of(one)
        record = LogRecord(
            timestamp=time, observed_timestamp=time, trace_id=_trace_id(facts), span_id=_span_id(facts, path), trace_flags=_SAMPLED,
            severity_number=severity, severity_text=severity.name, body=_text(f"{wording.name_of(one)}: {what}" if what else wording.name_of(one)),
            attributes=attributes,
        )  # fmt: skip
        record.event_name = f"broker.{one.get('type', '')}"
        return ReadableLogRecord(record, self._resource, SCOPE)

    def _span(self, one: dict[str, Any], facts: Facts) -> ReadableSpan:
        path = str(one.get("task", ""))
        task, end = facts.task(path), when(one) * 1000
        attributes: dict[str, Any] = {
            "broker.run": _text(facts.run), "broker.task": _text(path), "broker.task.profile": _text(task.profile),
            "broker.task.trust": _text(task.trust),
            "broker.denials": task.denied, "broker.workspace": _text(facts.workspace),
        }  # fmt: skip
        if path == event.ROOT:
            attributes["process.command_args"] = [_text(word) for word in facts.command]
        attributes |= {f"broker.{name}": text for name in ("status", "exit_code", "reason", "label") if (text := _plain(one.get(name))) is not None}
        if isinstance(usage := one.get("usage"), dict):
            attributes |= {f"broker.usage.{name}": number for name, number in usage.items() if isinstance(number, (int, float))}
        failed = one.get("status") != "finished" or one.get("exit_code") not in (0, None)
        why = _text(one.get("reason") or f"exit code {one.get('exit_code')}") if failed else None
        return ReadableSpan(
            name=_text(f"broker task {task.profile}".rstrip()), context=_context(facts, path), parent=_parent(facts, path), resource=self._resource,
            attributes=attributes, events=[_denial(denial) for denial in task.denials], kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, why) if failed else Status(StatusCode.OK), start_time=(facts.began if path == event.ROOT else task.began) * 1000 or end,
            end_time=end, instrumentation_scope=SCOPE,
        )  # fmt: skip

    def single(self, message: Message) -> bytes:
        """Return OTLP's JSON of one record or span."""
        encoded = encode_spans([message.content]) if isinstance(message.content, ReadableSpan) else encode_logs([message.content])
        return _json(encoded)

    def lines(self, messages: Sequence[Message]) -> Iterator[bytes]:
        """Yield OTLP's JSON, logs and spans in lines of their own (opentelemetry.io/docs/specs/otel/protocol/file-exporter)."""
        logs, spans = _sorted(messages)
        if logs:
            yield _json(encode_logs(logs))
        if spans:
            yield _json(encode_spans(spans))

    def bodies(self, messages: Sequence[Message]) -> Iterator[Body]:
        """Yield OTLP/HTTP, binary: the spans after the logs."""
        logs, spans = _sorted(messages)
        if logs:
            yield Body("application/x-protobuf", encode_logs(logs).SerializeToString(), "/v1/logs")
        if spans:
            yield Body("application/x-protobuf", encode_spans(spans).SerializeToString(), "/v1/traces")


def _sorted(messages: Sequence[Message]) -> tuple[list[ReadableLogRecord], list[ReadableSpan]]:
    spans = [message.content for message in messages if isinstance(message.content, ReadableSpan)]
    return [message.content for message in messages if not isinstance(message.content, ReadableSpan)], spans


def _json(encoded: Any) -> bytes:
    """Return OTLP's own JSON, in which ids are hexadecimal and not base64 as protobuf has it, and enums are numbers."""
    data = MessageToDict(encoded, use_integers_for_enums=True)
    _hex_ids(data)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _hex_ids(data: Any) -> None:
    if isinstance(data, list):
        for item in data:
            _hex_ids(item)
    elif isinstance(data, dict):
        for name, item in data.items():
            if name in _IDS:
                data[name] = base64.b64decode(item).hex()
            elif name not in ("attributes", "body", "resource"):
                _hex_ids(item)


# --- ids


def _trace_id(facts: Facts) -> int:
    if facts.traceparent:
        return int(facts.traceparent[3:35], 16)
    return int.from_bytes(hashlib.sha256(f"broker trace {facts.run}".encode()).digest()[:16]) or 1


def _span_id(facts: Facts, path: str) -> int:
    return int.from_bytes(hashlib.sha256(f"broker span {facts.run} {path}".encode("utf-8", "replace")).digest()[:8]) or 1


def _context(facts: Facts, path: str) -> SpanContext:
    state = TraceState.from_header([facts.tracestate]) if facts.tracestate else TraceState()
    return SpanContext(_trace_id(facts), _span_id(facts, path), is_remote=False, trace_flags=_SAMPLED, trace_state=state)


def _parent(facts: Facts, path: str) -> SpanContext | None:
    above = path.rpartition("/")[0]
    if above:
        return _context(facts, above)
    if not facts.traceparent:
        return None
    return SpanContext(_trace_id(facts), int(facts.traceparent[36:52], 16), is_remote=True, trace_flags=_SAMPLED)


# --- attributes, by the names of the semantic conventions where there are some


def _of_operation(operation: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"broker.operation": _text(operation.get("kind", ""))}
    for name, key in (("program", "process.executable.path"), ("cwd", "process.working_directory"), ("path", "file.path"),
                      ("action", "broker.operation.action"), ("other", "broker.operation.other"), ("text", "broker.operation.text"),
                      ("address", "server.address"), ("port", "server.port")):  # fmt: skip
        if (value := _plain(operation.get(name))) not in (None, "") and not (name == "path" and operation.get("kind") == "exec"):
            found[key] = value
    if isinstance(argv := operation.get("argv"), list):
        found["process.command_args"] = [_text(word) for word in argv]
    return found


def _denial(one: Mapping[str, Any]) -> Event:
    attributes = {f"broker.{name}": _text(one[name]) for name in ("what", "class", "rule", "reason", "layer") if name in one}
    return Event("broker.denied", attributes, timestamp=when(dict(one)) * 1000)


def _plain(value: Any) -> str | bool | int | float | None:
    """Return what an attribute can hold."""
    if isinstance(value, str):
        return _text(value)
    return value if isinstance(value, (bool, float)) else _number(value)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


def _text(value: Any) -> str:
    """Return a text that protobuf takes: a byte that was not UTF-8 is shown as such."""
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
