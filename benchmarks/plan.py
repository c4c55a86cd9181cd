"""What evidence costs: the digest of a workspace in which a task changed 10,000 files, before and after each check."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.landing import FILES, _copy, _layer
from benchmarks.sandboxes import folders
from broker.enforce.layer_digest import LayerDigest, mark

RUNS = 7
SETTLED = 1.2  # seconds after which a file's ctime is old enough to be believed


def figures() -> str:
    """Return what they are, as a table: medians, in milliseconds."""
    lines = [f"| {FILES:,} files of some 200 bytes | digest, all read | the same, from the cache | sha256sum of them |", "|---|---|---|---|"]
    with folders() as (workspace, state):
        place = Path(workspace)
        source = place.parent / "source"
        for number in range(FILES):
            file = source / f"{number // 100}" / f"file{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{number}\n" * 40)
        for name, there in (("new", False), ("changed", True)):
            real = place / name
            real.mkdir()
            if there:
                _copy(source, real)
                subprocess.run(["find", str(real), "-type", "f", "-exec", "truncate", "-s", "3", "{}", "+"], check=True)
            layer = _layer(real, Path(state))
            upper = layer.upper(0)
            _copy(source, Path(upper))
            time.sleep(SETTLED)
            digest = LayerDigest(layer)
            script = f"find {upper} -type f -print0 | xargs -0 sha256sum > /dev/null"
            works: tuple[Callable[[], object], ...] = (
                lambda digest=digest: digest.now(cached=False), lambda digest=digest: digest.now(),  # type: ignore[misc]
                lambda script=script: subprocess.run(script, shell=True, check=True),  # type: ignore[misc]
            )  # fmt: skip
            lines.append(f"| {name} | " + " | ".join(f"{_median(work):.0f} ms" for work in works) + " |")
            written = _median(lambda digest=digest: digest.written_since(mark()))  # type: ignore[misc]
            lines.append(f"| {name}, those written since a moment counted | {written:.0f} ms | | |")
            layer.remove()
    return "\n".join(lines)


def _median(work: Callable[[], object]) -> float:
    seen = []
    for number in itertools.count():
        start = time.perf_counter()
        work()
        seen.append((time.perf_counter() - start) * 1000)
        if number == RUNS:
            return statistics.median(seen[1:])
    raise AssertionError


if __name__ == "__main__":
    print(figures())
