"""Formats: each event is said as the format's own specification has it, and whatever a process wrote is only text in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import ocsf_json_schema
import pytest
from exported import HOSTILE, SECRET, TRACEPARENT, exported, write_run
from hypothesis import given
from hypothesis import strategies as st
from ocsf_json_schema.embedded import OcsfJsonSchemaEmbedded
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from broker.record.export.cef import Cef
from broker.record.export.cloudevents import CloudEvents
from broker.record.export.facts import Facts
from broker.record.export.message import Format
from broker.record.export.ocsf import Ocsf
from broker.record.export.otel import Otel

FORMATS = (CloudEvents, Ocsf, Cef, Otel)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, trace=True)


# --- all of them


@pytest.mark.parametrize("format_", FORMATS)
def test_no_secret_leaves_and_every_line_is_one_line(run: Path, format_: type[Format]) -> None:
    kept = exported(format_(), run)
    everything = b"\n".join(kept.lines) + b"".join(body.data for body in kept.bodies)
    assert SECRET.encode() not in everything
    assert b"redacted-sha256-" in everything
    assert not any(b"\n" in line for line in kept.lines)
    assert b"\x1b" not in b"".join(kept.lines)


@pytest.mark.parametrize("format_", FORMATS)
def test_the_ids_of_messages_are_their_own_and_the_same_each_time(run: Path, format_: type[Format]) -> None:
    ids = [message.id for message in exported(format_(), run).messages]
    assert len(ids) == len(set(ids))
    assert ids == [message.id for message in exported(format_(), run).messages]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.sampled_from(["deny", "exec", "\udcff", "connection"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "argv", "path", "port", "address"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    kind=st.sampled_from(["exec.decided", "file.decided", "connection.decided", "task.denied", "task.denied.repeated", "spawn.exited",
                          "landing.intended", "task.finished", "run.started", "task.created", "run.finished", "news"]),
    fields=st.dictionaries(st.sampled_from(["operation", "verdict", "effects", "refused", "rule", "reason", "what", "count", "changes", "status",
                                            "wait_status", "usage", "exit_code", "command", "class", "task", "seq", "time"]), _json, max_size=8),
)  # fmt: skip
def test_a_strange_event_stops_no_export(kind: str, fields: dict[str, Any]) -> None:
    one = {"run": "r", "seq": 1, "task": "root", "time": "2026-11-30T04:30:00.000000Z", **fields, "type": kind}
    line = json.dumps(one).encode()
    for made in (CloudEvents(), Ocsf(), Cef(), Otel()):
        facts = Facts("r")
        facts.take(one)
        messages = list(made.messages(line, one, facts))
        assert all(made.single(message) for message in messages)
        assert len(list(made.lines(messages))) <= len(messages)
        assert not messages or all(body.data for body in made.bodies(messages))


# --- CloudEvents

# From https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/cloudevents.json, without what no event of ours has.
CLOUDEVENTS_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 1}, "source": {"type": "string", "format": "uri-reference", "minLength": 1},
        "specversion": {"const": "1.0"}, "type": {"type": "string", "minLength": 1},
        "datacontenttype": {"type": "string", "minLength": 1}, "dataschema": {"type": "string", "format": "uri", "minLength": 1},
        "subject": {"type": "string", "minLength": 1}, "time": {"type": "string", "format": "date-time", "minLength": 1},
        "data": {"type": ["object", "string", "number", "array", "boolean", "null"]},
    },
    "required": ["id", "source", "specversion", "type"],
    "patternProperties": {"^[a-z0-9]+$": {}},
    "additionalProperties": False,  # names of attributes are lower-case letters and digits
}  # fmt: skip


def test_each_event_is_a_cloud_event_and_the_line_is_in_it_byte_for_byte(run: Path) -> None:
    kept = exported(CloudEvents(), run)
    journal = run.read_bytes().splitlines()
    assert len(kept.lines) == len(journal)
    for line, written in zip(kept.lines, journal, strict=True):
        one = json.loads(line)
        jsonschema.validate(one, CLOUDEVENTS_SCHEMA)
        assert b'"data":' + written + b"}" in line
        assert one["traceparent"] == TRACEPARENT
    [body] = kept.bodies
    assert body.media == "application/cloudevents-batch+json"
    assert [one["id"] for one in json.loads(body.data)] == [f"{run.stem}/{number}" for number in range(1, len(journal) + 1)]


# --- OCSF


@pytest.fixture(scope="module", params=["1.5.0", "1.8.0"])
def valid(request: pytest.FixtureRequest) -> Any:
    """Validate against OCSF's own schema of this version, with the profiles that an event says it has."""
    file = Path(ocsf_json_schema.__file__).parent / "ocsf" / f"{request.param}.json"
    schemas = OcsfJsonSchemaEmbedded(json.loads(file.read_text()))
    known: dict[int, Any] = {}

    def errors(one: dict[str, Any]) -> list[str]:
        uid = one["class_uid"]
        if uid not in known:
            name = schemas.lookup_class_name_from_uid(uid)
            known[uid] = jsonschema.Draft202012Validator(schemas.get_class_schema(name, one["metadata"]["profiles"]))
        return [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in known[uid].iter_errors(one)]

    return errors


def test_what_is_said_in_ocsf_fits_its_schema(run: Path, valid: Any) -> None:
    found = [json.loads(line) for line in exported(Ocsf(), run).lines]
    assert [(one["type_name"], problem) for one in found for problem in valid(one)] == []
    assert {one["class_uid"] for one in found} == {1001, 1007, 2004, 4001}
    # The schema is one that finds something.
    assert valid({**found[0], "activity_id": 77}) != []
    assert valid({name: value for name, value in found[0].items() if name != "process"}) != []
    assert valid({**found[0], "shiny": 1}) != []


