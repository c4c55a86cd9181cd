"""The check of arguments: what a whole implementation of JSON Schema says, in sentences, and a little stricter."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.serve import tools_list
from broker.serve.tools_schema import Invalid, check, flag, listing, number, table, text

SHAPES = [value for value in vars(tools_list).values() if isinstance(value, tools_list.Shape)]
SAMPLE = table({
    "name": text("", most=5, least=1), "body": text("", most=9, nul=True), "count": number("", 1, 4, 1),
    "seconds": number("", 0.5, 2, 1, whole=False), "really": flag("", default=False),
    "words": listing("", text("", most=3), most=3), "kind": {"enum": ["a", "b"]},
    "limit": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "number"}]},
    "inner": table({"deep": listing("", table({"x": number("", 0, 9, 0)}, "x"), most=2)}, "deep"),
}, "name")  # fmt: skip

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 12), st.floats(-1, 6, width=16).filter(lambda value: value != int(value)),
    st.sampled_from(["", "a", "b", "abc", "abcdef", "x\0y", "ab\0", "0123456789"]),
)  # fmt: skip
KEYS = st.sampled_from([*SAMPLE["properties"], "deep", "x", "other"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(KEYS, VALUES, max_size=6) | VALUES)
def test_the_same_is_valid_as_for_a_whole_implementation(value: Any) -> None:
    valid = jsonschema.Draft202012Validator(SAMPLE).is_valid(value)
    try:
        check(SAMPLE, value)
    except Invalid:
        assert not valid
    else:
        assert valid


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_what_is_published_is_json_schema_and_has_a_sentence_for_each_key(shape: tools_list.Shape) -> None:
    jsonschema.Draft202012Validator.check_schema(dict(shape.takes))
    jsonschema.Draft202012Validator.check_schema(dict(shape.gives))
    assert shape.about.endswith(".")
    assert all("description" in key or "enum" in key for key in shape.takes["properties"].values())


@pytest.mark.parametrize(("value", "sentence"), [
    ({}, "name: it is missing"),
    ([], "it must be an object, not a list"),
    ({"name": "x", "conut": 1}, "conut: there is no such key. There are: name, body, count, seconds, really, words, kind, limit, inner. Did you mean count?"),
    ({"name": 7}, "name: it must be text, not a whole number"),
    ({"name": "x", "count": True}, "count: it must be a whole number, not true or false"),
    ({"name": "x", "count": 99}, "count: it is a number from 1 to 4"),
    ({"name": "x", "seconds": float("nan")}, "seconds: it is a number from 0.5 to 2"),
    ({"name": "x", "limit": float("nan")}, "limit: it is a number from -inf to inf"),
    ({"name": "x", "limit": []}, "limit: it must be text or a number, not a list"),
    ({"name": "x", "words": ["a", "b\0"]}, "words[1]: it holds a NUL"),
    ({"name": "x", "inner": {"deep": [{"x": 1}, {"y": 1}]}}, "inner.deep[1].x: it is missing"),
    ({"name": "\ud800"}, "name: it holds half of a character (a lone surrogate)"),
    ({"name": "x", "a\x1b[2J": 1}, "a\\x1b[2J: there is no such key. There are: name, body, count, seconds, really, words, kind, limit, inner"),
])  # fmt: skip
def test_each_mistake_is_one_sentence_that_says_where(value: Any, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(SAMPLE, value)
    assert str(caught.value) == sentence
