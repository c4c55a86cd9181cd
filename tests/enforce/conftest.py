"""The fixtures of the tests of enforcement: a bench with a layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from enforce.layer_bench import SOMEBODY, Bench, file_system, may_mount

MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Return how to make a workspace with a layer. `on`: the layer's file system, if another; `uid`: whose it is."""
    if reason := may_mount():
        pytest.skip(reason)
    with ExitStack() as stack:
        tmp_path.chmod(0o755)
        for above in tmp_path.parents:  # pytest's own are closed to the task's user
            if above.stat().st_mode & 0o011 == 0o011 or above.stat().st_uid != os.getuid():
                break
            above.chmod(above.stat().st_mode | 0o011)

        def make(
            prepare: Callable[[Path], object] = lambda _: None, *, on: str = "", real_on: str = "", size: str = "64M",
            uid: int | None = None, name: str = "bench",
        ) -> Bench:  # fmt: skip
            uid = os.getuid() if uid is None else uid
            place, base = tmp_path / name / "real", tmp_path / name / "layers"
            if real_on:
                stack.enter_context(file_system(place, real_on, size))
            place.mkdir(parents=True, exist_ok=True)
            if on:
                stack.enter_context(file_system(base, on, size))
            prepare(place)
            if uid != os.getuid():
                for folder, folders, files in os.walk(place):
                    for one in ("", *folders, *files):
                        os.chown(os.path.join(folder, one), uid, uid, follow_symlinks=False)
            return Bench(place, base, uid, uid if uid != os.getuid() else os.getgid()).begin()

        yield make


@pytest.fixture(params=["same", "tmpfs", "ext4"])
def everywhere(request: pytest.FixtureRequest, make_bench: MakeBench) -> MakeBench:
    """The same, with the layer where a rename carries it over, and where every file must be copied."""
    if request.param != "same" and os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    on = "" if request.param == "same" else request.param

    def make(*words: object, **names: object) -> Bench:
        return make_bench(*words, on=on, **names)

    return make


__all__ = ["SOMEBODY"]
