"""Judges again what every suite that drives `broker` made it decide: the same version must say the same, always."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.record.replay import Replay


def judged_otherwise(events: Iterable[dict[str, Any]]) -> list[str]:
    """What is judged otherwise now, and what cannot be judged again, of the first few."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for one in events:
        runs.setdefault(one["run"], []).append(one)
    found = []
    for run, its in runs.items():
        replay = Replay()
        found += [
            f"{run}:{judged.seq} {judged.what}: {judged.kind}: {judged.was} -> {judged.would}"
            for judged in replay.events(its) if judged.kind
        ]  # fmt: skip
        found += [f"{run}: {why}" for why in replay.unjudged]
    return found[:5]