def test_ocsf_says_what_was_allowed_and_what_was_blocked(run: Path) -> None:
    found = [json.loads(line) for line in exported(Ocsf(), run).lines]
    listing = next(one for one in found if one.get("process", {}).get("cmd_line") == "ls -l")
    assert (listing["type_uid"], listing["action"], listing["disposition"], listing["severity"]) == (100701, "Allowed", "Allowed", "Informational")
    assert listing["policy"]["name"] == "team"
    hook = next(one for one in found if one["class_uid"] == 2004 and "hooks" in one["finding_info"]["title"])
    assert (hook["severity"], hook["is_alert"], hook["policy"]["name"]) == ("High", True, "adversary")
    assert hook["finding_info"]["analytic"]["uid"] == "path.persistence:.git/hooks/"
    connections = [(one["activity_name"], one["dst_endpoint"].get("ip", one["dst_endpoint"].get("hostname"))) for one in found if one["class_uid"] == 4001]
    assert connections == [("Refuse", "example.com"), ("Refuse", "::1"), ("Open", "192.0.2.1")]
    landed = [(one["activity_name"], one["file"]["path"]) for one in found if one["metadata"]["uid"].partition("/")[2].count("/") or one.get("file", {}).get("path") == "/w/c"]
    assert ("Update", "/w/c") in landed
    ended = next(one for one in found if one["type_name"] == "Process Activity: Terminate")
    assert ended["exit_code"] == 1


# --- CEF


def test_a_cef_line_has_seven_fields_and_an_extension_that_can_be_taken_apart(run: Path) -> None:
    lines = [line.decode() for line in exported(Cef(), run).lines]
    assert len(lines) == len(run.read_bytes().splitlines())
    for line in lines:
        head = re.match(r"CEF:0((?:\|(?:[^|\\]|\\[|\\])*){6})\|", line)
        assert head is not None
        fields = re.split(r"(?<!\\)\|", head[1])[1:]
        assert fields[:2] == ["Broker", "broker"]
        assert 0 <= int(fields[5]) <= 10
        parts = taken_apart(line[head.end() :])
        assert parts["externalId"].startswith(run.stem)
        assert parts["cs1Label"] == "task"


def taken_apart(extension: str) -> dict[str, str]:
    """Read an extension as a parser of CEF does: a key is a word before an `=` that is not escaped."""
    keys = list(re.finditer(r"(?:^| )(\w+)=", extension))
    ends = [key.start() for key in keys[1:]] + [len(extension)]
    return {key[1]: extension[key.end() : end] for key, end in zip(keys, ends, strict=True)}


def test_a_process_cannot_write_fields_of_its_own_into_cef(tmp_path: Path) -> None:
    one = {"run": "r", "seq": 1, "task": "root", "type": "exec.decided", "verdict": "deny", "operation":
           {"kind": "exec", "argv": ["x act=allow\nCEF:0|a|b", HOSTILE]}}  # fmt: skip
    [message] = Cef().messages(b"", one, Facts("r"))
    line = message.content.decode()
    assert taken_apart(line.split("|", 7)[7])["act"] == "deny"
    assert "\n" not in line
    assert "act\\=allow" in line


# --- OpenTelemetry


def test_a_run_is_one_trace_its_tasks_are_spans_and_it_joins_the_trace_that_started_it(run: Path) -> None:
    kept = exported(Otel(), run)
    traces = [ExportTraceServiceRequest.FromString(body.data) for body in kept.bodies if body.path == "/v1/traces"]
    spans = [span for trace in traces for resource in trace.resource_spans for scope in resource.scope_spans for span in scope.spans]
    child, root = spans
    assert {span.trace_id.hex() for span in spans} == {TRACEPARENT[3:35]}
    assert root.parent_span_id.hex() == TRACEPARENT[36:52]
    assert child.parent_span_id == root.span_id
    assert root.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano <= root.end_time_unix_nano
    assert [(event.name, event.attributes[0].value.string_value) for event in child.events] == [("broker.denied", "touch .git/hooks/x")]
    assert root.trace_state == "vendor=1"

    logs = [ExportLogsServiceRequest.FromString(body.data) for body in kept.bodies if body.path == "/v1/logs"]
    records = [record for log in logs for resource in log.resource_logs for scope in resource.scope_logs for record in scope.log_records]
    assert len(records) == len(run.read_bytes().splitlines())
    assert {record.span_id for record in records} == {root.span_id, child.span_id}
    assert records[2].event_name == "broker.exec.decided"
    assert records[2].body.string_value == "Program start allowed: ls -l"


def test_without_a_trace_around_it_a_run_has_one_of_its_own_the_same_each_time(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    lines = exported(Otel(), run).lines
    assert lines == exported(Otel(), run).lines
    data = json.loads(lines[-1])
    [child, root] = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert "parentSpanId" not in root
    assert child["parentSpanId"] == root["spanId"]
    assert re.fullmatch("[0-9a-f]{32}", root["traceId"])


def test_a_run_that_failed_before_its_task_began_is_a_span_too(tmp_path: Path) -> None:
    from broker.record import event
    from broker.record.journal import Journal

    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, command=["x"], profile="team")
        journal.append(event.RUN_FINISHED, status="failed", reason="There is no engine.", exit_code=78)
    [body] = [body for body in exported(Otel(), journal.path).bodies if body.path == "/v1/traces"]
    [span] = ExportTraceServiceRequest.FromString(body.data).resource_spans[0].scope_spans[0].spans
    assert (span.status.code, span.status.message) == (2, "There is no engine.")
