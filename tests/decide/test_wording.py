"""What an untrusted process wrote reaches a reader escaped and short."""

from __future__ import annotations

import pytest

from broker.decide import AllowEntry, Profile
from broker.decide.wording import command_line, describe, escape, listed, shorten, similar_entries
from broker.request.operation import Exec, FileAction, FileChange, ShellText


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ä 日", "plain ä 日"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp", "\\u202egnp"),
        ("\udcff", "\\xff"),
        ("\ud800", "\\ud800"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(raw: str, shown: str) -> None:
    assert escape(raw) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert len(shorten("a" * 10_000)) == 200
    assert shorten("\x1b" * 10_000).endswith("…")
    assert len(command_line(["x" * 2_000_000])) <= 200
    assert len(command_line(["a"] * 1_000_000)) <= 200


def test_words_are_quoted_where_a_reader_could_take_them_for_several() -> None:
    assert command_line(["make", "FOO=1", "a b", ""]) == "make FOO=1 'a b' ''"
    assert command_line([]) == "(no arguments)"


def test_a_program_under_a_false_name_is_shown_by_what_would_start() -> None:
    assert describe(Exec(argv=("ls", "-l"), path="/usr/bin/curl")) == "/usr/bin/curl (as ls -l)"
    assert describe(Exec(argv=("ls", "-l"), path="/bin/ls")) == "ls -l"


def test_operations_are_described_in_words() -> None:
    rename = FileChange(action=FileAction.RENAME, path="/a", other="/b")
    assert describe(rename) == "rename /a -> /b"
    assert describe(ShellText(text="\n ls \x1b\n")) == "ls \\x1b"


def test_lists_read_like_prose() -> None:
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "nothing",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_entries_of_the_same_program_are_suggested_first() -> None:
    entries = [("go", "vet", "./..."), ("go", "test", "./..."), ("make", "check")]
    profile = Profile(name="p", allowlist=tuple(AllowEntry(argv=argv) for argv in entries))
    assert similar_entries(("go", "test"), profile) == ("go test ./...", "go vet ./...")
    assert similar_entries(("make", "chek"), profile) == ("make check",)
    assert similar_entries(("cargo", "build"), profile) == ()
