"""A task's sandbox: made, proven and recorded before anything runs in it; and on the way out, nothing of it is left.

In: a run, and what one of its tasks is to do (a Plot). Out: a Stage, for as long as the context lasts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.verdict import Deny
from broker.enforce import confinement, mounts, network, status, usage
from broker.enforce.attach import Sink, Source
from broker.enforce.calls import CallLine
from broker.enforce.engine import Engine, Overlay
from broker.enforce.layer import Layer, Manifest, adopt_layer, file_clock, layers_base, make_layer
from broker.enforce.masks import Masks
from broker.enforce.questions import Questions
from broker.enforce.runtime import OwnerMark, make_task_folder, remove_task_folder, runtime_base
from broker.enforce.sandbox import Sandbox
from broker.enforce.workspace import Workspace
from broker.errors import BrokerError, UsageError
from broker.record import event
from broker.record.journal import Journal
from broker.record.log import diagnose
from broker.record.recorded import profile_data
from broker.task.changes import Judged
from broker.task.landing import Gate
from broker.task.task import Task
from broker.task.tree import Node, Tree
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.request.plan import Step
    from broker.task.desk import ApprovalDesk
    from broker.task.plan import PlanDesk, WorkspaceDigest


TASK_FILE = "task.json"  # in /run/broker: what a task is for, as its agent reads it
TASK_VARIABLE = ("BROKER_TASK", f"/run/broker/{TASK_FILE}")


@dataclass(slots=True)
class Watcher:
    """Who wants to hear of things while they happen. All optional.

    `denied` gets the task's path, the tool and the denial. `called` serves a process of a sandbox that calls the broker,
    on a thread of its own; without it nobody can call. `changed` is told of each change in the tree of tasks. `ways_out`
    makes what serves a task's gateways; without it a profile that has some cannot be used. `convene` has a panel judge the
    changes of a task that has ended, and returns what lets them land, or does not; without it --land on-panel lands nothing.
    `asked` is told of each question that the operator can answer (broker/task/desk.py), on a thread of its own. `terminal` asks
    them on the terminal of the run.
    """

    started: Callable[[Header], None] | None = None
    denied: Callable[[str, str, Deny], None] | None = None
    land: Callable[[Judged], bool] | None = None
    called: Callable[[Stage, CallLine], None] | None = None
    changed: Callable[[str, Node], None] | None = None
    ways_out: Callable[[Task], WaysOut] | None = None
    convene: Callable[[Stage], Gate] | None = None
    asked: Callable[[dict[str, Any]], None] | None = None
    terminal: AtTerminal | None = None


class AtTerminal(Questions, Protocol):
    """Asks the operator on the terminal that a run's own command is attached to (broker/cli/ask_terminal.py)."""

    def begin(self, desk: ApprovalDesk) -> None:
        """Take the questions from this desk from now on."""


