"""A new task goes on with what an earlier one left: the same layer, and the same idea of what was there when it began."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from enforce.layer_bench import Bench

from broker.enforce.changes import changes_of
from broker.enforce.layer import Layer, adopt_layer, file_clock, find_layer
from broker.errors import UsageError

MakeBench = Callable[..., Bench]
LATER = "20260101-000001-later"


def kept(make_bench: MakeBench, before: Callable[[Path], object] = lambda _: None) -> Bench:
    bench = make_bench(before)
    bench.task_without_looking(lambda view: (view / "file").write_text("of the task\n"))
    bench.layer.update(state="kept", panel="panel review blocked it")
    return bench


def adopt(bench: Bench, **changed: object) -> Layer:
    manifest = replace(bench.layer.manifest, run=LATER, began=file_clock(), state="running", panel="", profile="other", **changed)  # type: ignore[arg-type]
    return adopt_layer(bench.base, bench.run, manifest)


def test_it_is_the_same_changes_under_another_name(make_bench: MakeBench) -> None:
    bench = kept(make_bench)

    layer = adopt(bench)

    assert os.listdir(bench.base).count(bench.run) == 0
    assert [change.path for change in changes_of(layer)] == ["file"]
    assert (layer.run, layer.manifest.profile, layer.manifest.state) == (LATER, "other", "running")
    assert find_layer(bench.base, LATER).manifest == layer.manifest
    assert layer.manifest.panel == "panel review blocked it", "that a panel blocked it stays until one passes it"


def test_what_somebody_changed_since_the_first_task_began_stays_a_conflict(make_bench: MakeBench) -> None:
    bench = kept(make_bench, lambda real: (real / "file").write_text("before\n"))
    (bench.real / "file").write_text("somebody else's\n")

    layer = adopt(bench)

    assert [bool(change.conflict) for change in changes_of(layer)] == [True]


def test_another_workspaces_changes_are_not_gone_on_with(make_bench: MakeBench, tmp_path: Path) -> None:
    bench = kept(make_bench)
    facts = tmp_path.stat()

    with pytest.raises(UsageError, match="Go on with them there"):
        adopt(bench, parts=((str(tmp_path), facts.st_dev, facts.st_ino),))
    assert find_layer(bench.base, bench.run).manifest.state == "kept"


def test_a_task_that_still_runs_is_left_alone(make_bench: MakeBench) -> None:
    bench = kept(make_bench)
    bench.layer.update(state="running")

    with pytest.raises(UsageError, match="no kept changes"):
        adopt(bench)


def test_a_run_that_left_nothing_is_named(make_bench: MakeBench) -> None:
    bench = kept(make_bench)
    bench.layer.remove()

    with pytest.raises(UsageError, match="no changes are kept"):
        adopt(bench)
