"""The digest of a workspace: every change moves it, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from enforce.layer_bench import Bench, everything, everything_before

from broker.enforce.layer_digest import LayerDigest, mark

MakeBench = Callable[..., Bench]


def before(real: Path) -> None:
    for name in ("f", "g", "folder/h"):
        (real / name).parent.mkdir(exist_ok=True)
        (real / name).write_text("before\n")
    (real / "link").symlink_to("f")


CHANGES: list[Callable[[Path], object]] = [
    lambda view: (view / "new").write_text(""),
    lambda view: (view / "new").mkdir(),
    lambda view: (view / "f").write_text("after!\n"),
    lambda view: (view / "f").write_text("before\nand after"),
    lambda view: (view / "f").chmod(0o755),
    lambda view: (view / "f").unlink(),
    lambda view: (view / "folder").chmod(0o700),
    lambda view: (view / "f").rename(view / "moved"),
    lambda view: ((view / "link").unlink(), (view / "link").symlink_to("g")),
    lambda view: os.setxattr(view / "f", "user.note", b"1"),
    lambda view: (view / "folder" / "h").write_text("deeper\n"),
    # What cannot land: a check may have read it, so what was seen with it does not count without.
    lambda view: os.mkfifo(view / "pipe"),
    lambda view: (view / "out").symlink_to("/etc"),
    lambda view: ((view / "new").write_text("x"), (view / "new").chmod(0o4755)),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_each_change_moves_it(make_bench: MakeBench, number: int) -> None:
    bench = make_bench(before)
    digest = LayerDigest(bench.layer)
    untouched = digest.now()
    bench.task(CHANGES[number])
    assert digest.now() != untouched


def test_two_contents_and_two_attributes_are_two_digests(make_bench: MakeBench) -> None:
    bench = make_bench(before)
    digest = LayerDigest(bench.layer)
    seen = []
    for act in (
        lambda view: (view / "f").write_text("one"), lambda view: (view / "f").write_text("two"),
        lambda view: os.setxattr(view / "f", "user.note", b"1"), lambda view: os.setxattr(view / "f", "user.note", b"2"),
        lambda view: os.removexattr(view / "f", "user.note"),
    ):  # fmt: skip
        bench.task(act)
        seen.append(digest.now())
    assert len(set(seen)) == 4
    assert seen[4] == seen[1]


@pytest.mark.parametrize(
    "act",
    [
        lambda view: os.utime(view / "f", (1, 1)),
        lambda view: ((view / "f").write_text("other"), (view / "f").write_text("before\n")),
        lambda view: ((view / "new").write_text("x"), (view / "new").unlink()),
    ],
    ids=["times", "changed and back", "made and removed"],
)
def test_what_leaves_everything_as_it_was_does_not(make_bench: MakeBench, act: Callable[[Path], object]) -> None:
    bench = make_bench(before)
    digest = LayerDigest(bench.layer)
    untouched = digest.now()
    bench.task_without_looking(act)
    assert digest.now() == untouched


def test_it_is_the_same_when_nothing_changes_whatever_there_is(everywhere: MakeBench) -> None:
    bench = everywhere(everything_before)
    bench.task(everything)
    digest = LayerDigest(bench.layer)
    assert digest.now() == digest.now() == digest.now(cached=False) == LayerDigest(bench.layer).now()


def test_another_layer_with_the_same_changes_is_another_workspace(make_bench: MakeBench) -> None:
    seen = set()
    bench = make_bench(before)
    for _ in range(2):
        bench.task(lambda view: (view / "f").write_text("after"))
        seen.add(LayerDigest(bench.layer).now())
        bench.begin_again()
    assert len(seen) == 2


def test_a_file_that_was_just_written_is_read_again_also_when_the_clock_of_files_stands_still(make_bench: MakeBench) -> None:
    bench = make_bench(before)
    bench.task(lambda view: (view / "new").write_text("one"))
    digest = LayerDigest(bench.layer)
    seen = set()
    with open(Path(bench.layer.upper(0)) / "new", "r+b", buffering=0) as file:
        for number in range(200):  # many of them within one tick of it
            file.seek(0)
            file.write(b"%03d" % number)
            seen.add(digest.now())
    assert len(seen) == 200


def test_what_was_written_since_a_moment_is_counted_also_when_it_was_put_back(make_bench: MakeBench) -> None:
    bench = make_bench(before)
    bench.task(lambda view: (view / "new").write_text("x"))
    digest, upper = LayerDigest(bench.layer), Path(bench.layer.upper(0))
    written_before = os.stat(upper / "new").st_ctime_ns
    while mark() <= written_before:
        pass
    moment = mark()
    assert digest.written_since(moment) == 0

    def there_and_back(view: Path) -> None:
        facts = os.stat(view / "f")
        (view / "f").write_text("another")
        (view / "f").write_text("before\n")
        os.utime(view / "f", ns=(facts.st_atime_ns, facts.st_mtime_ns))

    untouched = digest.now()
    bench.task(there_and_back)
    assert digest.now() == untouched
    assert digest.written_since(moment) == 1
