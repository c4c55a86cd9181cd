"""One command in a sandbox of its own: `broker run`, from Python.

In: a command, a profile, a workspace. Out: an Outcome, when it is over and its changes have landed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

from broker.api.calls import RunOptions, start_of
from broker.api.landing import Asked
from broker.api.opened import attended, root_outcome
from broker.api.program import Start, Told
from broker.api.settings import Command, Land, Options, request_for
from broker.api.stop import CALLER
from broker.api.values import Outcome
from broker.decide.profile import Profile
from broker.record import event
from broker.serve.inside import answer, ways_out
from broker.stage import Header, Watcher
from broker.stop import Stop
from broker.supervisor import RunRequest, carry, opened
from broker.task.outcome import Capture


class Once(NamedTuple):
    """One command in a sandbox of its own."""

    request: RunRequest
    land: Land
    start: Start


def wanted(
    command: Command, profile: str | Profile, workspace: str | os.PathLike[str], judged: bool, run: RunOptions | None,
    options: Options,
) -> Once:  # fmt: skip
    """Return what is to run. Raises UsageError and ProfileError."""
    start = start_of(command, **(run or {}))
    request = request_for(start.argv, profile, workspace, judged=judged, seconds=start.seconds, **options)
    return Once(request, options.get("land", "auto"), start)


def run_once(what: Once, stop: Stop, *, capture: bool) -> Outcome:
    """Run one command in a sandbox of its own, as `broker run` does. Without `capture` it has this process's streams."""
    request, land, start = what
    captures = {"stdout": Capture(start.most), "stderr": Capture(start.most)} if capture else {}
    told, asked = Told(start.output, stop), Asked(land)

    def work() -> Outcome:
        headers: list[Header] = []
        watcher = Watcher(
            started=headers.append, called=answer, ways_out=ways_out, land=lambda judged: asked.may_land(judged, headers[0].workspace)
        )
        with opened(request, watcher) as (here, plot):
            stop.does(lambda: here.tree.stop(event.ROOT, CALLER))
            plot = replace(plot, cwd=os.path.join(plot.cwd, start.cwd), extra=tuple(start.env.items()))
            if capture:
                plot = replace(
                    plot, stdin=start.stdin, stdout=told.sink("stdout", captures["stdout"]),
                    stderr=told.sink("stderr", captures["stderr"]),
                )  # fmt: skip
            result = carry(here, plot)
        written = {name: one.text() for name, one in captures.items()}
        counted = {f"{name}_bytes": one.total for name, one in captures.items()}
        return root_outcome(result, plot.envelope, **written, **counted)

    outcome = attended(work, stop)
    told.check()
    asked.check()
    return outcome
