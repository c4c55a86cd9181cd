"""What the exec gate costs on work that people do: the same shell script inside and outside."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import folders, run_in, sandbox

WORK = {
    "2,000 × /bin/true from a shell": ("i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done", 1.5, 5),
    "make -j2 of 50 C files": ("make -s clean && make -s -j2", 1.10, 5),
    "50 × git status": ("i=0; while [ $i -lt 50 ]; do git status >/dev/null; i=$((i+1)); done", 1.10, 7),
    "find and cat of 2,000 files": ("find tree -type f | wc -l; find tree -type f -exec cat {} + | wc -c; "
                                    "for f in tree/0/*; do cat $f; done | wc -l", 1.10, 7),
}  # fmt: skip


def figures(docker: bool) -> Iterator[Pair]:
    """Yield each figure as it is measured, on bubblewrap: the gate is the same in Docker."""
    del docker
    with folders() as (workspace, state):
        prepare(Path(workspace))
        with sandbox("bubblewrap", workspace, state) as (running, task):
            for name, (script, goal, runs) in WORK.items():
                argv = ("/bin/sh", "-c", script)

                def inside(argv: tuple[str, ...] = argv) -> float:
                    start = time.perf_counter()
                    if run_in(running, task, argv, workspace):
                        raise RuntimeError(f"failed inside: {argv}")
                    return time.perf_counter() - start

                def outside(argv: tuple[str, ...] = argv) -> float:
                    start = time.perf_counter()
                    subprocess.run(
                        argv, cwd=workspace, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "HOME": workspace},
                    )  # fmt: skip
                    return time.perf_counter() - start

                yield pair(name, inside, outside, against="unsandboxed", goal=goal, runs=runs, inner=True)


def prepare(place: Path) -> None:
    """Make the files that the work is about."""
    names = [f"file{number}" for number in range(50)]
    for name in names:
        (place / f"{name}.c").write_text(
            f"#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint {name}(int n) {{ char b[64]; "
            f'snprintf(b, sizeof b, "%d", n); return (int)strlen(b); }}\n'
        )
    objects = " ".join(f"{name}.o" for name in names)
    (place / "Makefile").write_text(f"all: {objects}\n%.o: %.c\n\tcc -O2 -c $< -o $@\nclean:\n\trm -f *.o\n")
    for folder in range(20):
        (place / "tree" / str(folder)).mkdir(parents=True)
        for number in range(100):
            (place / "tree" / str(folder) / f"{number}.txt").write_text(f"{folder} {number}\n" * 20)
    git = ["git", "-C", str(place), "-c", "user.name=b", "-c", "user.email=b@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "files"], check=True)
    os.sync()
