"""What a layer takes is measured, whatever the task does to hide it and others do to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from enforce.layer_bench import Bench, file_system

from broker.enforce import changes
from broker.enforce.changes import TooManyChanges
from broker.enforce.usage import Quota

pytestmark = pytest.mark.needs_root
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of our own: nobody else makes it fuller, or frees some of it."""
    with file_system(tmp_path / "disk", "tmpfs", "64M"):
        (tmp_path / "disk" / "layer").mkdir()
        yield tmp_path / "disk"


def quota(disk: Path) -> Quota:
    """One of four MiB that has had its first look."""
    made = Quota(str(disk / "layer"), 4 * MIB, pause=0)
    assert not made.exceeded(0)
    return made


def test_what_others_free_hides_nothing(disk: Path) -> None:
    (disk / "others").write_bytes(bytes(16 * MIB))
    watched = quota(disk)
    (disk / "layer" / "big").write_bytes(bytes(8 * MIB))
    (disk / "others").unlink()
    assert watched.exceeded(8 * MIB)


def test_a_file_that_was_deleted_while_it_is_open_counts(disk: Path) -> None:
    watched = quota(disk)
    with open(disk / "layer" / "unseen", "wb") as file:
        (disk / "layer" / "unseen").unlink()
        file.write(bytes(8 * MIB))
        file.flush()
        assert watched.exceeded(8 * MIB)
        assert not watched.exceeded(1 * MIB), "somebody else made the disk fuller"


def test_empty_files_count(disk: Path) -> None:
    watched = quota(disk)
    for number in range(2_000):
        (disk / "layer" / str(number)).touch()
    assert watched.exceeded(0)


def test_more_changes_than_can_be_looked_at_are_refused_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    bench = Bench(tmp_path / "real", tmp_path / "layers").begin()
    for number in range(100):
        Path(bench.layer.upper(0), str(number)).touch()
    assert len(bench.changes()) == 100
    monkeypatch.setattr(changes, "MOST_TAKEN", 99 * changes.PER_CHANGE)
    with pytest.raises(TooManyChanges, match="broker discard"):
        bench.changes()
