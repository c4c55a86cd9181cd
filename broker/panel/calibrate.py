"""What a panel is worth: known faults are put into copies of a change, one at a time, and it is seen which the panel blocks.

In: a panel, and a layer with a change. Out: a Report. The change itself is not touched, and nothing lands: each trial is a copy
of its layer, which is removed. Among the trials are clean ones: a panel that blocks everything catches everything.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from broker.enforce.beneath import FOLDER, open_beneath
from broker.enforce.changes import Thing, changes_of
from broker.enforce.layer import Layer, make_layer
from broker.errors import BrokerError
from broker.panel.defects import FAULTS, MOST_CONTENT, Defect, Files, harmless_remark
from broker.panel.definition import Panel
from broker.panel.kept import court
from broker.panel.round import convene, round_to
from broker.panel.verdict import BLOCK, Decision
from broker.record import event
from broker.stage import Watcher
from broker.values import dataclass

MOST_LOOKED_AT = 5_000  # files of the workspace
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial. `clean`: there was no fault in it, so that to block it is a false alarm. `located`: a finding names the file."""

    kind: str
    title: str
    path: str
    line: int
    clean: bool
    decision: Decision

    @property
    def blocked(self) -> bool:
        """Whether the panel blocked it."""
        return self.decision.verdict == BLOCK

    @property
    def located(self) -> bool:
        """Whether somebody found it where it lies."""
        return bool(self.path) and any(os.path.normpath(finding.file) == self.path for finding in self.decision.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        judges = self.decision.verdicts
        return {
            "kind": self.kind, "title": self.title, "path": self.path, "line": self.line, "clean": self.clean,
            "blocked": self.blocked, "located": self.located,
            "blocked_by": [one.judge for one in judges if one.verdict == BLOCK],
            "no_verdict": {one.judge: one.reason for one in judges if one.reason},
            "seconds": round_to(self.decision.seconds), "cpu_seconds": round_to(sum(one.cpu_seconds for one in judges)),
        }  # fmt: skip


@dataclass(slots=True)
class Report:
    """What a calibration has shown. `not_seeded` says of which faults there was no place for in this change, and why."""

    panel: str
    of: str
    seed: int
    trials: list[Trial] = field(default_factory=list)
    not_seeded: dict[str, str] = field(default_factory=dict)
    run: str = ""

    @property
    def faults(self) -> list[Trial]:
        """The trials with a fault."""
        return [trial for trial in self.trials if not trial.clean]

    @property
    def clean(self) -> list[Trial]:
        """Those without."""
        return [trial for trial in self.trials if trial.clean]

    def judges(self) -> dict[str, dict[str, int]]:
        """Return of each judge what it blocked: faults, clean changes, and how often it gave no verdict at all."""
        table: dict[str, dict[str, int]] = {}
        for trial in self.trials:
            for one in trial.decision.verdicts:
                row = table.setdefault(one.judge, {"caught": 0, "false_alarms": 0, "no_verdict": 0})
                row["no_verdict"] += bool(one.reason)
                row["false_alarms" if trial.clean else "caught"] += one.verdict == BLOCK and not one.reason
        return table

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        rows = [trial.as_dict() for trial in self.trials]
        return {
            "panel": self.panel, "of": self.of, "run": self.run, "seed": self.seed, "trials": rows, "not_seeded": self.not_seeded,
            "faults": len(self.faults), "caught": sum(trial.blocked for trial in self.faults),
            "located": sum(trial.blocked and trial.located for trial in self.faults),
            "clean": len(self.clean), "false_alarms": sum(trial.blocked for trial in self.clean), "judges": self.judges(),
            "seconds": round_to(sum(row["seconds"] for row in rows)), "cpu_seconds": round_to(sum(row["cpu_seconds"] for row in rows)),
        }  # fmt: skip


def calibrate(
    panel: Panel, layer: Layer, watcher: Watcher, *, engine: str = "auto", goal: str = "", seed: int | None = None,
    tried: Callable[[Trial], None] | None = None,
) -> Report:  # fmt: skip
    """Put a change with each known fault, and without any, to a panel. `tried` hears of each trial.

    Raises UsageError where there is nothing to ask about, and KeyboardInterrupt when somebody ended the judges of a trial.
    """
    seed = secrets.randbits(32) if seed is None else seed
    report = Report(panel=panel.name, of=layer.run, seed=seed)
    command = ("broker", "judge", "calibrate", panel.name, "--change", layer.run)
    with layer.locked(), court(panel, layer, watcher, engine=engine, command=command) as here:
        report.run = here.run.journal.run
        files = _files_of(layer, random.Random(seed))
        trials: list[tuple[str, Defect | None, bool]] = [("clean", None, True), ("clean_remark", harmless_remark(files), True)]
        trials += [(kind, make(files), False) for kind, make in FAULTS.items()]
        for number, (kind, defect, clean) in enumerate(trials, 1):
            if defect is None and kind != "clean":
                report.not_seeded[kind] = "no file of the change, or of the workspace, has a place for it"
                continue
            with _copy_of(layer, number) as copy:
                try:
                    if defect is not None:
                        put_in(copy, defect)
                except OSError as error:
                    report.not_seeded[kind] = f"{defect.path if defect else ''} cannot be written: {error.strerror}"
                    continue
                decision = convene(here.run, panel, copy, here.workspace, goal=goal, seed=seed + number)
            if decision.ended:
                raise KeyboardInterrupt
            title = defect.title if defect else "the change as it is"
            trial = Trial(
                kind=kind, title=title, path=defect.path if defect else "", line=defect.line if defect else 0, clean=clean,
                decision=decision,
            )  # fmt: skip
            report.trials.append(trial)
            if tried is not None:
                tried(trial)
        table = report.as_dict()
        here.run.journal.append(
            event.PANEL_CALIBRATED,
            **{key: table[key] for key in ("panel", "of", "seed", "faults", "caught", "located", "clean", "false_alarms", "judges", "seconds")},
            trials=[{key: row[key] for key in ("kind", "path", "blocked", "located")} for row in table["trials"]],
            not_seeded=report.not_seeded,
        )  # fmt: skip
    return report


def _files_of(layer: Layer, chance: random.Random) -> Files:
    """Return the files of the change, and of the workspace that it lies on."""
    changes = [one for one in changes_of(layer) if one.part == 0]
    changed = sorted(one.path for one in changes if one.thing is Thing.FILE and one.new is not None)
    gone = {one.path for one in changes if one.new is None}
    others = []
    root = layer.real(0)
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in (".git", "node_modules", "__pycache__", ".venv"))
        others += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(files)]
        if len(others) > MOST_LOOKED_AT:
            break
    known = {*changed, *gone}

    def read(path: str) -> bytes | None:
        return _read(layer.upper(0) if path in set(changed) else root, path)

    return Files(changed, [path for path in others if path not in known], read, chance)


