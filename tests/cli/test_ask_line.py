"""A line that is typed on a raw terminal."""

from __future__ import annotations

import pytest

from broker.cli.ask_line import Line, Wish


def typed(*pieces: bytes, most: int = 20) -> Line:
    line = Line(most)
    for piece in pieces:
        assert line.take(piece) is None
    return line


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((b"use the cache",), "use the cache"),
        ((b"caxx\x7f\x08che",), "cache"),
        ((b"two words\x17",), "two"),
        ((b"all of it\x15new",), "new"),
        ((b"\xc3", b"\xb6"), "ö"),
        ((b"a\x1b[Db\x1bOCc\x1b[200~d",), "abcd"),
        ((b"a\x01\x02\tb",), "ab"),
        ((b"\x7f\x17\x15",), ""),
    ],
)
def test_what_is_typed_is_its_text(pieces: tuple[bytes, ...], text: str) -> None:
    assert typed(*pieces).text == text


def test_it_takes_no_more_than_it_may() -> None:
    assert typed(b"123456", most=5).text == "12345"


@pytest.mark.parametrize(("key", "wish"), [(b"\r", Wish.ENTER), (b"\n", Wish.ENTER), (b"\x1b", Wish.BACK), (b"\x03", Wish.DENY), (b"\x1a", Wish.SUSPEND)])
def test_a_key_that_ends_it_says_how_and_what_follows_is_thrown_away(key: bytes, wish: Wish) -> None:
    line = Line(20)
    assert line.take(b"text" + key) is wish
    assert line.text == "text"
    if key != b"\x1b":
        assert line.take(b"" + key + b"more") is wish
        assert line.text == "text"
