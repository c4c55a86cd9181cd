"""A caller's own function that says whether changes land: what it is asked, and what becomes of what it raises."""

from __future__ import annotations

import os
from typing import Any

from broker.api.settings import Land
from broker.api.values import Change, Changes
from broker.enforce.changes import Change as Changed
from broker.enforce.workspace import Workspace
from broker.task.changes import Judged


class Asked:
    """Asks it. What it raises keeps all changes, and is raised by `check`."""

    def __init__(self, land: Land) -> None:
        """Without a function nobody is asked."""
        self._land = land
        self._raised: BaseException | None = None

    def may_land(self, judged: Judged, workspace: Workspace) -> bool:
        """Ask whether what was judged fit may land."""
        if not callable(self._land):
            return False
        try:
            return bool(self._land(would_land(judged, workspace)))
        except BaseException as error:  # noqa: BLE001 - raised by `check`, where the caller is
            self._raised = error
            return False

    def check(self) -> None:
        """Raise what the function raised."""
        if self._raised is not None:
            raise self._raised


def would_land(judged: Judged, workspace: Workspace) -> Changes:
    """Return what was judged, as a result shows it: `landed` is what would land."""
    parts = workspace.parts()

    def value(changed: Changed, **more: Any) -> Change:
        path = changed.path if changed.part == 0 else os.path.join(parts[changed.part], changed.path)
        return Change(path=path, change=str(changed.kind), **more)

    return Changes(
        landed=tuple(value(one) for one in judged.landing),
        withheld=tuple(
            value(one.change, risk=one.denial.risk.label, rule=one.denial.rule, reason=one.denial.reason,
                  approvable=one.denial.approvable)
            for one in judged.withheld
        ),
        conflicts=tuple(value(one, reason=why) for one, why in judged.conflicts),
        landed_count=len(judged.landing), withheld_count=len(judged.withheld), conflicts_count=len(judged.conflicts),
    )  # fmt: skip
