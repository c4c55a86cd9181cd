"""What lands together and what stays together: no half of a change is carried into the workspace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from enforce.conftest import make_bench  # noqa: F401 - a fixture, used by name
from enforce.layer_bench import Bench, tree

from broker.classify.risk import Risk
from broker.decide.verdict import Deny, Layer
from broker.enforce.changes import Change, Kind
from broker.enforce.landing_intent import Intent
from broker.task.changes import Judged, Withheld, hold_together, never
from broker.task.landing import discard, land_by_hand

MakeBench = Callable[..., Bench]
REASON = "a rule says so"


def denied(change: Change) -> Withheld:
    """Keep a change back."""
    denial = Deny(
        what=change.path, effects=frozenset({Risk.PERSISTENCE}), layer=Layer.LANDING, rule="test", reason=REASON, hint=""
    )
    return Withheld(change=change, denial=denial)


def judged(bench: Bench, withheld: Callable[[Change], bool] = lambda _: False) -> Judged:
    """Sort a layer's changes as a judge does that withholds these, and hold together what belongs together."""
    found = Judged()
    for change in bench.changes():
        if change.never:
            found.withheld.append(Withheld(change=change, denial=never(change, change.path)))
        elif change.conflict:
            found.conflicts.append((change, change.conflict))
        elif withheld(change):
            found.withheld.append(denied(change))
        else:
            found.landing.append(change)
    hold_together(found)
    return found


def rows(changes: list[Change]) -> set[tuple[str, str]]:
    """Path and kind of each."""
    return {(change.path, str(change.kind)) for change in changes}


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:  # noqa: F811
    """Folders with files in them."""

    def before(real: Path) -> None:
        for path in ("d/one", "d/two", "d/e/three", "f", "g"):
            (real / path).parent.mkdir(parents=True, exist_ok=True)
            (real / path).write_text(f"old {path}\n")

    return make_bench(before)


def folder_to_file(view: Path) -> None:
    """Put a file in the place of a folder."""
    shutil.rmtree(view / "d")
    (view / "d").write_text("a file now\n")


def test_a_folder_stays_in_which_a_deletion_is_withheld_and_the_rest_of_it_goes(bench: Bench) -> None:
    bench.task(lambda view: shutil.rmtree(view / "d"))
    found = judged(bench, lambda change: change.path == "d/e/three")
    assert rows(found.landing) == {("d/one", "deleted"), ("d/two", "deleted")}
    assert {one.change.path for one in found.withheld} == {"d/e/three", "d/e", "d"}
    assert {one.denial.reason for one in found.withheld} == {REASON}
    assert not bench.land(found.landing).conflicts
    assert set(tree(bench.real)) == {b"d", b"d/e", b"d/e/three", b"f", b"g"}


def test_what_is_in_a_folder_that_is_not_made_does_not_land(bench: Bench) -> None:
    def act(view: Path) -> None:
        (view / "new" / "deep").mkdir(parents=True)
        (view / "new" / "deep" / "file").write_text("x")

    bench.task(act)
    found = judged(bench, lambda change: change.path == "new")
    assert found.landing == []
    assert {one.change.path for one in found.withheld} == {"new", "new/deep", "new/deep/file"}


def test_a_new_folder_of_which_nothing_lands_is_not_made_and_one_that_was_empty_is(bench: Bench) -> None:
    def act(view: Path) -> None:
        (view / "hollow" / "deep").mkdir(parents=True)
        (view / "hollow" / "deep" / "file").write_text("x")
        (view / "empty").mkdir()

    bench.task(act)
    assert rows(judged(bench, lambda change: change.path.endswith("file")).landing) == {("empty", "created")}


@pytest.mark.parametrize(
    ("old", "made"), [("f", "link out"), ("f", "pipe"), ("f", "folder"), ("d", "link out"), ("d", "pipe"), ("d", "file")]
)
def test_nothing_goes_for_the_sake_of_what_does_not_come(bench: Bench, old: str, made: str) -> None:
    """A README replaced by a link out of the workspace would be gone, and the link not there."""

    def act(view: Path) -> None:
        if old == "d":
            shutil.rmtree(view / old)
        else:
            (view / old).unlink()
        if made == "link out":
            (view / old).symlink_to("/etc/passwd")
        elif made == "pipe":
            os.mkfifo(view / old)
        elif made == "file":
            (view / old).write_text("new\n")
        else:
            (view / old).mkdir()
            (view / old / "in").write_text("new\n")

    bench.task(act)
    found = judged(bench, lambda change: change.path == old and change.kind is not Kind.DELETED)
    assert found.landing == []
    assert rows([one.change for one in found.withheld]) == rows(bench.changes())


def test_nothing_comes_in_the_place_of_what_does_not_go(bench: Bench) -> None:
    bench.task(folder_to_file)
    assert judged(bench, lambda change: change.path == "d/e/three").landing == []


def test_a_conflict_in_what_was_replaced_keeps_both_and_says_why(bench: Bench) -> None:
    bench.task(folder_to_file)
    (bench.real / "d" / "fresh").write_text("somebody's\n")
    found = judged(bench)
    assert found.landing == []
    assert len(found.conflicts) == len(bench.changes())
    assert all(why for _, why in found.conflicts)


def test_a_conflict_leaves_all_that_has_nothing_to_do_with_it(bench: Bench) -> None:
    bench.task(lambda view: [(view / name).write_text("new\n") for name in ("f", "g", "h")])
    (bench.real / "f").write_text("somebody's\n")
    found = judged(bench)
    assert rows(found.landing) == {("g", "changed"), ("h", "created")}
    bench.land(found.landing)
    assert [(bench.real / name).read_text() for name in "fgh"] == ["somebody's\n", "new\n", "new\n"]
    assert [one.path for one in bench.changes()] == ["f"]


def test_a_layer_of_a_workspace_that_is_gone_can_be_discarded_though_its_landing_was_interrupted(
    bench: Bench, tmp_path: Path
) -> None:
    bench.task(lambda view: (view / "f").write_text("new\n"))
    Intent(bench.layer).begin()
    bench.layer.update(state="kept")
    shutil.rmtree(bench.real)
    discard(bench.layer, tmp_path / "state")
    assert not bench.layer.folder.exists()


def test_by_hand_an_interrupted_landing_is_put_in_order_first(bench: Bench, tmp_path: Path) -> None:
    seen = bench.task(lambda view: (view / "f").write_text("new\n"))
    Intent(bench.layer).begin()
    bench.layer.update(state="kept")
    result = land_by_hand(bench.layer, tmp_path / "state", (), everything=True)
    assert result["counts"]["landed"] == 1
    assert tree(bench.real) == seen
    assert not bench.layer.folder.exists()
