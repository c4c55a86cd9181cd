"""What a program has made of its terminal is undone for a question, and done again after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.ask_modes import MOST_OPEN, Modes

PIECES = [
    b"text", b"\n", "ö世".encode(), b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?2004;1000h", b"\x1b[?25l", b"\x1b[4h", b"\x1b[4l", b"\x1b=",
    b"\x1b>", b"\x1b[>1u", b"\x1b[<u", b"\x1b[>4;2m", b"\x1b]0;title \xc3\xb6\x07", b"\x1b]52;c;aGk=\x1b\\", b"\x1bP+q\x1b\\", b"\x1b[31;1m",
    b"\x1b(0", b"\x1b%@", b"\x1bc", b"\x1b[!p", b"\x1b]4;1;black\x07", b"\x1b[?", b"\x1b", b"\x18", b"\x9b", b"\x1b[?7l", b"\x1b[?1h",
]  # fmt: skip


def after(output: bytes) -> Modes:
    modes = Modes()
    modes.saw(output)
    return modes


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), st.data())
def test_where_the_pieces_end_makes_no_difference(output: bytes, data: st.DataObject) -> None:
    modes, left = Modes(), output
    while left:
        size = data.draw(st.integers(1, len(left)))
        modes.saw(left[:size])
        left = left[size:]
    assert modes == after(output)


def test_of_a_plain_program_nothing_but_the_screen_is_changed_and_all_is_undone() -> None:
    modes = after(b"$ ls\r\n\x1b[01;34msrc\x1b[0m\r\n")
    assert b"\x1b[?1049h" in modes.before()
    assert modes.after().endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(
    ("output", "off", "on"),
    [
        (b"\x1b[?2004h", b"\x1b[?2004l", b"\x1b[?2004h"),
        (b"\x1b[?1000;1006h", b"\x1b[?1000l", b"\x1b[?1000h"),
        (b"\x1b[?1h\x1b=", b"\x1b[?1l", b"\x1b[?1h"),
        (b"\x1b=", b"\x1b>", b"\x1b="),
        (b"\x1b[>1u", b"\x1b[>0u", b"\x1b[<u"),
        (b"\x1b[>4;2m", b"\x1b[>4;0m", b"\x1b[>4;2m"),
        (b"\x1b[4h", b"\x1b[4l", b"\x1b[4h"),
        (b"\x1b[?69h", b"\x1b[?69l", b"\x1b[?69h"),
        (b"\x1b[?9001h", b"\x1b[?9001l", b"\x1b[?9001h"),
    ],
)
def test_what_would_change_keys_or_text_is_off_while_asking_and_on_again_after_it(output: bytes, off: bytes, on: bytes) -> None:
    modes = after(output)
    assert off in modes.before()
    assert on in modes.after()
    assert off not in after(b"").before()
    assert on not in after(b"").after()
    assert off not in after(output + b"\x1bc").before()  # a reset


def test_a_hidden_cursor_is_hidden_again_and_a_line_that_ends_at_the_margin_ends_there_again() -> None:
    modes = after(b"\x1b[?25l\x1b[?7l")
    assert b"\x1b[?25h" not in modes.after()
    assert b"\x1b[?7h" not in modes.after()


def test_lines_run_from_left_to_right_no_key_is_locked_out_and_nothing_is_protected() -> None:
    before = after(b"\x1b[2 k\x1b[2h\x1bV").before()
    for sequence in (b"\x1b[0 k", b"\x1b[2l", b"\x1bW"):
        assert sequence in before.partition(b"\x1b[2J")[0]


def test_a_full_screen_program_stays_on_its_screen() -> None:
    modes = after(b"\x1b[?1049h\x1b[H\x1b[2Jpicture")
    assert modes.full_screen
    assert b"1049" not in modes.before() + modes.after()
    assert not after(b"\x1b[?1049h\x1b[?1049l").full_screen
    assert after(b"\x1b[?47h").full_screen


@pytest.mark.parametrize("begun", [b"\x1b", b"\x1b[3", b"\x1b]0;ti", b"\x1bPq", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98"])
def test_what_was_begun_is_ended_before_the_question_and_begun_again_after_it(begun: bytes) -> None:
    modes = after(b"text" + begun)
    assert modes.before().startswith(b"\x18\x1b\\")
    assert modes.after().endswith(b"\x1b[?1049l" + begun)


@pytest.mark.parametrize("whole", [b"\x1b[31m", b"\x1b]0;t\x07", "ö".encode(), "世".encode(), "😀".encode(), b"\x80\x80"])
def test_what_is_whole_is_not_begun_again(whole: bytes) -> None:
    assert after(whole).after().endswith(b"\x1b[?1049l")


def test_a_string_without_an_end_takes_no_more_room_than_it_may() -> None:
    modes = Modes()
    modes.saw(b"\x1b]0;")
    for _ in range(10):
        modes.saw(b"x" * MOST_OPEN)
    assert len(modes.after()) < 2 * MOST_OPEN


def test_colours_that_were_changed_are_noticed() -> None:
    assert after(b"\x1b]4;1;#000000\x07").recoloured
    assert after(b"\x1b]11;black\x1b\\").recoloured
    assert after(b"\x1b]P0000000").recoloured
    assert b"\x1b]111\x1b\\" in after(b"\x1b]11;black\x1b\\").before()
    assert b"\x1b]111" not in after(b"text").before()
    assert not after(b"\x1b]0;4;1;\x07\x1b]52;c;aGk=\x07\x1b[31m").recoloured


def test_the_encoding_is_ours_while_asking_and_the_programs_again_after_it() -> None:
    assert b"\x1b%G" in after(b"").before()
    assert b"\x1b%" not in after(b"").after()
    assert b"\x1b%@" in after(b"\x1b%@").after()
    assert b"\x1b%" not in after(b"\x1b%@\x1bc").after()
    assert b"\x1b%" not in Modes(utf8=False).before()
