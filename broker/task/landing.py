"""The end of a task: its changes are judged, the permitted ones land, the others are kept and reported.

In: a layer whose task has ended. Out: `changes` of the result. The record of what is about to land is written before
anything is touched; each withheld change is a denial like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.enforce import landing
from broker.enforce.changes import Change, changes_of
from broker.enforce.layer import Layer, list_layers, one_landing_at_a_time
from broker.errors import BrokerError
from broker.record import event
from broker.record.journal import Journal
from broker.task.changes import ChangeJudge, Judged, as_result
from broker.task.task import Task

PATHS_PER_EVENT = 1_000
LAND = ("auto", "ask", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a layer is settled. `ask` is asked, with what was judged, where `land` says so."""

    land: str = "auto"
    ask: Callable[[Judged], bool] | None = None
    keep: tuple[str, ...] = ()


def settle(layer: Layer, task: Task, journal: Journal, how: Settlement) -> dict[str, Any]:
    """Judge a task's changes, land what may land, and return `changes` of the result.

    Raises JournalError when the record cannot be made; nothing has landed then. Whatever else goes wrong is in the
    answer, and the layer is kept.
    """
    layer.update(state="ended", ended=_now())
    judge = ChangeJudge(layer, task.envelope, task.context, task.grants(), how.keep)
    roots = tuple(path for path, _, _ in layer.manifest.parts)
    with layer.locked(), one_landing_at_a_time(layer.folder.parent, layer):
        try:
            judged = judge.judge(changes_of(layer))
        except (OSError, BrokerError) as error:
            return _failed(layer, task, journal, f"the changes cannot be looked at: {error}")
        for one in judged.withheld:
            task.refuse("landing", one.denial)
        wanted = how.land == "auto" or (how.land == "ask" and how.ask is not None and bool(judged.landing) and how.ask(judged))
        done: Sequence[Change] = ()
        if wanted and judged.landing:
            try:
                done = carry(layer, judged, journal, task.path)
            except landing.LandingFailed as error:
                return _failed(layer, task, journal, str(error)) | as_result(judged, (), layer.manifest.workspace, roots, layer.run)
        kept = layer.run if judged.withheld or judged.conflicts or len(done) < len(judged.landing) else ""
        result = as_result(judged, done, layer.manifest.workspace, roots, kept)
        if kept:
            reasons = [(judge.path(one.change), one.denial.reason) for one in judged.withheld]
            reasons += [(judge.path(change), f"conflict: {why}") for change, why in judged.conflicts]
            layer.update(state="kept", withheld=tuple(reasons))
            journal.append(event.LAYER_KEPT, task=task.path, layer=str(layer.folder), counts=result["counts"])
    if not kept:
        layer.remove()
    return result


def carry(layer: Layer, judged: Judged, journal: Journal, task: str, **fields: object) -> list[Change]:
    """Land what was judged fit, record it before and after, and add what proved to be a conflict to the others."""
    roots = tuple(path for path, _, _ in layer.manifest.parts)

    def intend() -> None:
        for number, rows in enumerate(_batches(judged.landing, roots)):
            journal.append(event.LANDING_INTENDED, task=task, batch=number, changes=rows, **fields)

    try:
        landed = landing.land(layer, judged.landing, intend=intend)
    except landing.LandingFailed as error:
        journal.append(event.LANDING_FAILED, task=task, reason=error.why)
        raise
    judged.conflicts += landed.conflicts
    conflicts = [[f"{roots[change.part]}/{change.path}", why] for change, why in landed.conflicts]
    journal.append(event.LANDING_FINISHED, task=task, landed=len(landed.done), conflicts=conflicts)
    return landed.done


def recover_landings(base: Path) -> Iterator[str]:
    """Complete or undo the landings that a dead broker left half-way. Yields a line for each."""
    for layer in list_layers(base):
        if not landing.interrupted(layer):
            continue
        with layer.locked(wait=False) as ours:
            if ours and landing.interrupted(layer):
                with one_landing_at_a_time(base, layer):
                    try:
                        how = landing.recover(layer)
                    except BrokerError as error:
                        yield f"landing of {layer.run}: {error}"
                        continue
                yield f"landing of {layer.run} that was interrupted: {how}"


def _failed(layer: Layer, task: Task, journal: Journal, why: str) -> dict[str, Any]:
    layer.update(state="kept")
    journal.append(event.LAYER_KEPT, task=task.path, layer=str(layer.folder), reason=why)
    return as_result(Judged(), (), layer.manifest.workspace, (), layer.run) | {"error": why}


def _batches(changes: list[Change], roots: tuple[str, ...]) -> Iterator[list[list[str]]]:
    for start in range(0, len(changes), PATHS_PER_EVENT):
        yield [[str(c.kind), f"{roots[c.part]}/{c.path}"] for c in changes[start : start + PATHS_PER_EVENT]]


def _now() -> int:
    import time

    return time.time_ns()
