"""What a caller says first, and how long it may take for it."""

from __future__ import annotations

import pytest

from broker.enforce import wire
from broker.enforce.calls import MOST_WORDS, CallEnded, CallLine

SOON = 0.02  # seconds
Sent = list[wire.Reply | wire.CallNext | wire.HangUp]


@pytest.fixture
def sent() -> Sent:
    """What the guard is told."""
    return []


@pytest.fixture
def line(sent: Sent) -> CallLine:
    return CallLine(3, 77, sent.append)


def test_words_come_in_pieces(line: CallLine, sent: Sent) -> None:
    for packet in (b"c/work\0bro", b"cker\0den", b"cials\0", b"s"):
        line.put(packet)

    assert line.words(SOON) == ("/work", ("broker", "denials"))
    assert sent == [wire.CallNext(call=3)] * 3


@pytest.mark.parametrize("pieces", [(), (b"c/work\0",), (b"c/work\0", b"cbroker\0")], ids=["silent", "one", "two"])
def test_a_caller_that_does_not_come_to_its_end_is_hung_up_on(line: CallLine, sent: Sent, pieces: tuple[bytes, ...]) -> None:
    for packet in pieces:
        line.put(packet)

    with pytest.raises(CallEnded):
        line.words(SOON)

    assert sent == [*[wire.CallNext(call=3)] * len(pieces), wire.HangUp(call=3)]


def test_a_caller_cannot_win_time_word_by_word() -> None:
    sent: Sent = []

    def send(message: wire.Reply | wire.CallNext | wire.HangUp) -> None:
        sent.append(message)
        if isinstance(message, wire.CallNext):
            line.put(b"c")  # at once, without an end

    line = CallLine(3, 77, send)
    line.put(b"c")
    with pytest.raises(CallEnded):
        line.words(SOON)
    assert sent[-1] == wire.HangUp(call=3)


@pytest.mark.parametrize("packets", [(b"x",), (b"",), (b"s",), (b"c/work\0broker", b"s"), (b"c" + b"x" * (MOST_WORDS + 1),)])
def test_nonsense_is_hung_up_on(line: CallLine, sent: Sent, packets: tuple[bytes, ...]) -> None:
    for packet in packets:
        line.put(packet)

    with pytest.raises(CallEnded):
        line.words(SOON)

    assert sent[-1] == wire.HangUp(call=3)


def test_a_caller_that_is_gone_is_not_waited_for(line: CallLine, sent: Sent) -> None:
    line.gone()

    with pytest.raises(CallEnded):
        line.words()

    assert sent == []
