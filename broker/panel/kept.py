"""A panel on changes that are kept: what `broker judge` does.

In: the layer of a run that has ended. Out: a Decision, in a run of its own that says whose changes it is about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from broker.enforce.layer import Layer
from broker.enforce.workspace import Workspace
from broker.errors import UsageError
from broker.panel.definition import Panel
from broker.panel.round import Begun, Told, convene
from broker.panel.verdict import Decision
from broker.record import event
from broker.stage import Run, Watcher
from broker.supervisor import RunRequest, opened
from broker.task.landing import refuse_running
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Court:
    """A run in which panels judge, and the workspace that the changes are of."""

    run: Run
    workspace: Workspace


@contextlib.contextmanager
def court(panel: Panel, layer: Layer, watcher: Watcher, *, engine: str = "auto", command: tuple[str, ...]) -> Iterator[Court]:
    """Open a run for a panel that judges kept changes. Raises UsageError where they cannot be judged."""
    refuse_judging(layer)
    first = panel.judges[0].profile
    request = RunRequest(
        argv=command, engine=engine, workspace=layer.manifest.workspace, facts=(("of", layer.run),),
        profile=replace(first, sandbox=replace(first.sandbox, workspace="overlay")),
    )  # fmt: skip
    with opened(request, watcher) as (run, plot):
        status = "failed"
        try:
            yield Court(run=run, workspace=plot.workspace)
            status = "finished"
        except KeyboardInterrupt:
            status = "killed"
            raise
        finally:
            run.tree.ended(plot.node, status)
            if status != "failed":
                run.journal.append(event.RUN_FINISHED, status=status, exit_code=0 if status == "finished" else 130)


def refuse_judging(layer: Layer) -> None:
    """Raise UsageError for changes that no panel can be asked about."""
    refuse_running(layer)
    if layer.manifest.parent:
        raise UsageError(f"{layer.run} is a sub-task: what it changed lands in the task above. Judge that one's changes")


def judge_kept(
    panel: Panel, layer: Layer, watcher: Watcher, *, engine: str = "auto", goal: str = "", told: Told | None = None,
    begun: Begun | None = None,
) -> Decision:  # fmt: skip
    """Put kept changes to a panel. Nothing lands by that: but what was blocked lands by nothing but an operator's own word."""
    with layer.locked():
        command = ("broker", "judge", layer.run, "--panel", panel.name)
        with court(panel, layer, watcher, engine=engine, command=command) as here:
            return convene(here.run, panel, layer, here.workspace, goal=goal, told=told, begun=begun)