class WaysOut(Protocol):
    """Serves the connections that a task makes to its gateways and to the proxy (broker.serve.gateway)."""

    def prepare(self) -> None:
        """Make ready for the first of them. Called while the task's command starts, which takes longer."""

    def accept(self, port: int, client: socket.socket) -> None:
        """Serve a connection, on another thread. Takes the socket."""

    def close(self) -> None:
        """End all of them. May be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is known before the command starts. `tree` is alive: it can be looked at, and stopped."""

    run: str
    profile: Profile
    engine: str
    engine_why: str
    layers: tuple[status.LayerStatus, ...]
    workspace: Workspace
    journal: Path
    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all tasks of a run share. `profiles` finds a profile of the operator's by its name; `known` lists them."""

    journal: Journal
    engine: Engine
    engine_why: str
    state: Path
    tree: Tree
    watcher: Watcher
    profiles: Callable[[str], Profile]
    known: Callable[[], tuple[Profile, ...]]
    approvals: ApprovalDesk | None = None  # of the run's own task; None: nobody is asked

    def id_of(self, task: str) -> str:
        """Return the name of a task on this host: the run's, and for a sub-task its place in the tree."""
        place = task.removeprefix(event.ROOT) if task.startswith(event.ROOT) else f"/{task}"
        return self.journal.run + place.replace("/", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What one task is to do, and where. `judged`: its command is judged like any other; else somebody chose it.

    `stdin` of -1 is an empty one. `land` is as in a RunRequest. `extra` are further variables of its environment.
    """

    argv: tuple[str, ...]
    node: Node
    workspace: Workspace
    cwd: str
    parent: Stage | None = None
    judged: bool = False
    terminal: bool = False
    stdin: int | Source = 0
    stdout: int | Sink = 1
    stderr: int | Sink = 2
    seconds: float | None = None
    land: str = "auto"
    plan: tuple[Step, ...] = ()  # the operator's own
    extra: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()  # small files for /run/broker: (name, content)
    continues: str = ""  # a run of this workspace whose kept changes the task begins with
    between: tuple[tuple[str, ...], ...] = ()  # of no parent: what lies over the real files, for each part, topmost first

    @property
    def envelope(self) -> Envelope:
        """What the task may do."""
        return self.node.envelope


@dataclass(slots=True)
class Stage:
    """A task on its sandbox, ready to start something."""

    run: Run
    plot: Plot
    task: Task
    sandbox: Sandbox
    confined: confinement.Confinement
    layers: tuple[status.LayerStatus, ...]
    folder: Path
    masks: Masks
    layer: Layer | None = None
    between: tuple[tuple[str, ...], ...] = ()
    namespace: int = 0
    descriptors: list[int] = field(default_factory=list)
    ways_out: WaysOut | None = None
    _desk: PlanDesk | None = None
    _desk_lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self) -> PlanDesk:
        """Return where the task's plan lies. Made when somebody asks for it: most tasks have none, and need not load it."""
        with self._desk_lock:
            if self._desk is None:
                from broker.task.plan import PlanDesk

                self._desk = PlanDesk(self.task.record, _digest(self))
            return self._desk

    def claims(self) -> dict[str, str]:
        """Return what a model says about the task: its label, and what it plans to do now. None of it is more than words."""
        with self._desk_lock:
            plan = self._desk.plan if self._desk is not None else None
        now = [f"{one.id}: {one.title}" for one in plan.steps if one.state.value == "active"] if plan is not None else []
        return {"label": self.plot.node.label, "step": "\n".join(now)}

    def fail(self, error: BrokerError) -> None:
        """End the task, and let the run fail with this."""
        self.sandbox.failure = self.sandbox.failure or error
        self.sandbox.kill()

    @property
    def lowers(self) -> tuple[tuple[str, ...], ...]:
        """What a child's view lies on, over the real files, for each part: this task's own changes, and its ancestors'."""
        if self.layer is None:
            return self.between
        above = self.between or ((),) * len(self.layer.manifest.parts)
        return tuple((self.layer.upper(number), *lower) for number, lower in enumerate(above))


@contextlib.contextmanager
def staged(run: Run, plot: Plot) -> Iterator[Stage]:
    """Make the sandbox, prove its layers, and record both. On the way out, nothing of it is left."""
    journal, engine, envelope, workspace, path = run.journal, run.engine, plot.envelope, plot.workspace, plot.node.path
    profile = envelope.profile
    if (profile.gateways or profile.hosts) and run.watcher.ways_out is None:
        raise UsageError(f"profile {profile.name} has gateways, and nobody here serves them. Use `broker run`")
    folder = make_task_folder(runtime_base(), run.id_of(path), workspace.uid, workspace.gid)
    sandbox: Sandbox | None = None
    layer: Layer | None = None
    masks: Masks | None = None
    try:
        for name, content in plot.files:
            _put(folder / name, content)
        between = plot.parent.lowers if plot.parent is not None and plot.workspace.overlay else plot.between
        layer = _layer(run, plot, between)
        confined = confinement.confine(
            envelope, workspace, task=run.id_of(path), run_dir=str(folder), engine=engine.name,
            command=() if plot.judged else plot.argv, overlays=_overlays(layer, workspace, between), cwd=plot.cwd,
            calls=run.watcher.called is not None,
        )  # fmt: skip
        tell = run.watcher.denied

        def told(tool: str, denial: Deny) -> None:
            if tell is not None:
                tell(path, tool, denial)

        task = Task(
            path=path, envelope=envelope, context=confined.context, journal=journal, run_dir=str(folder), tell=told,
            parent=plot.parent.task if plot.parent is not None else None, node=plot.node, tree=run.tree,
        )  # fmt: skip
        if layer is not None:
            task.lands = workspace.parts()
        masks = Masks(folder, workspace.masked, task.secret_opened)
        journal.append(
            event.TASK_CREATED, task=path, profile=envelope.profile.name, digest=envelope.profile.digest,
            trust=envelope.effective_trust.label, max_risk=envelope.profile.max_risk, effects=envelope.effects,
            context=confined.context, protected=workspace.protected, masked=workspace.masked, limits=confined.plan.limits,
            notes=workspace.notes, label=plot.node.label, envelope=profile_data(envelope.profile),
        )  # fmt: skip
        began = time.monotonic()
        sandbox = Sandbox.start(engine, confined.plan, confined.setup, task)
        mounts.prove_mounts(sandbox.container.init_pid, confined.plan, sandbox.container.overlay_words)
        task.seen_at, task.send = f"/proc/{sandbox.container.init_pid}/root", sandbox.answer
        if path == event.ROOT and run.approvals is not None:
            task.ask_at(run.approvals)
            if sandbox.hello.landlock_abi:
                task.starts = confined.starts
        if engine.name == "docker":
            task.files_at = f"/proc/{sandbox.container.init_pid}/root"
        facts = network.inspect_network(sandbox.container.init_pid, sandbox.route_socket)
        journal.append(
            event.NETWORK_INSPECTED, task=path, links=facts.links, routes=facts.routes,
            proc_links=facts.witnessed_links, isolated=facts.isolated,
        )  # fmt: skip
        limits_by = getattr(sandbox.container, "limits_by", "docker")
        layers = status.judge_layers(envelope.profile, sandbox.hello, sandbox.proofs, facts, limits_by)
        journal.append(
            event.LAYERS_PROVEN, task=path, engine=engine.name, layers=layers, landlock_abi=sandbox.hello.landlock_abi,
            proofs=[[proof.name, proof.result.value, proof.evidence] for proof in sandbox.proofs],
        )  # fmt: skip
        if layer is not None:
            layer.wait_for_the_clock()
        masks.watch(folder)
        held = usage.hold_pid_namespace(sandbox.container.init_pid)
        namespace = os.fstat(held).st_ino if held >= 0 else 0
        stage = Stage(run, plot, task, sandbox, confined, layers, folder, masks, layer, between, namespace)
        plot.node.plan = stage.plan
        task.claims = stage.claims
        if plot.plan:
            from broker.request.plan import Owner

            stage.plan().create(plot.plan, by=Owner.OPERATOR)
        stage.descriptors += [held] if held >= 0 else []
        task.end = stage.fail
        if (called := run.watcher.called) is not None:
            task.called = lambda line: called(stage, line)
        if profile.gateways or profile.hosts:
            assert run.watcher.ways_out is not None
            stage.ways_out = run.watcher.ways_out(task)
            task.connected = stage.ways_out.accept
        sandbox.listen()
        diagnose(
            "sandbox.ready", run=journal.run, task=path, engine=engine.name, guard_pid=sandbox.container.init_pid,
            limits_by=limits_by, milliseconds=round((time.monotonic() - began) * 1000, 1),
        )  # fmt: skip
        try:
            yield stage
        finally:
            if stage.ways_out is not None:
                stage.ways_out.close()
            run.tree.stop_below(plot.node, "parent", seconds=STOP_SECONDS)
            for descriptor in stage.descriptors:
                os.close(descriptor)
    finally:
        if sandbox is not None:
            sandbox.close()
        if run.approvals is not None and path == event.ROOT:
            run.approvals.close()
        if masks is not None:
            masks.close()
        if layer is not None:
            layer.leave()
        remove_task_folder(folder)


def _digest(stage: Stage) -> WorkspaceDigest | None:
    """Return what says whether the workspace is still the one that was seen; None where the real files are changed."""
    from broker.enforce.layer_digest import LayerDigest, ReadOnlyDigest

    parent = stage.plot.parent
    above = parent.plan().digest if parent is not None else None
    if stage.layer is not None:
        return LayerDigest(stage.layer, above)
    return ReadOnlyDigest(stage.plot.workspace.path, above) if stage.plot.workspace.read_only else None


STOP_SECONDS = 30.0  # for sub-tasks to end when their parent does: they are killed, and their changes looked at


def _put(path: Path, content: bytes) -> None:
    """Make a small file that the task can read and nobody but us can write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "wb") as file:
        file.write(content)
    path.chmod(0o644)


def _overlays(
    layer: Layer | None, workspace: Workspace, between: tuple[tuple[str, ...], ...]
) -> tuple[Overlay, ...]:
    """Return the copy-on-write views; without a layer of the task's own they are read-only."""
    if layer is not None:
        return layer.overlays()
    parts = workspace.parts() if workspace.overlay else ()
    return tuple(
        Overlay(lower=part, target=part, layer="", between=between[number] if between else ())
        for number, part in enumerate(parts)
    )


def _layer(run: Run, plot: Plot, between: tuple[tuple[str, ...], ...]) -> Layer | None:
    """Make the layer that the task's changes go to, if they are not to go to the real files."""
    workspace, parent = plot.workspace, plot.parent
    if not workspace.overlay or workspace.read_only:
        return None
    above = parent.layer if parent is not None else None
    if above is not None:
        parts = above.manifest.parts
    else:
        found = ((path, os.stat(path, follow_symlinks=False)) for path in workspace.parts())
        parts = tuple((path, facts.st_dev, facts.st_ino) for path, facts in found)
    profile = plot.envelope.profile
    manifest = Manifest(
        run=run.id_of(plot.node.path), workspace=workspace.path, uid=workspace.uid, gid=workspace.gid, profile=profile.name,
        digest=profile.digest, trust=plot.envelope.effective_trust.label, engine=run.engine.name, began=file_clock(),
        owner=str(OwnerMark.mine()), parts=parts, parent=above.run if above is not None else "",
        session=profile.agent.session if profile.agent is not None else (),
    )  # fmt: skip
    if plot.continues:
        return adopt_layer(layers_base(run.state), plot.continues, manifest)
    views = parent.sandbox.views if above is not None and parent is not None else ()
    return make_layer(layers_base(run.state), manifest, views, between)
