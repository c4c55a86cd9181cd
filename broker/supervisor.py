"""The whole story on one screen: request > classify > decide > enforce > record.

In: what an operator asked for. Out: a Result. A run is one journal; a task in it is one sandbox. The record
of each step is written before the step, and whatever goes wrong on the way ends with the sandbox gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny
from broker.enforce import confinement, mounts, network, status, usage
from broker.enforce.attach import (
    Ending,
    OutputBudget,
    Streams,
    serve_terminal,
    signals_as_events,
    terminal_size,
    wait_attached,
)
from broker.enforce.choose import choose_engine
from broker.enforce.engine import Engine
from broker.enforce.layer import Layer, Manifest, file_clock, layers_base, make_layer
from broker.enforce.masks import Masks
from broker.enforce.runtime import (
    OwnerMark,
    make_task_folder,
    remove_task_folder,
    runtime_base,
    sweep_task_folders,
)
from broker.enforce.sandbox import Command, Process, Sandbox
from broker.enforce.workspace import Workspace, broker_itself, keep_out, survey
from broker.errors import BrokerError, JournalError, UsageError
from broker.record import event
from broker.record.journal import Journal
from broker.record.log import diagnose
from broker.record.run_files import state_dir
from broker.request.operation import Exec
from broker.task.changes import Judged
from broker.task.landing import Settlement, recover_landings, settle
from broker.task.result import Result, finished, refused
from broker.task.task import OPERATOR_SCOPE, Task

DRAIN_SECONDS = 10.0
MOST_WORDS = 128 * 1024  # bytes of arguments and environment together: what the guard reads of a start


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What an operator asks for. `judged`: the command itself is judged too (`broker exec`)."""

    argv: tuple[str, ...]
    profile: Profile
    workspace: str
    engine: str = "auto"
    trust: Trust = Trust.TRUSTED
    judged: bool = False
    terminal: bool = False
    stdin: int = 0
    stdout: int = 1
    stderr: int = 2
    seconds: float | None = None
    land: str = "auto"
    state_dir: Path | None = None