def _read(root: str, path: str) -> bytes | None:
    """Return a plain file's content; None for what is none, or lies behind a link."""
    top = os.open(root, FOLDER)
    try:
        with contextlib.suppress(OSError), open(open_beneath(top, path, _READ), "rb") as file:
            content = file.read(MOST_CONTENT + 1)
            return content if len(content) <= MOST_CONTENT else None
        return None
    finally:
        os.close(top)


@contextlib.contextmanager
def _copy_of(layer: Layer, number: int) -> Iterator[Layer]:
    """Make a copy of a layer, for as long as it is needed. It counts as a sub-task's: nobody takes it for the newest change."""
    manifest = replace(layer.manifest, run=f"{layer.run}.trial{number}", parent=layer.run, state="ended")
    copy = make_layer(layer.folder.parent, manifest)
    try:
        for part in range(len(manifest.parts)):
            # overlayfs's own marks are devices and attributes: cp(1) copies both.
            done = subprocess.run(
                ["cp", "-a", "--", f"{layer.upper(part)}/.", copy.upper(part)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise BrokerError(f"the change cannot be copied: {done.stderr.strip()[:300]}")
        yield copy
    finally:
        copy.remove()


def put_in(layer: Layer, defect: Defect) -> None:
    """Put a fault into a copy of a change, through no link. Raises OSError."""
    upper, manifest = Path(layer.upper(0)), layer.manifest
    folder = os.open(upper, FOLDER)
    try:
        *above, name = defect.path.split("/")
        for depth, one in enumerate(above, 1):
            try:
                inner = open_beneath(folder, one)
            except FileNotFoundError:
                os.mkdir(one, 0o755, dir_fd=folder)
                real = Path(layer.real(0), *above[:depth])
                with contextlib.suppress(OSError):
                    os.chmod(one, os.stat(real, follow_symlinks=False).st_mode & 0o777, dir_fd=folder)
                _give(one, folder, manifest.uid, manifest.gid)
                inner = open_beneath(folder, one)
            os.close(folder)
            folder = inner
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, defect.mode, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(defect.content)
        os.chmod(name, defect.mode, dir_fd=folder)
        _give(name, folder, manifest.uid, manifest.gid)
    finally:
        os.close(folder)


def _give(name: str, folder: int, uid: int, gid: int) -> None:
    if os.geteuid() == 0:
        os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
