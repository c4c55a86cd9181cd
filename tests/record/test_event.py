"""One event is one line, the same bytes for ever, and it comes back as it was."""

from __future__ import annotations

from enum import Enum, IntEnum
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.classify.risk import Assessment, Part, PartKind, Reason, Risk
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer
from broker.record import event
from broker.request.operation import Connection, Exec, FileAction, FileChange, ShellText

# What os.fsdecode can give: text, and the surrogates that stand for bytes that are not UTF-8.
decoded_bytes = st.binary().map(lambda data: data.decode("utf-8", "surrogateescape"))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | decoded_bytes,
    lambda inner: st.lists(inner) | st.dictionaries(decoded_bytes, inner),
    max_leaves=20,
)


@given(st.dictionaries(decoded_bytes, values))
def test_what_was_written_is_read_back_whatever_bytes_it_held(fields: dict[str, object]) -> None:
    line = event.encode(fields)

    assert event.decode(line) == fields
    assert event.encode(event.decode(line)) == line


@given(decoded_bytes)
def test_a_line_is_plain_ascii_without_control_characters(text: str) -> None:
    line = event.encode({"argv": text})

    assert all(0x20 <= byte < 0x7F for byte in line)


def test_bytes_that_are_not_utf8_come_back_as_the_same_bytes() -> None:
    word = b"\xff\xfe caf\xe9 \x1b[2J".decode("utf-8", "surrogateescape")

    back = event.decode(event.encode({"argv": [word]}))["argv"][0]

    assert back.encode("utf-8", "surrogateescape") == b"\xff\xfe caf\xe9 \x1b[2J"


def test_the_order_of_fields_does_not_change_the_line() -> None:
    assert event.encode({"b": 1, "a": 2}) == event.encode({"a": 2, "b": 1}) == b'{"a":2,"b":1}'


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"1", b"{", b'{"a":1,"a":2}', b'{"a":"\xff"}', b"[" * 200_000, b'{"a":1}x']
)
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        event.decode(line)


def test_a_number_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError):
        event.encode({"seconds": float("nan")})


class _Number(IntEnum):
    ONE = 1


class _Word(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Risk.NETWORK_EGRESS, "network_egress"),
        (frozenset({Risk.BLOCKED, Risk.SAFE, Risk.INSTALL}), ["safe", "install", "blocked"]),
        (frozenset(), []),
        ({"b", "a"}, ["a", "b"]),
        (FileAction.WRITE, "write"),
        (_Number.ONE, 1),
        (_Word.RED, "red"),
        (PurePosixPath("/a"), "/a"),
        ((1, (2,)), [1, [2]]),
        ({Risk.SAFE: (1,)}, {"safe": [1]}),
        (ShellText(text="ls"), {"kind": "shell", "text": "ls", "dialect": "bash"}),
        (
            Connection(address="1.1.1.1", port=53),
            {"kind": "connection", "address": "1.1.1.1", "port": 53, "protocol": "tcp"},
        ),
        (Exec(argv=("ls",)), {"kind": "exec", "argv": ["ls"]}),
    ],
)
def test_words_of_the_earlier_steps_have_one_plain_form(value: object, expected: object) -> None:
    assert event.plain(value) == expected


def test_contents_of_files_are_recorded_as_length_and_digest_only() -> None:
    change = FileChange(action=FileAction.WRITE, path="/w/.env", new=b"TOKEN=hunter2")

    recorded = event.plain(change)

    assert "hunter2" not in str(recorded)
    assert isinstance(recorded, dict)
    assert recorded["new"]["length"] == 13
    assert "old" not in recorded


def test_a_value_without_a_plain_form_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(TypeError, match="cannot hold"):
        event.plain({"x": object()})
    with pytest.raises(TypeError, match="key"):
        event.plain({1: "x"})


def _assessment() -> Assessment:
    reason = Reason(rule="program.curl", risk=Risk.NETWORK_EGRESS, text="reaches the network")
    part = Part(
        kind=PartKind.COMMAND, argv=("curl",), effects=frozenset({Risk.NETWORK_EGRESS}), reasons=(reason,)
    )
    return Assessment(parts=(part,), classifier="1", tables="ab")


def test_a_denial_is_recorded_with_rule_layer_and_all_that_was_refused() -> None:
    denied = Deny(
        what="curl",
        effects=frozenset({Risk.NETWORK_EGRESS}),
        layer=Layer.PROFILE,
        rule="profile.max_risk",
        reason="up to local_write",
        hint="ask",
    )

    fields = event.decided(Exec(argv=("curl",)), _assessment(), denied)

    assert fields == {
        "operation": {"kind": "exec", "argv": ["curl"]},
        "effects": ["network_egress"],
        "reasons": [{"rule": "program.curl", "class": "network_egress", "text": "reaches the network"}],
        "classifier": "1",
        "tables": "ab",
        "verdict": "deny",
        "rule": "profile.max_risk",
        "layer": "profile",
        "reason": "up to local_write",
        "refused": ["network_egress"],
        "approvable": False,
    }


def test_an_allow_is_recorded_with_the_grant_that_it_opens() -> None:
    grant = Grant(entry="go test ./...", effects=frozenset({Risk.SAFE, Risk.CODE_EXECUTION}))
    allowed = Allow(layer=Layer.ALLOWLIST, rule="allowlist", effects=frozenset(), grant=grant)

    fields = event.decided(Exec(argv=("go",)), _assessment(), allowed)

    assert (fields["verdict"], fields["layer"]) == ("allow", "allowlist")
    assert fields["grant"] == {"entry": "go test ./...", "effects": ["safe", "code_execution"]}


def test_a_question_is_recorded_as_one() -> None:
    asked = Ask(effects=frozenset({Risk.INSTALL}), reason="needs approval", rule="profile.ask")

    fields = event.decided(Exec(argv=("npm",)), _assessment(), asked)

    assert (fields["verdict"], fields["reason"], fields["refused"]) == ("ask", "needs approval", ["install"])
