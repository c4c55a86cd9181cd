"""Framing: whatever bytes come, in whatever pieces, each line is a message or has an answer, and nothing is kept."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCError

from broker.serve.mcp_lines import MOST_LINE, MOST_VALUES, Lines, line_of, parsed

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def answer(line: bytes | None) -> JSONRPCError:
    found = parsed(line)
    assert isinstance(found, JSONRPCError)
    return found


@given(st.lists(st.binary(max_size=30) | st.just(b"\n") | st.just(PING), max_size=20), st.integers(1, 50))
def test_lines_are_the_same_however_the_bytes_are_cut(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    lines = Lines(most=40)
    found = [line for at in range(0, len(whole), size) for line in lines.feed(whole[at : at + size])]

    complete, _, rest = whole.rpartition(b"\n")
    expected: list[bytes | None] = [line if len(line) <= 40 else None for line in complete.split(b"\n")] if b"\n" in whole else []
    assert found == [*expected, *([None] if len(rest) > 40 else [])]


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_line_at_all_is_anything_but_a_message_or_answered(line: bytes) -> None:
    found = parsed(line)
    assert found is None or isinstance(found, (SessionMessage, JSONRPCError))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "x"]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_any_json_is_a_message_or_answered(value: object) -> None:
    found = parsed(json.dumps(value).encode())
    if isinstance(found, JSONRPCError):
        assert found.error.code in (INVALID_REQUEST, PARSE_ERROR)
        assert json.loads(line_of(found))["id"] is None


@pytest.mark.parametrize(("line", "code"), [
    (b"{", PARSE_ERROR), (b"\xff\xfe", PARSE_ERROR), (b'{"a": "\xff"}', PARSE_ERROR), (b'{"a": "\\ud800"}', PARSE_ERROR),
    (b"[" * 100_000, PARSE_ERROR), (b'{"a":' * 300 + b"1" + b"}" * 300, PARSE_ERROR), (b"9" * 10_000, PARSE_ERROR),
    (b"[]", INVALID_REQUEST), (b"[" + PING + b"]", INVALID_REQUEST), (b"null", INVALID_REQUEST), (b'"x"', INVALID_REQUEST),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', INVALID_REQUEST), (b'{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', INVALID_REQUEST), (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', INVALID_REQUEST),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', INVALID_REQUEST), (None, INVALID_REQUEST),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":[' + b"0," * MOST_VALUES * 2 + b"0]}}", INVALID_REQUEST),
])  # fmt: skip
def test_what_is_no_message_is_answered_with_the_protocols_code(line: bytes | None, code: int) -> None:
    assert answer(line).error.code == code


def test_commas_in_a_text_are_no_values() -> None:
    content = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": ',[{"\\' * 100_000}}).encode()
    assert isinstance(parsed(content), SessionMessage)


def test_a_line_without_an_end_takes_no_memory() -> None:
    lines = Lines()
    piece = b"x" * 65536
    tracemalloc.start()
    said = [found for _ in range(20 * MOST_LINE // len(piece)) for found in lines.feed(piece)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert said == [None]
    assert peak < 2 * MOST_LINE
    assert list(lines.feed(b"the rest of it\n" + PING + b"\n")) == [PING]