@dataclass(slots=True)
class Watcher:
    """Who wants to hear of things while they happen. All optional."""

    started: Callable[[Header], None] | None = None
    denied: Callable[[str, Deny], None] | None = None
    land: Callable[[Judged], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is known before the command starts."""

    run: str
    profile: Profile
    engine: str
    engine_why: str
    layers: tuple[status.LayerStatus, ...]
    workspace: Workspace
    journal: Path


@dataclass(slots=True)
class Stage:
    """A task on its sandbox, ready to start something."""

    task: Task
    sandbox: Sandbox
    confined: confinement.Confinement
    layers: tuple[status.LayerStatus, ...]
    folder: Path
    masks: Masks
    workspace: Workspace
    layer: Layer | None = None
    namespace: int = 0
    descriptors: list[int] = field(default_factory=list)


def run(request: RunRequest, watcher: Watcher | None = None) -> Result:
    """Carry one request from question to recorded answer.

    Raises ProfileError, HostCannotEnforce, JournalError or GuardError when it cannot go on; nothing runs
    on after that. A refusal is no exception: it is in the Result.
    """
    watcher = watcher or Watcher()
    _refuse_too_long(request)
    sandbox = request.profile.sandbox
    workspace = survey(request.workspace, mode=sandbox.workspace, shown=sandbox.show)
    state = request.state_dir or state_dir()
    keep_out(
        workspace,
        {"the journals": state, "the layers": layers_base(state), "the runtime folder": runtime_base()},
    )
    engine, why = choose_engine(request.engine, request.profile)
    with _journal(request) as journal:
        journal.append(
            event.RUN_STARTED, command=request.argv, profile=request.profile.name, digest=request.profile.digest,
            source=request.profile.source, max_risk=request.profile.max_risk, workspace=workspace.path,
            engine=engine.name, engine_why=why, trust=request.trust.label, broker_pid=os.getpid(), user=os.getuid(),
        )  # fmt: skip
        try:
            with _stage(request, workspace, engine, journal, watcher) as stage:
                if watcher.started is not None:
                    watcher.started(
                        Header(
                            run=journal.run, profile=request.profile, engine=engine.name, engine_why=why,
                            layers=stage.layers, workspace=workspace, journal=journal.path,
                        )
                    )  # fmt: skip
                return _carry(request, stage, journal, engine.name, watcher)
        except BrokerError as error:
            with contextlib.suppress(JournalError):
                journal.append(event.RUN_FINISHED, status="failed", reason=str(error), exit_code=error.exit_code)
            raise


def _environment(request: RunRequest) -> tuple[str, ...]:
    read_only = request.profile.sandbox.workspace == "read-only"
    return confinement.environment(request.profile, read_only=read_only, terminal=request.terminal)


def _refuse_too_long(request: RunRequest) -> None:
    """Say so before anything is made: the guard would refuse the start, and so would the kernel at 2 MiB."""
    size = sum(len(os.fsencode(word)) + 1 for word in (*request.argv, *_environment(request)))
    if size > MOST_WORDS:
        raise UsageError(
            f"the command is too long: {size} bytes with its environment, and at most {MOST_WORDS} can be judged. "
            "Pass long text in a file or on stdin"
        )


def _carry(request: RunRequest, stage: Stage, journal: Journal, engine: str, watcher: Watcher) -> Result:
    """Judge the command, start it, wait for it, account for it."""
    task = stage.task
    operation = Exec(argv=request.argv, cwd=stage.confined.context.cwd)
    if request.judged:
        _, verdict = task.judge(operation)
        if isinstance(verdict, Deny):
            task.refuse("exec", verdict)
            return _finish(request, stage, journal, engine, None, Ending(), verdict, watcher)
        assert isinstance(verdict, Allow)
    else:
        verdict = task.operators_choice(operation)

    command = Command(argv=request.argv, cwd=stage.confined.context.cwd, env=_environment(request))
    journal.append(event.SPAWN_STARTED, task=task.path, argv=request.argv, terminal=request.terminal)
    process, ending = _attend(request, stage, verdict, command, journal)
    return _finish(request, stage, journal, engine, process, ending, None, watcher)


def _attend(
    request: RunRequest, stage: Stage, allowed: Allow, command: Command, journal: Journal
) -> tuple[Process, Ending]:
    """Start the command and stay with it until it ends or must be ended."""
    sandbox, limits = stage.sandbox, stage.confined.plan.limits
    scope = 0 if request.judged else OPERATOR_SCOPE
    seconds = request.seconds if limits.seconds is None else min(limits.seconds, request.seconds or limits.seconds)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def wake() -> None:
        with contextlib.suppress(OSError):
            os.write(wake_write, b"!")

    watched_cap = None if getattr(sandbox.container, "limits_by", "docker") else limits.memory
    quota = None
    if stage.layer is not None:
        quota = usage.Quota(str(stage.layer.folder), request.profile.sandbox.layer_size)
    watch = usage.UsageWatch(sandbox.container.init_pid, watched_cap, wake, quota)
    budget = OutputBudget(limits.output, wake)
    with signals_as_events() as signals:
        watch.start()
        try:
            if request.terminal:
                process = sandbox.spawn(
                    allowed, command, scope=scope, terminal=terminal_size(request.stdin)
                )
                process.wait_started()
                ending = Ending()
                if process.failed is None:
                    ending = serve_terminal(
                        sandbox, process, stdin=request.stdin, stdout=request.stdout, seconds=seconds,
                        wake=wake_read, budget=budget, exceeded=lambda: watch.exceeded, signals=signals,
                    )  # fmt: skip
                sandbox.kill()
            else:
                plan = stage.confined.plan
                streams = Streams(
                    request.stdin, request.stdout, request.stderr, budget, owner=(plan.uid, plan.gid)
                )
                process = sandbox.spawn(allowed, command, streams.inside, scope=scope)
                streams.start()
                ending = wait_attached(
                    sandbox, process, seconds=seconds, wake=wake_read, budget=budget,
                    exceeded=lambda: watch.exceeded, signals=signals,
                )  # fmt: skip
                _note_memory(stage)
                sandbox.kill()
                streams.drain(DRAIN_SECONDS if ending.ours else None, signals)
                ending.output_lost = "; ".join(streams.problems)
        finally:
            seen = watch.stop()
            seen.output_bytes = budget.written
            stage.descriptors += [wake_read, wake_write]
    if process.exited is not None:
        cpu = (process.exited.user_us + process.exited.system_us) / 1e6
        seen.cpu_seconds = max(seen.cpu_seconds, cpu)
        seen.peak_memory = max(seen.peak_memory, process.exited.max_rss * 1024)
    if process.failed is not None:
        journal.append(
            event.SPAWN_FAILED, task=stage.task.path, error=os.strerror(process.failed.error), step=process.failed.step
        )
    elif process.exited is not None:
        journal.append(
            event.SPAWN_EXITED, task=stage.task.path, wait_status=process.exited.status, pid=process.pid,
            user_us=process.exited.user_us, system_us=process.exited.system_us, max_rss_kib=process.exited.max_rss,
        )  # fmt: skip
    journal.append(event.USAGE_MEASURED, task=stage.task.path, samples=seen.samples, **seen.as_dict())
    stage.task.usage = seen
    return process, ending


def _note_memory(stage: Stage) -> None:
    """Ask the kernel's counter while the group is still there."""
    stage.task.oom = stage.sandbox.container.oom_killed()


def _finish(
    request: RunRequest, stage: Stage, journal: Journal, engine: str, process: Process | None, ending: Ending,
    denial: Deny | None, watcher: Watcher,
) -> Result:  # fmt: skip
    """Look for survivors, record how it ended, and say so."""
    task, sandbox = stage.task, stage.sandbox
    sandbox.kill()
    stage.masks.close()
    task.oom = task.oom or sandbox.container.oom_killed() or ending.memory_exceeded
    left = usage.survivors(stage.namespace) if stage.namespace else []
    journal.append(event.SURVIVORS_KILLED, task=task.path, survivors=left)
    lost = process is not None and process.failed is None and process.exited is None and not ending.ours
    if sandbox.failure is not None:
        journal.append(event.GUARD_LOST, task=task.path, reason=str(sandbox.failure))
        if isinstance(sandbox.failure, BrokerError):
            raise sandbox.failure
    elif lost:
        journal.append(event.GUARD_LOST, task=task.path, reason="the guard, or its container, was ended from outside")
    for name, exceeded in (
        ("time", ending.timed_out), ("output", ending.output_exceeded), ("memory", task.oom),
        ("layer", ending.layer_exceeded),
    ):  # fmt: skip
        if exceeded:
            journal.append(event.LIMITS_EXCEEDED, task=task.path, limit=name)
    changes = _settle(request, stage, journal, watcher, sound=not lost and not ending.layer_exceeded)
    task.denials.finish()
    common = {
        "engine": engine, "layers": stage.layers, "journal": journal.path, "run": journal.run, "task": task,
        "changes": changes,
    }  # fmt: skip
    result = refused(denial, **common) if denial is not None else finished(process, ending, **common)
    journal.append(event.TASK_FINISHED, task=task.path, **result.summary())
    diagnose("task.finished", run=journal.run, status=result.status, exit_code=result.exit_code, denials=result.denied_count)
    journal.append(event.RUN_FINISHED, **result.summary())
    return result


def _settle(
    request: RunRequest, stage: Stage, journal: Journal, watcher: Watcher, *, sound: bool
) -> dict[str, Any]:
    """Land what the task changed, as far as its profile permits; nothing, if it did not end as it should."""
    if stage.layer is None:
        return {}
    land = request.land if sound and stage.sandbox.failure is None else "never"
    how = Settlement(
        land=land, ask=watcher.land, keep=tuple(broker_itself(stage.layer.manifest.workspace)),
        aliases=stage.workspace.aliases,
    )  # fmt: skip
    return settle(stage.layer, stage.task, journal, how)


def _layer(request: RunRequest, workspace: Workspace, engine: Engine, journal: Journal) -> Layer | None:
    """Make the layer that the task's changes go to, if they are not to go to the real files."""
    if not workspace.overlay:
        return None
    parts = tuple((path, facts.st_dev, facts.st_ino) for path, facts in ((p, os.stat(p, follow_symlinks=False)) for p in workspace.parts()))
    manifest = Manifest(
        run=journal.run, workspace=workspace.path, uid=workspace.uid, gid=workspace.gid, profile=request.profile.name,
        digest=request.profile.digest, trust=request.trust.label, engine=engine.name, began=file_clock(),
        owner=str(OwnerMark.mine()), parts=parts,
    )  # fmt: skip
    return make_layer(layers_base(request.state_dir or state_dir()), manifest)


@contextlib.contextmanager
def _journal(request: RunRequest) -> Iterator[Journal]:
    journal = Journal.create(request.state_dir or state_dir())
    try:
        yield journal
    finally:
        journal.close()


@contextlib.contextmanager
def _stage(
    request: RunRequest, workspace: Workspace, engine: Engine, journal: Journal, watcher: Watcher
) -> Iterator[Stage]:
    """Make the sandbox, prove its layers, and record both. On the way out, nothing of it is left."""
    base = runtime_base()
    recovered = recover_landings(layers_base(request.state_dir or state_dir()))
    if swept := [*engine.sweep(), *sweep_task_folders(base), *recovered]:
        journal.append(event.SANDBOX_SWEPT, removed=swept)
    folder = make_task_folder(base, journal.run, workspace.uid, workspace.gid)
    sandbox: Sandbox | None = None
    layer: Layer | None = None
    masks: Masks | None = None
    try:
        layer = _layer(request, workspace, engine, journal)
        envelope = Envelope(profile=request.profile, trust=request.trust)
        confined = confinement.confine(
            envelope, workspace, task=journal.run, run_dir=str(folder), engine=engine.name, command=request.argv,
            overlays=layer.overlays() if layer is not None else (),
        )  # fmt: skip
        task = Task(
            path=event.ROOT, envelope=envelope, context=confined.context, journal=journal, run_dir=str(folder),
            tell=watcher.denied,
        )  # fmt: skip
        task.lands = workspace.parts()
        masks = Masks(folder, workspace.masked, task.secret_opened)
        journal.append(
            event.TASK_CREATED, task=task.path, profile=request.profile.name, trust=request.trust.label,
            effects=envelope.effects, context=confined.context, protected=workspace.protected,
            masked=workspace.masked, limits=confined.plan.limits, notes=workspace.notes,
        )  # fmt: skip
        began = time.monotonic()
        sandbox = Sandbox.start(engine, confined.plan, confined.setup, task)
        mounts.prove_mounts(sandbox.container.init_pid, confined.plan, sandbox.container.overlay_words)
        if engine.name == "docker":
            task.files_at = f"/proc/{sandbox.container.init_pid}/root"
        facts = network.inspect_network(sandbox.container.init_pid, sandbox.route_socket)
        journal.append(
            event.NETWORK_INSPECTED, task=task.path, links=facts.links, routes=facts.routes,
            proc_links=facts.witnessed_links, isolated=facts.isolated,
        )  # fmt: skip
        limits_by = getattr(sandbox.container, "limits_by", "docker")
        layers = status.judge_layers(request.profile, sandbox.hello, sandbox.proofs, facts, limits_by)
        journal.append(
            event.LAYERS_PROVEN, task=task.path, engine=engine.name, layers=layers, landlock_abi=sandbox.hello.landlock_abi,
            proofs=[[proof.name, proof.result.value, proof.evidence] for proof in sandbox.proofs],
        )  # fmt: skip
        if layer is not None:
            layer.wait_for_the_clock()
        masks.watch(folder)
        sandbox.listen()
        diagnose(
            "sandbox.ready", run=journal.run, engine=engine.name, guard_pid=sandbox.container.init_pid, limits_by=limits_by,
            milliseconds=round((time.monotonic() - began) * 1000, 1),
        )  # fmt: skip
        namespace = usage.pid_namespace(sandbox.container.init_pid)
        stage = Stage(task, sandbox, confined, layers, folder, masks, workspace, layer, namespace)
        yield stage
        for descriptor in stage.descriptors:
            os.close(descriptor)
    finally:
        if sandbox is not None:
            sandbox.close()
        if masks is not None:
            masks.close()
        if layer is not None:
            layer.leave()
        remove_task_folder(folder)
