"""What a question looks like on screens of every size, and how it is written out."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.ask_frame import Frame
from broker.cli.ask_line import Line
from broker.cli.question_text import details, exact, wrapped
from broker.cli.terminal import Colours


def row(**more: Any) -> dict[str, Any]:
    return {
        "approval": 1, "tool": "exec", "what": "curl x", "class": "network_egress", "effects": ["network_egress"],
        "refused": ["network_egress"], "rule": "effects", "reason": "curl reaches out to the network.",
        "reasons": [{"rule": "program.curl", "class": "network_egress", "text": "curl reaches out."}], "sha256": "0" * 64, "session": True,
        "word": "", "seconds": 1.0, "left": 119.0, "argv": ["curl", "x"], "path": "/usr/bin/curl", "program": "/usr/bin/curl",
        "cwd": "/work", "env": [["PATH", "/bin"]], **more,
    }  # fmt: skip


def frame(**more: Any) -> Frame:
    return Frame(row(**more), 1, Colours(None))


@given(rows=st.integers(4, 60), columns=st.integers(24, 200), argv=st.lists(st.text(max_size=300), min_size=1, max_size=40), reason=st.text(max_size=400))
def test_it_fits_and_shows_the_keys_and_who_asks_whatever_it_is_about(rows: int, columns: int, argv: list[str], reason: str) -> None:
    lines = frame(argv=argv, reason=reason).lines(rows, columns)
    assert len(lines) <= rows
    assert all(_width(line) < columns for line in lines)
    assert all(line.isprintable() for line in lines)
    assert any("o once" in line and "d deny" in line for line in lines)
    assert "network_egress" in "".join(line.strip() for line in lines)


def _width(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


def test_all_pages_together_show_everything() -> None:
    one = frame(argv=[f"word-{number}-{'x' * number}" for number in range(100)])
    seen = set()
    for _ in range(30):
        seen |= {line[12:] for line in one.lines(24, 80)}
        one.turn_page()
    assert {f"word-{number}-{'x' * number}" for number in range(50)} <= seen


def test_pages_that_were_not_seen_are_told_until_they_were() -> None:
    one = frame(argv=["x"] * 40)
    assert any("page 1 of 3, 2 not seen yet" in line for line in one.lines(24, 80))
    one.turn_page()
    one.lines(24, 80)
    one.turn_page()
    assert any(line == "  page 3 of 3  (space turns the page)" for line in one.lines(24, 80))
    one.turn_page()
    assert any(line == "  page 1 of 3  (space turns the page)" for line in one.lines(24, 80))


def test_the_agents_words_are_there_only_when_they_are_asked_for_and_said_to_be_that() -> None:
    one = frame(claims={"goal": "it is harmless\x1b[2J"})
    assert not any("harmless" in line for line in one.lines(24, 80))
    one.show_claims()
    lines = one.lines(24, 80)
    assert any("in its own words. None of it was checked" in line for line in lines)
    assert "  goal:     it is harmless\\x1b[2J" in lines
    assert not any("argv" in line for line in lines)


def test_the_session_is_offered_only_where_it_may_be() -> None:
    assert "s session" in frame().lines(24, 80)[-1]
    assert "s session" not in frame(session=False).lines(24, 80)[-1]


def test_a_long_line_that_is_typed_shows_its_end_and_its_length() -> None:
    one = frame()
    one.typing("Why not?", Line(500, "x" * 490 + " the end"))
    lines = one.lines(24, 80)
    assert any(line.endswith("the end_") for line in lines)
    assert "498 of 500 characters" in lines[-1]


def test_the_part_of_the_shell_text_is_marked_where_no_text_can_write() -> None:
    text = "a\n  shell >>  forged; curl x; b"
    start = text.index("curl")
    lines = details(row(shell={"text": text, "start": start, "end": start + 6, "cut": True}))
    assert [line for line in lines if line.startswith("  shell")] == [
        "  shell     a", "  shell       shell >>  forged; ", "  shell >>  curl x", "  shell     ; b", "  shell     … there is more of it",
    ]  # fmt: skip


def test_a_change_of_a_file_shows_its_lines() -> None:
    told = {"bytes": 9, "bytes_before": None, "lines": ["@@ 1", "+one\x1b[2J"], "added": 1, "removed": 0, "lines_left_out": 3}
    change = row(tool="write_file", action="write", path="/work/a", other="", diff=told)
    del change["argv"]
    lines = details(change)
    assert lines[0] == "  path      /work/a"
    assert lines[2:6] == [
        "  diff      9 bytes (a new file), 1 lines more, 0 less", "  diff      @@ 1", "  diff      +one\\x1b[2J", "  diff      … and 3 lines",
    ]  # fmt: skip


def test_what_a_row_holds_that_has_no_place_is_shown_by_its_name() -> None:
    assert "  new\\x1b   value\\x1b[2J" in details(row(**{"new\x1b": "value\x1b[2J"}))
    assert {"  list      1", "  list a    2"} <= set(details(row(list=[1, {"a": 2}])))


@given(st.text())
def test_exact_text_has_nothing_that_joins_hides_or_turns(text: str) -> None:
    shown = exact(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(char)[0] in "MC" or unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in shown)
    assert exact(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("e\u0301", "e\\u0301"), ("\u202e", "\\u202e"), ("\u05d0", "\\u05d0"), ("\u3164", "\\u3164"), ("\udcff", "\\xff"), ("é世", "é世"), ("\u200d", "\\u200d"), ("\U000e0041", "\\U000e0041")],
)
def test_what_is_written_out(text: str, shown: str) -> None:
    assert exact(text) == shown


@given(st.text().map(exact), st.integers(20, 100))
def test_a_broken_line_loses_nothing(line: str, columns: int) -> None:
    first, *more = wrapped(line, columns)
    indent = min(12, columns // 4)
    assert first + "".join(part[indent:] for part in more) == line
    assert all(_width(part) <= columns for part in (first, *more))


def test_a_line_breaks_behind_a_word_where_one_ends_near() -> None:
    assert wrapped("  refused   it permits only safe and local_write.", 44) == ["  refused   it permits only safe and ", " " * 11 + "local_write."]
    assert wrapped("x" * 50, 40) == ["x" * 40, " " * 10 + "x" * 10]
