"""The end of a task: its changes are judged, the permitted ones land, the others are kept and reported.

In: a layer whose task has ended. Out: `changes` of the result. The record of what is about to land is written before
anything is touched; each withheld change is a denial like any other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from broker.enforce import landing
from broker.enforce.changes import Change, Kind, WorkspaceMoved, changes_of
from broker.enforce.landing_intent import INTENT
from broker.enforce.layer import Layer, LayerGone, list_layers, one_landing_at_a_time, read_layer
from broker.errors import BrokerError, UsageError
from broker.record import event
from broker.record.journal import Journal
from broker.task.changes import ChangeJudge, Judged, Withheld, as_result, hold_together, never
from broker.task.task import Task
from broker.task.together import folders_above
from broker.values import dataclass

PATHS_PER_EVENT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a layer is settled. `ask` is asked, with what was judged, where `land` says so. `keep`, `aliases`: ChangeJudge."""

    land: str = "auto"
    ask: Callable[[Judged], bool] | None = None
    keep: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


class Gate(Protocol):
    """What changes may land on, beyond the profile: a plan that is done, a panel that passed them."""

    def may_land(self, judged: Judged) -> bool:
        """Whether they do."""

    def why_not(self, changes: Mapping[str, Any]) -> str:
        """Say what is in the way, once they were settled; '' if nothing was."""


def settle(layer: Layer, task: Task, journal: Journal, how: Settlement) -> dict[str, Any]:
    """Judge a task's changes, land what may land, and return `changes` of the result.

    Raises JournalError when the record cannot be made; nothing has landed then. Whatever else goes wrong is in the
    answer, and the layer is kept.
    """
    if layer.untouched():
        layer.manifest = replace(layer.manifest, state="ended")
        layer.remove()
        return as_result(Judged(), (), layer, "")
    judge = ChangeJudge(layer, task.envelope, task.context, task.grants(), how.keep, how.aliases)
    with layer.locked(), one_landing_at_a_time(layer.folder.parent, layer):
        try:
            judged = judge.judge(changes_of(layer))
        except (OSError, BrokerError) as error:
            return _failed(layer, task, journal, f"the changes cannot be looked at: {error}")
        # Before anything lands: should that fail, or the broker die, `broker land` knows what was not permitted.
        layer.update(state="ended", ended=_now(), judged=True, withheld=_reasons(judge, judged))
        for one in judged.withheld:
            task.refuse("landing", one.denial)
        wanted = how.land == "auto" or (how.land == "ask" and how.ask is not None and bool(judged.landing) and how.ask(judged))
        done: Sequence[Change] = ()
        if wanted and judged.landing:
            try:
                done = carry(layer, judged, journal, task.path)
            except landing.LandingFailed as error:
                return _failed(layer, task, journal, str(error)) | as_result(judged, (), layer, layer.run)
        kept = layer.run if judged.withheld or judged.conflicts or len(done) < len(judged.landing) else ""
        result = as_result(judged, done, layer, kept)
        if kept:
            layer.update(state="kept", withheld=_reasons(judge, judged))
            journal.append(event.LAYER_KEPT, task=task.path, layer=str(layer.folder), counts=result["counts"])
        else:
            layer.remove()
    return result


def _reasons(judge: ChangeJudge, judged: Judged) -> tuple[tuple[str, str], ...]:
    reasons = [(judge.path(one.change), one.denial.reason) for one in judged.withheld]
    return (*reasons, *((judge.path(change), f"conflict: {why}") for change, why in judged.conflicts))


def carry(layer: Layer, judged: Judged, journal: Journal, task: str, **fields: object) -> list[Change]:
    """Land what was judged fit, record it before and after, and add what proved to be a conflict to the others."""

    def intend() -> None:
        for number, rows in enumerate(_batches(layer, judged.landing)):
            journal.append(event.LANDING_INTENDED, task=task, batch=number, changes=rows, **fields)

    try:
        landed = landing.land(layer, judged.landing, intend=intend)
    except landing.LandingFailed as error:
        journal.append(event.LANDING_FAILED, task=task, reason=error.why)
        raise
    judged.conflicts += landed.conflicts
    conflicts = [[layer.path(change), why] for change, why in landed.conflicts]
    journal.append(event.LANDING_FINISHED, task=task, landed=len(landed.done), conflicts=conflicts)
    return landed.done


def select(layer: Layer, changes: Iterable[Change], paths: Sequence[str]) -> list[Change]:
    """Return the changes at these paths and below, with the new folders that they lie in; of no path: all.

    A path is absolute, or relative to the workspace. Raises UsageError for one that nothing fits.
    """
    found = list(changes)
    if not paths:
        return found
    wanted = {path: os.path.normpath(os.path.join(layer.manifest.workspace, path)) for path in paths}
    chosen = [
        change for change in found
        if any(layer.path(change) == path or layer.path(change).startswith(path + "/") for path in wanted.values())
    ]  # fmt: skip
    for given, path in wanted.items():
        if not any(layer.path(change) == path or layer.path(change).startswith(path + "/") for change in chosen):
            raise UsageError(f"the task {layer.run} changed nothing at {given} that is kept")
    above = {(change.part, folder) for change in chosen for folder in folders_above(change.path)}
    picked = set(chosen)
    chosen += [
        change for change in found
        if change not in picked and change.kind is Kind.CREATED and (change.part, change.path) in above
    ]  # fmt: skip
    return chosen


