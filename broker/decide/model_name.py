"""Step 3: which model a request names, when only some may be used.

In: the bytes of a body. Out: the name, or why there is none that everybody who reads the body would find. Pure.

An upstream may read JSON in another way than we do: take the first of two equal names or the last, take `Model` for
`model` (Go's decoder does), skip comments. Whatever two readers could take differently is refused. Nothing is built from
the body: a few megabytes of brackets would become gigabytes of objects. The gates of all tasks wait for whoever reads here, so
no expression reads more than half a megabyte at once, and a body has only so many values.
"""

from __future__ import annotations

import codecs
import json
import re
from itertools import pairwise
from urllib.parse import unquote, unquote_plus

from broker.values import dataclass

MOST_DEPTH = 1_000
MOST_STEPS = 1_000_000  # brackets, keys and pieces of long texts: many times what a conversation has
_AT_ONCE = 1 << 18
_COLLECTIONS = frozenset({"models", "deployments", "engines"})  # what a path names a model behind
_BLANK, _PLAIN, _ESCAPED = rb"[ \t\r\n]", rb'[^"\\\x00-\x1f]', rb"\\[^\x00-\x1f]"
_SPACE = re.compile(_BLANK + rb"{1,65536}+")
_NAME = rb'"(?:' + _PLAIN + rb"|" + _ESCAPED + rb'){0,1000}+"'  # also a model's
_KEY = re.compile(_BLANK + rb"{0,1000}+(" + _NAME + rb")" + _BLANK + rb"{0,1000}+:" + _BLANK + rb"{0,1000}+")
_TEXT = re.compile(_NAME)
_INSIDE = re.compile(rb"(?:" + _PLAIN + rb"{1,2048}+|" + _ESCAPED + rb"){1,256}+")
# Up to the next bracket or long text. At the top level a comma ends a value, and so it is not swallowed there.
_SHORT = rb'"' + _PLAIN + rb'{0,1000}+"'
_FLAT = re.compile(rb"(?:[ \t\r\n0-9+\-.eEtrufalsn]{1,1000}+|" + _SHORT + rb"){1,500}+")
_NESTED = re.compile(rb"(?:[ \t\r\n0-9+\-.eEtrufalsn,:]{1,1000}+|" + _SHORT + rb"){1,500}+")
_PAIRS = {ord("}"): ord("{"), ord("]"): ord("[")}


@dataclass(frozen=True, slots=True)
class Unclear:
    """Why no model can be told."""

    reason: str


_OTHERWISE = Unclear("the body is no JSON object that can be read in one way only")


class _TooMuch(Exception):
    """It has more steps than anybody needs."""


def model_named_in(body: bytes | bytearray) -> str | Unclear:
    """Return the model that a JSON object names at its top level. Bytes are read once, in place."""
    try:
        return _Reader(body).model()
    except _TooMuch:
        return Unclear(f"the body has more than {MOST_STEPS:,} values")


class _Reader:
    """A body, and how much of it was read."""

    def __init__(self, body: bytes | bytearray) -> None:
        self._body, self._steps = body, 0

    def model(self) -> str | Unclear:
        body, at = self._body, self._past(_SPACE, 0)
        if body[at : at + 1] != b"{":
            return Unclear("the body is no JSON object")
        if not _is_utf8(body):
            return Unclear("the body is not UTF-8")
        at += 1
        model: str | None = None
        while True:
            key = _KEY.match(body, at)
            if key is None:
                return _OTHERWISE
            name, at = _text(key[1]), key.end()
            end = self._value(at)
            if name is None or end is None:
                return _OTHERWISE
            # To a reader that keeps texts as C does, a NUL ends them.
            if (folded := name.partition("\0")[0].casefold()) == "model":
                if name != "model" or model is not None:
                    return Unclear("the body names a model more than once, or under another spelling")
                value = _TEXT.match(body, at)
                model = _text(value[0]) if value is not None and self._past(_SPACE, value.end()) == end else None
                if model is None:
                    return Unclear("the body's model is no text")
            elif "model" in folded or "fallback" in folded:
                return Unclear(f"the body can name another model, in {json.dumps(name[:40])}")
            at = end + 1
            if body[end:at] == b"}":
                break
        if self._past(_SPACE, at) != len(body):
            return Unclear("more follows the body's JSON object")
        return Unclear("the body names no model") if model is None else model

    def _value(self, at: int) -> int | None:
        """Return where the `,` or `}` behind a top-level value is; None if it is no JSON."""
        body, began, open_ones = self._body, at, bytearray()
        while True:
            at = self._past(_NESTED if open_ones else _FLAT, at)
            byte = body[at] if at < len(body) else 0
            if byte == 0x22:
                at = self._past(_INSIDE, at + 1)
                if body[at : at + 1] != b'"':
                    return None
            elif byte in b"{[":
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

    def _past(self, pattern: re.Pattern[bytes], at: int) -> int:
        """Return the end of what a pattern takes, again and again."""
        self._steps += 1
        while (found := pattern.match(self._body, at)) is not None:
            self._steps += 1
            at = found.end()
        if self._steps > MOST_STEPS:
            raise _TooMuch
        return at


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


def _text(literal: bytes) -> str | None:
    try:
        text = json.loads(literal)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
