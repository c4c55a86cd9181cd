"""What idle sandboxes cost in memory: broker and guard, one by one."""

from __future__ import annotations

import contextlib
import gc

import psutil

from benchmarks.sandboxes import folders, sandbox


def figures(count: int = 50) -> str:
    """Return one sentence with the cost of each of `count` idle sandboxes."""
    broker = psutil.Process()
    with folders() as (workspace, state), contextlib.ExitStack() as held:
        held.enter_context(sandbox("bubblewrap", workspace, state))
        gc.collect()
        before = broker.memory_full_info().uss
        guards = []
        for _ in range(count):
            running, _task = held.enter_context(sandbox("bubblewrap", workspace, state))
            guard = psutil.Process(running.container.init_pid)
            guards.append(guard.memory_full_info().uss + guard.parent().memory_full_info().uss)
        grown = (broker.memory_full_info().uss - before) / count
    return (
        f"{count} idle sandboxes (bubblewrap): {grown / 1024:.0f} KiB each in the broker, "
        f"{sum(guards) / count / 1024:.0f} KiB each in guard and bubblewrap (USS)"
    )
