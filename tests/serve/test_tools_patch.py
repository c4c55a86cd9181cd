"""Replacing and patching: exactly what was said, or a reason."""

from __future__ import annotations

import difflib
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.serve.tools_patch import MOST_HUNKS, DoesNotApply, patched, replaced

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"-- x\n", b"++ y\n", b"@@\n", b" z\r\n"]), max_size=14)


@given(LINES, LINES, st.integers(0, 3))
def test_a_diff_that_was_made_of_two_texts_makes_the_one_of_the_other(old: list[bytes], new: list[bytes], context: int) -> None:
    made = difflib.diff_bytes(difflib.unified_diff, old, new, b"old", b"new", n=context)
    diff = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in made)
    if diff:
        assert patched(b"".join(old), diff) == b"".join(new)


@given(st.binary(max_size=80), st.binary(max_size=400))
def test_no_bytes_at_all_do_anything_but_apply_or_not(content: bytes, diff: bytes) -> None:
    for text in (diff, b"@@ -1 +1 @@\n" + diff, b"@@ -1,0 +1,2 @@\n+" + diff):
        with suppress(DoesNotApply):
            assert isinstance(patched(content, text), bytes)


@pytest.mark.parametrize(("old", "new"), [(b"a\nb", b"a\nc"), (b"a", b"a\n"), (b"a\n", b"a"), (b"a\nb\n", b"b"), (b"", b"x")])
def test_a_last_line_without_a_newline_is_told_apart(tmp_path: Path, old: bytes, new: bytes) -> None:
    (tmp_path / "old").write_bytes(old)
    (tmp_path / "new").write_bytes(new)
    diff = subprocess.run(["diff", "-u", "old", "new"], cwd=tmp_path, capture_output=True, check=False).stdout

    assert b"No newline" in diff
    assert patched(old, diff) == new


def test_a_hunk_whose_lines_have_moved_applies_where_it_fits() -> None:
    diff = b"--- a\n+++ b\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert patched(b"zero\nzero\none\ntwo\n", diff) == b"zero\nzero\none\n2\n"


def test_blank_context_that_lost_its_blank_is_context() -> None:
    assert patched(b"a\n\nb\n", b"@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n") == b"a\n\nc\n"


@pytest.mark.parametrize(("content", "diff", "why"), [
    (b"x\none\ny\none\n", b"@@ -1 +1 @@\n-one\n+1\n", "fits in several other places"),
    (b"a\n", b"@@ -1 +1 @@\n-b\n+c\n", "does not match the file"),
    (b"aone\n", b"@@ -1 +1 @@\n-one\n+1\n", "does not match the file"),
    (b"a\n", b"@@ -1,2 +1 @@\n-a\n+c\n", "says 2 old and 1 new lines, and has 1 and 1"),
    (b"a\nb\n", b"@@ -1 +1 @@\n-a\n+c\n-b\n", "belongs to no hunk"),
    (b"a\n", b"@@ nonsense @@\n", "no hunk's beginning"),
    (b"a\n", b"--- a\n+++ b\n", "has no hunk"),
    (b"a\n", b"@@ -9,0 +10 @@\n+c\n", "inserts after line 9"),
    (b"a\n", b"@@ -1 +1 @@\n-a\n+b\n--- c\n+++ d\n@@ -1 +1 @@\n-a\n+b\n", "more than one file"),
    (b"a\n" * 600, b"".join(b"@@ -%d +%d @@\n-a\n+b\n" % (n, n) for n in range(1, MOST_HUNKS + 2)), "more than 500 hunks"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_reason(content: bytes, diff: bytes, why: str) -> None:
    with pytest.raises(DoesNotApply, match=why):
        patched(content, diff)


def test_a_text_is_replaced_as_often_as_was_said_and_no_other_number_of_times() -> None:
    assert replaced(b"a b a", b"a", b"c", 2) == b"c b c"
    with pytest.raises(DoesNotApply, match="occurs 2 times, and count is 1"):
        replaced(b"a b a", b"a", b"c")
    with pytest.raises(DoesNotApply, match="does not occur"):
        replaced(b"a b a", b"z", b"c")
    with pytest.raises(DoesNotApply, match="is empty"):
        replaced(b"a b a", b"", b"c")
