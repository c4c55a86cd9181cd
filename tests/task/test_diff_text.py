"""A diff is what git would read, whatever a task calls its files and writes into them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from enforce.conftest import make_bench  # noqa: F401 - a fixture, used by name
from enforce.layer_bench import Bench

from broker.task.diff_text import Diff, stat_lines
from broker.task.question import MOST_WIDTH, Proposal

MakeBench = Callable[..., Bench]
# A name that goes on as a patch of another file, and names that a patch cannot hold as they are.
INJECTED = 'x\n--- a\n+++ b-.envrc\n@@ -0,0 +1 @@\n+planted\n'
ODD = ["two words", 'a "quote"', "back\\slash", "tab\there", "line\nfeed", "car\rriage", "caf\u00e9", os.fsdecode(b"\xff"), "\x7f", INJECTED]


def patch(bench: Bench) -> bytes:
    """What `broker diff` prints of a layer when it goes to a file."""
    diffs = [Diff(bench.layer, change) for change in bench.changes()]
    return b"".join(line for diff in diffs for line in (*diff.head(), *diff.lines))


def applied(bench: Bench, before: Callable[[Path], object], place: Path) -> dict[bytes, bytes]:
    """What git makes of it in a folder like the one before: each file with its content."""
    place.mkdir()
    before(place)
    done = subprocess.run(["git", "apply", "-"], cwd=place, input=patch(bench), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return {os.fsencode(name): (place / name).read_bytes() for name in os.listdir(place)}


def test_git_reads_a_patch_of_files_with_any_name(make_bench: MakeBench, tmp_path: Path) -> None:  # noqa: F811
    bench = make_bench()

    def act(view: Path) -> None:
        for name in ODD:
            (view / name).write_text("planted\n")

    bench.task_without_looking(act)
    after = applied(bench, lambda _: None, tmp_path / "applied")
    assert after == {os.fsencode(name): b"planted\n" for name in ODD}


def test_a_name_cannot_become_a_patch_of_another_file(make_bench: MakeBench) -> None:  # noqa: F811
    bench = make_bench()
    name = "x\n--- a\n+++ b"
    bench.task_without_looking(lambda view: (view / name).write_text("x\n"))
    assert [line for line in patch(bench).split(b"\n") if line.startswith(b"+++")] == [b'+++ "b/x\\n--- a\\n+++ b"\t']
    assert b"\n".join(stat_lines(Diff(bench.layer, change) for change in bench.changes())).count(b"\n") == 3


CONTENTS = {
    "returns": (b"one\rtwo\rthree\n", b"one\rTWO\rthree\n"),
    "crlf": (b"a\r\nb\r\n", b"a\r\nc\r\n"),
    "no newline": (b"a\nb", b"a\nb\nc"),
    "empty lines": (b"\n\n\n", b"\n\n"),
    "nothing": (b"", b"a\n"),
    "much": (b"".join(b"%d\n" % n for n in range(9_000)), b"".join(b"%d\nx%d\n" % (n, n) for n in range(9_000))),
    "the same again": (b"a\nb\n" * 9_000, b"a\nc\n" * 9_000),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_git_makes_the_new_content_of_the_old_one(make_bench: MakeBench, tmp_path: Path, name: str) -> None:  # noqa: F811
    old, new = CONTENTS[name]

    def before(place: Path) -> None:
        (place / "f").write_bytes(b"head\n" * 5 + old)

    bench = make_bench(before)
    bench.task_without_looking(lambda view: (view / "f").write_bytes(b"head\n" * 5 + new))
    assert applied(bench, before, tmp_path / "applied") == {b"f": b"head\n" * 5 + new}


def test_what_is_cut_off_of_a_line_is_said_on_it() -> None:
    shown = Proposal(old=None, new=b"x" * 500 + b"; evil\n").as_dict()["lines"][-1]

    assert shown == "+" + "x" * (MOST_WIDTH - 1) + "… and 107 more characters"
