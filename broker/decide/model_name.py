"""Step 3: which model a request names, when only some may be used.

In: the bytes of a body. Out: the name, or why there is none that everybody who reads the body would find. Pure.

An upstream may read JSON in another way than we do: take the first of two equal names or the last, take `Model` for
`model` (Go's decoder does), skip comments. Whatever two readers could take differently is refused. Nothing is built from
the body: a few megabytes of brackets would become gigabytes of objects, and the gates of all tasks wait meanwhile.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import unquote, unquote_plus

MOST_DEPTH = 1_000
_AT_ONCE = 1 << 20
_COLLECTIONS = frozenset({"models", "deployments", "engines"})  # what a path names a model behind
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
_KEY = re.compile(rb"[ \t\r\n]*+(" + _STRING + rb")[ \t\r\n]*+:[ \t\r\n]*+")
_TEXT = re.compile(_STRING)
_SPACE = re.compile(rb"[ \t\r\n]*+")
# Up to the next bracket. At the top level a comma ends a value, and so it is not swallowed there.
_FLAT = re.compile(rb"(?:[ \t\r\n0-9+\-.eEtrufalsn]++|" + _STRING + rb")*+")
_NESTED = re.compile(rb"(?:[ \t\r\n0-9+\-.eEtrufalsn,:]++|" + _STRING + rb")*+")
_PAIRS = {ord("}"): ord("{"), ord("]"): ord("[")}


@dataclass(frozen=True, slots=True)
class Unclear:
    """Why no model can be told."""

    reason: str


def model_named_in(body: bytes | bytearray) -> str | Unclear:
    """Return the model that a JSON object names at its top level. Bytes are read once, in place."""
    at = _end(_SPACE, body, 0)
    if body[at : at + 1] != b"{":
        return Unclear("the body is no JSON object")
    if not _is_utf8(body):
        return Unclear("the body is not UTF-8")
    at += 1
    model: str | None = None
    while True:
        key = _KEY.match(body, at)
        if key is None:
            return Unclear("the body is no JSON object that can be read in one way only")
        name = _text(key[1])
        at = key.end()
        end = _skip_value(body, at)
        if name is None or end is None:
            return Unclear("the body is no JSON object that can be read in one way only")
        # To a reader that keeps texts as C does, a NUL ends them.
        if (folded := name.partition("\0")[0].casefold()) == "model":
            if name != "model" or model is not None:
                return Unclear("the body names a model more than once, or under another spelling")
            value = _TEXT.match(body, at)
            model = _text(value[0]) if value is not None and _end(_SPACE, body, value.end()) == end else None
            if model is None:
                return Unclear("the body's model is no text")
        elif "model" in folded or "fallback" in folded:
            return Unclear(f"the body can name another model, in {json.dumps(name[:40])}")
        at = end + 1
        if body[end : at] == b"}":
            break
    if _end(_SPACE, body, at) != len(body):
        return Unclear("more follows the body's JSON object")
    return Unclear("the body names no model") if model is None else model


def models_beside(path: bytes, query: bytes) -> tuple[str, ...]:
    """Return the models that a request names beside its body: in its query, or behind `models/` and the like in its path."""
    pairs = (pair.partition("=") for pair in query.decode("latin-1").split("&"))
    found = [unquote_plus(value) for name, _, value in pairs if "model" in unquote_plus(name).casefold()]
    words = unquote(path.decode("latin-1")).split("/")
    found += [after.partition(":")[0] for word, after in pairwise(words) if word.casefold() in _COLLECTIONS]
    return tuple(found)


def _is_utf8(body: bytes | bytearray) -> bool:
    """Whether all of it is: a reader that takes what is not may swallow a quote with it. Megabytes are not decoded at once."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(body), _AT_ONCE):
            decoder.decode(body[at : at + _AT_ONCE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _skip_value(body: bytes | bytearray, at: int) -> int | None:
    """Return where the `,` or `}` behind a top-level value is; None if it is no JSON."""
    began, open_ones = at, bytearray()
    while True:
        at = _end(_NESTED if open_ones else _FLAT, body, at)
        byte = body[at] if at < len(body) else 0
        if byte in b"{[":
            open_ones.append(byte)
            if len(open_ones) > MOST_DEPTH:
                return None
        elif open_ones and byte in _PAIRS and open_ones[-1] == _PAIRS[byte]:
            open_ones.pop()
        elif not open_ones and byte in b",}" and at > began:
            return at
        else:
            return None
        at += 1


def _end(pattern: re.Pattern[bytes], body: bytes | bytearray, at: int) -> int:
    found = pattern.match(body, at)
    return at if found is None else found.end()


def _text(literal: bytes) -> str | None:
    try:
        text = json.loads(literal)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
