"""A sandbox for benchmarks, made as `broker run` makes it, and held by this process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Layer
from broker.enforce import confinement, mounts, network, status
from broker.enforce import layer as layers
from broker.enforce.choose import engine_named
from broker.enforce.layer import Manifest, file_clock, layers_base, make_layer
from broker.enforce.runtime import OwnerMark, make_task_folder, remove_task_folder, runtime_base
from broker.enforce.sandbox import Command, Sandbox
from broker.enforce.workspace import survey
from broker.record.journal import Journal
from broker.request.operation import Exec
from broker.task.task import OPERATOR_SCOPE, Task

ALLOWED = Allow(layer=Layer.OPERATOR, rule="benchmark", effects=frozenset())


def profile(image: str = "") -> Profile:
    """Return a profile under which build tools run."""
    made = Profile(
        name="benchmark", max_risk=Risk.CODE_EXECUTION, effects=up_to(Risk.CODE_EXECUTION) | {Risk.UNKNOWN}
    )
    return replace(made, sandbox=replace(made.sandbox, image=image))


@contextlib.contextmanager
def sandbox(
    engine: str, workspace: str, state: str, *, image: str = "", mode: str = "direct", calls: bool = False,
    hosts: tuple[str, ...] = (),
) -> Iterator[tuple[Sandbox, Task]]:  # fmt: skip
    """A started, proven and listening sandbox. What it changed in a layer is thrown away."""
    chosen = replace(profile(image), hosts=hosts)
    space = survey(workspace, mode=mode)
    with Journal.create(Path(state)) as journal:
        folder = make_task_folder(runtime_base(), journal.run, space.uid, space.gid)
        layer = layer_of(space.parts(), journal.run, space.uid, space.gid, Path(state)) if space.overlay else None
        confined = confinement.confine(
            Envelope(profile=chosen, trust=Trust.TRUSTED), space, task=journal.run, run_dir=str(folder),
            engine=engine, command=(), overlays=layer.overlays() if layer else (),
            calls=calls,
        )  # fmt: skip
        task = Task(
            path="root", envelope=Envelope(profile=chosen, trust=Trust.TRUSTED), context=confined.context,
            journal=journal, run_dir=str(folder),
        )  # fmt: skip
        chosen_engine = engine_named(engine)
        chosen_engine.sweep()
        running = Sandbox.start(chosen_engine, confined.plan, confined.setup, task)
        mounts.prove_mounts(running.container.init_pid, confined.plan, running.container.overlay_words)
        facts = network.inspect_network(running.container.init_pid, running.route_socket)
        status.judge_layers(chosen, running.hello, running.proofs, facts, "x")
        running.listen()
        try:
            yield running, task
        finally:
            running.close()
            remove_task_folder(folder)
            if layer is not None:
                layer.remove()


def layer_of(parts: tuple[str, ...], run: str, uid: int, gid: int, state: Path) -> layers.Layer:
    """Make a layer over these folders."""
    facts = [(part, os.stat(part)) for part in parts]
    manifest = Manifest(
        run=run, workspace=parts[0], uid=uid, gid=gid, profile="benchmark", digest="", trust="trusted", engine="",
        began=file_clock(), owner=str(OwnerMark.mine()), parts=tuple((p, f.st_dev, f.st_ino) for p, f in facts),
    )  # fmt: skip
    return make_layer(layers_base(state), manifest)


def run_in(running: Sandbox, task: Task, argv: tuple[str, ...], cwd: str, descriptors: tuple[int, ...] = ()) -> int:
    """Start a program in a running sandbox, wait for it, and return its wait status."""
    task.operators_choice(Exec(argv=argv, cwd=cwd))
    environment = ("PATH=/usr/bin:/bin", "HOME=/home/agent", "TMPDIR=/tmp")
    process = running.spawn(
        ALLOWED, Command(argv=argv, cwd=cwd, env=environment), descriptors, scope=OPERATOR_SCOPE
    )
    exited = process.wait(120)
    failed = process.failed
    process.close()
    if exited is None:
        raise RuntimeError(f"{argv[0]} did not run: {failed or running.failure}")
    return exited.status


@contextlib.contextmanager
def folders() -> Iterator[tuple[str, str]]:
    """A fresh workspace and a fresh state folder."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as place:
        workspace = os.path.join(place, "workspace")
        os.mkdir(workspace)
        yield workspace, os.path.join(place, "state")
