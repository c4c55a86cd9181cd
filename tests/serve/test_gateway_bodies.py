"""Bodies of answers in pieces of any size: read the same as all at once, and the same as h11 reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.serve.bodies import MOST_LINE, Malformed, chunked, sized


def filling(pieces: list[bytes]) -> object:
    """A `fill` that gives these pieces, cut where the view is shorter, and then the end."""
    left = [piece for piece in pieces if piece]

    def fill(view: memoryview) -> int:
        if not left:
            return 0
        count = min(len(view), len(left[0]))
        view[:count] = left[0][:count]
        left[0] = left[0][count:]
        if not left[0]:
            left.pop(0)
        return count

    return fill


def taken(body: Iterator[bytes | memoryview]) -> tuple[bytes, int]:
    found = bytearray()
    while True:
        try:
            found += next(body)
        except StopIteration as end:
            return bytes(found), end.value


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """Cut a text at these places."""
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def by_h11(text: bytes) -> bytes | None:
    """What h11 reads, None if it is malformed or not all there."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    http.send(h11.EndOfMessage())
    http.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + text)
    http.receive_data(b"")
    found = bytearray()
    try:
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                found += event.data
    except h11.RemoteProtocolError:
        return None
    return bytes(found)


PLACES = st.lists(st.integers(0, 400), max_size=30)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.sampled_from([b"", b";a=b", b" ;x", b";\xff"]), PLACES, st.integers(0, 40))
def test_chunks_are_read_however_they_arrive(chunks: list[bytes], extension: bytes, places: list[int], rest: int) -> None:
    text = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks) + b"0\r\nX-T: 1\r\n\r\n"
    rest = min(rest, len(text))
    body = chunked(filling(cut(text[rest:], places)), bytearray(9000), text[:rest])  # type: ignore[arg-type]
    assert taken(body) == (b"".join(chunks), 0)


@given(st.binary(max_size=12), st.integers(0, 30), PLACES)
def test_noise_in_chunks_is_refused_or_read_as_h11_reads_it(noise: bytes, at: int, places: list[int]) -> None:
    whole = b"5\r\nhello\r\n3;x\r\nabc\r\n0\r\n\r\n"
    text = whole[:at] + noise + whole[at:]
    try:
        found, _ = taken(chunked(filling(cut(text, places)), bytearray(9000), b""))  # type: ignore[arg-type]
    except Malformed:
        return
    assert found == by_h11(text)


@pytest.mark.parametrize("text", [
    b"", b"5", b"5\r\nhel", b"5\r\nhello", b"5\r\nhello\r\n", b"5\r\nhello\r\n0\r\n", b"5\nhello\n0\n\n", b"5\r\nhelloXX\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"5 5\r\nhello\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n",
    b"1" * 16 + b"\r\n", b"\r\n5\r\nhello\r\n0\r\n\r\n", b"5;\n\r\nhello\r\n0\r\n\r\n", b"5;" + b"x" * 2 * MOST_LINE + b"\r\nhello\r\n0\r\n\r\n",
    b"0\r\n" + b"X: 1\r\n" * 100_000 + b"\r\n",
])  # fmt: skip
def test_chunks_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(Malformed):
        taken(chunked(filling([text]), bytearray(20_000), b""))  # type: ignore[arg-type]


def test_what_comes_after_a_body_is_counted_and_not_part_of_it() -> None:
    assert taken(chunked(filling([]), bytearray(99), b"2\r\nok\r\n0\r\n\r\nHTTP/1.1")) == (b"ok", 8)  # type: ignore[arg-type]
    assert taken(sized(filling([]), bytearray(99), b"okHTTP/1.1", 2)) == (b"ok", 8)  # type: ignore[arg-type]
    assert taken(sized(filling([]), bytearray(99), b"HTTP/1.1", 0)) == (b"", 8)  # type: ignore[arg-type]


@given(st.binary(max_size=300), PLACES, st.integers(0, 40), st.booleans())
def test_a_sized_body_and_one_up_to_the_end_are_read_however_they_arrive(body: bytes, places: list[int], rest: int, ends: bool) -> None:
    rest = min(rest, len(body))
    found = sized(filling(cut(body[rest:], places)), bytearray(64), body[:rest], None if ends else len(body))  # type: ignore[arg-type]
    assert taken(found) == (body, 0)
    if body and not ends:
        with pytest.raises(Malformed):
            taken(sized(filling([body[:-1]]), bytearray(64), b"", len(body)))  # type: ignore[arg-type]
