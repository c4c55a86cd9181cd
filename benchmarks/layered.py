"""Run commands in one of the product's sandboxes whose workspace is a layer, and say what each did.

Program starts come from the exec gate, which allows all of them; changes of the workspace from the layer, and
secrets that were opened from their masks. Connections and the sandbox's own /tmp and home are not looked at:
`benchmarks.traced` sees those.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.differential import Recorder
from benchmarks.sandboxes import ALLOWED, layer_of, profile
from benchmarks.traced import PATIENCE, Seen
from broker.decide.envelope import Envelope
from broker.decide.trust import Trust
from broker.enforce import confinement
from broker.enforce.changes import changes_of
from broker.enforce.choose import engine_named
from broker.enforce.layer import Layer
from broker.enforce.masks import Masks
from broker.enforce.runtime import make_task_folder, remove_task_folder, runtime_base
from broker.enforce.sandbox import Command, Sandbox
from broker.enforce.workspace import survey


class Layered:
    """A running sandbox. What a command changed stays there for the next one; the real workspace is untouched."""

    def __init__(
        self, running: Sandbox, recorder: Recorder, layer: Layer, workspace: str, inside: str
    ) -> None:
        self.running, self.recorder, self.layer = running, recorder, layer
        self.workspace, self.inside = workspace, inside
        self.opened: list[str] = []
        self.known: set[tuple[str, str, int]] = set()
        self.null = os.open("/dev/null", os.O_RDWR)
        layer.wait_for_the_clock()

    def run(self, argv: tuple[str, ...]) -> Seen:
        """Run a command. Paths of the workspace are told as below `inside`."""
        environment = ("PATH=/usr/bin:/usr/sbin", "HOME=/home/agent", "LANG=C.UTF-8", "TERM=xterm")
        where = next(
            (
                f"{folder}/{argv[0]}"
                for folder in ("/usr/bin", "/usr/sbin")
                if os.path.exists(f"{folder}/{argv[0]}")
            ),
            argv[0],
        )
        command = Command(argv=(where, *argv[1:]), cwd=self.workspace, env=environment)
        process = self.running.spawn(ALLOWED, command, (self.null, self.null, self.null))
        exited = process.wait(PATIENCE)
        if self.running.failure is not None:
            raise self.running.failure
        self.running.kill_process(process)
        seen = Seen(status=exited.status if exited is not None else None)
        with self.recorder.lock:
            for words in self.recorder.starts.pop(process.number, []):
                seen.starts.append(
                    (words[0], *(word.replace(self.workspace, self.inside) for word in words[1:]))
                )
        process.close()
        seen.read = {path.replace(self.workspace, self.inside) for path in self.opened}
        self.opened.clear()
        now = {
            (f"{self.inside}/{change.path}", change.kind.value, change.new.mtime if change.new else 0)
            for change in changes_of(self.layer)
        }
        seen.changed = {path: kind for path, kind, _ in now - self.known}
        self.known = now
        return seen


@contextlib.contextmanager
def sandbox_over(workspace: str, state: Path, inside: str) -> Iterator[Layered]:
    """A sandbox whose gate allows everything and records it, over this workspace."""
    chosen = profile()
    space = survey(workspace, mode="overlay")
    folder = make_task_folder(runtime_base(), "observed", space.uid, space.gid)
    layer = layer_of(space.parts(), f"observed-{os.getpid()}", space.uid, space.gid, state)
    try:
        confined = confinement.confine(
            Envelope(profile=chosen, trust=Trust.TRUSTED), space, task="observed", run_dir=str(folder), engine="bubblewrap",
            command=(), overlays=layer.overlays(),
        )  # fmt: skip
        recorder = Recorder()
        opened: list[str] = []
        masks = Masks(folder, confined.plan.masked, opened.append)
        running = Sandbox.start(engine_named("bubblewrap"), confined.plan, confined.setup, recorder)
        running.listen()
        masks.watch(folder)
        try:
            layered = Layered(running, recorder, layer, workspace, inside)
            layered.opened = opened
            yield layered
        finally:
            running.close()
            masks.close()
    finally:
        remove_task_folder(folder)
        layer.remove()
