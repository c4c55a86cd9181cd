"""The model that a body names, as every reader of the body would find it; where two could differ, there is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.decide.model_name import MOST_DEPTH, MOST_STEPS, Unclear, model_named_in, models_beside

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("body", [
    b'{"model":"m"}', b' {"model" : "m" } \n', b'{"a":[1,{"model":"x"}],"model":"m","b":"}{\\"model"}', b'{"\\u006dodel":"m"}',
    b'{"a":"\\\\","model":"m"}', b'{"a":{"b":{}},"c":[],"d":-1.5e+3,"e":null,"f":true,"g":false,"model":"m"}',
])  # fmt: skip
def test_the_model_of_the_top_level_counts(body: bytes) -> None:
    assert model_named_in(body) == "m"


@pytest.mark.parametrize("body", [
    b"", b"[]", b"null", b'"model"', b"{", b"{}", b'{"a":1}', b'{"model":1}', b'{"model":null}', b'{"model":["m"]}', b'{"model":}',
    b'{"model":"m","model":"m"}', b'{"model":"m","\\u006dodel":"x"}', b'{"Model":"x","model":"m"}', b'{"MODEL":"m"}',
    b'{"model":"m"} {"model":"x"}', b'{"model":"m"}x', b'{"model":"m",}', b'{"model":"m" "a":1}', b'{"model":"m"/**/}',
    b"{'model':'m'}", b'{model:"m"}', b'{"a":/*"*/1,"model":"m"}', b'{"a":[1}],"model":"m"}', b'{"a":[1,"model":"m"}',
    b'{"a":"\n","model":"m"}', b'{"model":"m"}\0', b'\xef\xbb\xbf{"model":"m"}', '{"model":"m"}'.encode("utf-16"),
    b'{"model":"\xff"}', b'{"a":"\x00","model":"m"}', b'{"a":' + b"[" * 200_000, b'{"a":' + b"[" * 2_000 + b"]" * 2_000 + b',"model":"m"}',
    b'{"model":"m","a":"\xc0"}', b'{"model":"m","a":"\xed\xa0\x80"}', b'{"model\\u0000x":"x","model":"m"}', b'{"model":"m","models":["x"]}',
    b'{"model":"m","Fallbacks":[{"m":["x"]}]}', b'{"model":"m","draft_model":"x"}', b'{"model":"m","a":"' + b"a" * (1 << 20) + b'\xc3"}',
    b"\x1f\x8b\x08\x00", b'--boundary\r\nContent-Disposition: form-data; name="model"\r\n\r\nm',
])  # fmt: skip
def test_what_two_readers_could_read_differently_names_no_model(body: bytes) -> None:
    assert isinstance(model_named_in(body), Unclear)


def test_brackets_may_nest_as_deep_as_anybody_needs() -> None:
    body = b'{"a":' + b"[" * MOST_DEPTH + b"]" * MOST_DEPTH + b',"model":"m"}'
    assert model_named_in(body) == "m"


@pytest.mark.parametrize("value", [
    b'"' + b"x" * 3_000_000 + b'"', b'"' + b"\\n" * 200_000 + b'"', b'"' + b"x" * 999 + b"\\u00e4" * 5_000 + b'"', b" " * 70_000 + b"1",
    b"[" + b'"a",' * 200_000 + b'"\\""]', b"[" + b"1," * 500_000 + b"1]", b'{"' + b"k" * 5_000 + b'":[' + b"{}," * 5_000 + b"{}]}",
], ids=range(7))  # fmt: skip
def test_long_values_are_read_to_their_end(value: bytes) -> None:
    assert model_named_in(b'{"a":' + value + b',"model":"m"}') == "m"
    assert model_named_in(b'{"model":"m","a":' + value + b"}") == "m"
    assert isinstance(model_named_in(b'{"model":"m","a":' + value), Unclear)


@pytest.mark.parametrize("body", [
    b'{"a":[' + b"[]," * MOST_STEPS + b'1],"model":"m"}', b"{" + b'"a":1,' * MOST_STEPS + b'"model":"m"}',
], ids=["brackets", "keys"])  # fmt: skip
def test_a_body_that_is_made_to_be_read_for_ever_is_not(body: bytes) -> None:
    found = model_named_in(body)
    assert isinstance(found, Unclear)
    assert "more than 1,000,000 values" in found.reason


@pytest.mark.parametrize(("path", "query", "models"), [
    (b"/v1/chat/completions", b"", ()),
    (b"/v1/chat/completions", b"stream=true&a=model", ()),
    (b"/v1/chat/completions", b"model=x", ("x",)),
    (b"/v1/chat/completions", b"a=1&%6dodel=x%2Dy&Model_id=z", ("x-y", "z")),
    (b"/v1beta/models/x:streamGenerateContent", b"", ("x",)),
    (b"/v1beta/%6dodels/x%2Dy:count", b"", ("x-y",)),
    (b"/openai/deployments/x/chat/completions", b"api-version=1", ("x",)),
    (b"/v1/engines/x/completions", b"", ("x",)),
    (b"/v1/models", b"", ()),
])  # fmt: skip
def test_a_model_that_is_named_beside_the_body_is_found(path: bytes, query: bytes, models: tuple[str, ...]) -> None:
    assert models_beside(path, query) == models


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), st.text(), st.booleans())
def test_in_every_json_object_the_model_is_found(table: dict[str, object], model: str, ascii_only: bool) -> None:
    rest = {key: value for key, value in table.items() if "model" not in key.casefold() and "fallback" not in key.casefold()}
    try:
        body = json.dumps({**rest, "model": model, "z": table}, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    assert model_named_in(body) == model


@given(st.binary(max_size=80), st.integers(0, 80))
def test_whatever_comes_in_the_middle_a_reader_that_takes_it_finds_the_same(noise: bytes, at: int) -> None:
    whole = b'{"a": [1, "x"], "model": "m", "b": {"model": "x"}}'
    body = whole[:at] + noise + whole[at:]
    found = model_named_in(body)
    try:
        pairs = json.loads(body, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return
    if isinstance(found, str):
        assert [value for key, value in pairs if key == "model"] == [found]