def land_by_hand(layer: Layer, state: Path, paths: Sequence[str], *, everything: bool) -> dict[str, Any]:
    """Land what an operator asks for, recorded in a run of its own. Returns `changes` as a result has them.

    Without paths, and not everything: what the profile permits. Raises UsageError where that is not known.
    """
    with layer.locked(), one_landing_at_a_time(layer.folder.parent, layer):
        refuse_running(layer)
        if not layer.manifest.judged and not paths and not everything:
            raise UsageError(
                f"nobody judged the changes of {layer.run}: its task did not come to an end. Look at them (broker diff "
                f"{layer.run}), and name the paths, or say --all"
            )
        against = layer.manifest.panel
        if against and not paths and not everything:
            raise UsageError(
                f"the changes of {layer.run} may not land: {against}. Have them judged again (broker judge {layer.run}), or decide "
                "against it: name the paths, or say --all"
            )
        if landing.interrupted(layer):
            landing.recover(layer)
        withheld = {} if everything or paths else dict(layer.manifest.withheld)
        before = list(changes_of(layer))
        judged = Judged()
        for change in select(layer, before, paths):
            if layer.path(change) in withheld:
                continue
            if change.never:
                judged.withheld.append(Withheld(change=change, denial=never(change, layer.path(change))))
            elif change.conflict:
                judged.conflicts.append((change, change.conflict))
            else:
                judged.landing.append(change)
        hold_together(judged)
        with Journal.create(state) as journal:
            journal.append(
                event.RUN_STARTED, command=["broker", "land", layer.run, *paths, *(["--all"] if everything else [])],
                of=layer.run, workspace=layer.manifest.workspace, broker_pid=os.getpid(), user=os.getuid(),
            )  # fmt: skip
            word = {"decided_by": "operator"} | ({"against": against} if against else {})
            done = carry(layer, judged, journal, event.ROOT, **word) if judged.landing else []
            journal.append(event.RUN_FINISHED, status="finished", exit_code=0, landed=len(done))
        left = len(before) - len(done)
        result = as_result(judged, done, layer, layer.run if left else "")
        if not left:
            layer.remove()
        elif layer.manifest.state == "running":
            layer.update(state="kept", ended=_now())
    return result


def refuse_running(layer: Layer) -> None:
    """Raise UsageError when the task of a layer still runs."""
    if layer.running():
        raise UsageError(f"{layer.run} still runs. End it first, or wait until it has ended")


def discard(layer: Layer, state: Path) -> None:
    """Throw a layer away, recorded in a run of its own."""
    with layer.locked():
        refuse_running(layer)
        if landing.interrupted(layer):
            with contextlib.suppress(WorkspaceMoved):  # then there is nothing to put in order, either
                landing.recover(layer)
        with Journal.create(state) as journal:
            journal.append(
                event.RUN_STARTED, command=["broker", "discard", layer.run], of=layer.run,
                workspace=layer.manifest.workspace, broker_pid=os.getpid(), user=os.getuid(),
            )  # fmt: skip
            journal.append(event.LAYER_DISCARDED, layer=str(layer.folder), decided_by="operator")
            journal.append(event.RUN_FINISHED, status="finished", exit_code=0)
        layer.remove()


def recover_landings(base: Path) -> Iterator[str]:
    """Complete or undo the landings that a dead broker left half-way. Yields a line for each."""
    for intent in sorted(base.glob(f"*/{INTENT}")):  # each start comes by here: kept layers are not read
        layer = read_layer(intent.parent)
        if layer is None:
            continue
        with contextlib.suppress(LayerGone), layer.locked(wait=False) as ours:
            if ours and landing.interrupted(layer):
                with one_landing_at_a_time(base, layer):
                    try:
                        how = landing.recover(layer)
                    except BrokerError as error:
                        yield f"landing of {layer.run}: {error}"
                        continue
                yield f"landing of {layer.run} that was interrupted: {how}"


def remove_old(layer: Layer, seconds: float) -> bool:
    """Remove a layer if nobody needs it, and nobody is at it. Says whether it did."""
    with contextlib.suppress(LayerGone), layer.locked(wait=False) as ours:
        if ours and _is_old(layer, seconds):
            layer.remove()
            return True
    return False


def old_layers(base: Path, seconds: float) -> list[Layer]:
    """Return the layers that nobody needs: kept for longer than this, or of a dead broker's task that changed nothing."""
    return [layer for layer in list_layers(base) if _is_old(layer, seconds)]


def _is_old(layer: Layer, seconds: float) -> bool:
    if layer.running() or landing.interrupted(layer):
        return False
    return _now() - (layer.manifest.ended or layer.manifest.began) > seconds * 1e9 or layer.untouched()


def _failed(layer: Layer, task: Task, journal: Journal, why: str) -> dict[str, Any]:
    layer.update(state="kept")
    journal.append(event.LAYER_KEPT, task=task.path, layer=str(layer.folder), reason=why)
    return as_result(Judged(), (), layer, layer.run) | {"error": why}


def _batches(layer: Layer, changes: list[Change]) -> Iterator[list[list[str]]]:
    for start in range(0, len(changes), PATHS_PER_EVENT):
        yield [[str(c.kind), layer.path(c)] for c in changes[start : start + PATHS_PER_EVENT]]


def _now() -> int:
    import time

    return time.time_ns()
