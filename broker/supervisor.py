"""The whole story on one screen: request > classify > decide > enforce > record.

In: what an operator asked for. Out: a Result. A run is one journal; a task in it is one sandbox. The record
of each step is written before the step, and whatever goes wrong on the way ends with the sandbox gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny
from broker.enforce import confinement, usage
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
from broker.enforce.layer import layers_base
from broker.enforce.questions import NOBODY_ASKS
from broker.enforce.ready import make_room, readable
from broker.enforce.runtime import runtime_base, sweep_task_folders
from broker.enforce.sandbox import Command, Process
from broker.enforce.workspace import broker_itself, keep_out, survey
from broker.errors import BrokerError, JournalError, UsageError
from broker.record import event, trace
from broker.record.journal import Journal
from broker.record.log import diagnose
from broker.record.run_files import state_dir
from broker.request.operation import Exec
from broker.stage import STOP_SECONDS, TASK_FILE, TASK_VARIABLE, Header, Plot, Run, Stage, Watcher, staged
from broker.task.control import Control
from broker.task.landing import Gate, Settlement, recover_landings, settle
from broker.task.result import Result, finished, held_back, refused
from broker.task.task import OPERATOR_SCOPE
from broker.task.tree import Node, Tree
from broker.task.watching import sweep as sweep_control_sockets
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.request.plan import Step
    from broker.task.desk import ApprovalDesk

__all__ = ["Header", "RunRequest", "Session", "Watcher", "run", "session"]

DRAIN_SECONDS = 10.0
MOST_WORDS = 128 * 1024  # bytes of arguments and environment together: what the guard reads of a start


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What an operator asks for. `judged`: the command itself is judged too (`broker exec`).

    `land` is auto, ask, never, on-plan, on-panel or on-plan+on-panel; `plan` is the operator's own.
    `profile_dirs` are searched first for the profiles of sub-tasks, and `profiles`, which no file defines, before those.
    `cwd`: where in the workspace the command starts; '': the workspace itself. `task_file` is what it finds in $BROKER_TASK.
    `facts` are added to the first event. `continues` is a run whose kept changes this one goes on with. `files` are small
    files for /run/broker: (name, content). `ask`: the operator is asked about what an approval could permit, and it is
    denied when he has not answered in so many seconds; None: nobody is asked. An untrusted task with it is a UsageError.
    """

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
    plan: tuple[Step, ...] = ()
    state_dir: Path | None = None
    profile_dirs: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()
    task_file: bytes = b""
    facts: tuple[tuple[str, str], ...] = ()
    continues: str = ""
    files: tuple[tuple[str, bytes], ...] = ()
    cwd: str = ""
    ask: float | None = None


def run(request: RunRequest, watcher: Watcher | None = None) -> Result:
    """Carry one request from question to recorded answer.

    Raises ProfileError, HostCannotEnforce, JournalError or GuardError when it cannot go on; nothing runs
    on after that. A refusal is no exception: it is in the Result.
    """
    with opened(request, watcher or Watcher()) as (here, plot):
        return carry(here, plot)


@contextlib.contextmanager
def opened(request: RunRequest, watcher: Watcher) -> Iterator[tuple[Run, Plot]]:
    """Open the journal of a run, and say what its first task is to do. Ends the journal on the way out."""
    make_room()
    sandbox = request.profile.sandbox
    workspace = survey(request.workspace, mode=sandbox.workspace, shown=sandbox.show)
    state = request.state_dir or state_dir()
    if not workspace.overlay and not workspace.read_only and (request.plan or "on-plan" in request.land):
        raise UsageError(
            f"a plan is bound to a copy-on-write workspace, and profile {request.profile.name} has it changed directly. "
            'Set sandbox.workspace = "overlay" in the profile, or leave out --plan and --land on-plan'
        )
    keep_out(
        workspace,
        {"the journals": state, "the layers": layers_base(state), "the runtime folder": runtime_base()},
    )
    engine, why = choose_engine(request.engine, request.profile)
    envelope = Envelope(profile=request.profile, trust=request.trust)
    node = Node(path=event.ROOT, envelope=envelope, argv=request.argv)
    plot = Plot(
        argv=request.argv, node=node, workspace=workspace, cwd=request.cwd or workspace.path, judged=request.judged,
        terminal=request.terminal, stdin=request.stdin, stdout=request.stdout, stderr=request.stderr,
        seconds=request.seconds, land=request.land, plan=request.plan, continues=request.continues,
        extra=(TASK_VARIABLE,) if request.task_file else (),
        files=(*request.files, *(((TASK_FILE, request.task_file),) if request.task_file else ())),
    )  # fmt: skip
    refuse_too_long(plot)
    approvals = _desk(request, watcher)
    tree = Tree(watcher.changed)
    facts = {
        "workspace": workspace.path, "engine": engine.name, "profile": request.profile.name, "began": time.time(),
    }  # fmt: skip
    with _journal(state) as journal, Control(journal.run, tree, facts, approvals):
        tree.plant(node)
        here = Run(
            journal=journal, engine=engine, engine_why=why, state=state, tree=tree, watcher=watcher,
            approvals=approvals, **_profiles(request, workspace.path),
        )  # fmt: skip
        journal.append(
            event.RUN_STARTED, command=request.argv, profile=request.profile.name, digest=request.profile.digest,
            source=request.profile.source, max_risk=request.profile.max_risk, workspace=workspace.path,
            engine=engine.name, engine_why=why, trust=request.trust.label, broker_pid=os.getpid(), user=os.getuid(),
            **trace.parent(os.environ), **dict(request.facts),
        )  # fmt: skip
        try:
            _sweep(here)
            yield here, plot
        except BrokerError as error:
            with contextlib.suppress(JournalError):
                journal.append(event.RUN_FINISHED, status="failed", reason=str(error), exit_code=error.exit_code)
            raise


def _desk(request: RunRequest, watcher: Watcher) -> ApprovalDesk | None:
    """Return where the questions of a run's own task wait, if anybody is to be asked."""
    if request.ask is None:
        return None
    if request.trust is not Trust.TRUSTED:
        raise UsageError("nobody is asked about what an untrusted task wants. Leave out --ask, or --trust untrusted")
    from broker.task.desk import ApprovalDesk

    desk = ApprovalDesk(request.ask, watcher.asked)
    if watcher.terminal is not None:
        watcher.terminal.begin(desk)
    return desk


def _profiles(request: RunRequest, workspace: str) -> dict[str, Any]:
    """Return how the profiles of sub-tasks are found: in the operator's folders, never in the workspace.

    Each is read once: what a name means does not change while a run goes on.
    """
    given = {profile.name: profile for profile in request.profiles}

    @functools.cache
    def find(name: str) -> Profile:
        from broker.profiles.load import load_profile

        if name in given:
            return given[name]
        return load_profile(name, profile_dirs=request.profile_dirs, workspace=workspace)

    @functools.cache
    def known() -> tuple[Profile, ...]:
        from broker.profiles.load import list_profiles

        found = list_profiles(profile_dirs=request.profile_dirs, workspace=workspace)
        return (*given.values(), *(one for one in found if isinstance(one, Profile) and one.name not in given))

    return {"profiles": find, "known": known}


def _sweep(here: Run) -> None:
    """Put in order what dead brokers left behind."""
    recovered = recover_landings(layers_base(here.state))
    if swept := [*here.engine.sweep(), *sweep_task_folders(runtime_base()), *sweep_control_sockets(), *recovered]:
        here.journal.append(event.SANDBOX_SWEPT, removed=swept)


def _environment(plot: Plot) -> tuple[str, ...]:
    return confinement.environment(
        plot.envelope.profile, read_only=plot.workspace.read_only, terminal=plot.terminal, extra=plot.extra
    )


def refuse_too_long(plot: Plot) -> None:
    """Say so before anything is made: the guard would refuse the start, and so would the kernel at 2 MiB."""
    size = sum(len(os.fsencode(word)) + 1 for word in (*plot.argv, *_environment(plot)))
    if size > MOST_WORDS:
        raise UsageError(
            f"the command is too long: {size} bytes with its environment, and at most {MOST_WORDS} can be judged. "
            "Pass long text in a file or on stdin"
        )


def carry(here: Run, plot: Plot) -> Result:
    """Make a task's sandbox, run its command there, and account for it. The run ends with its first task."""
    is_root = plot.node is here.tree.root
    with staged(here, plot) as stage:
        if is_root and here.watcher.started is not None:
            here.watcher.started(_header(stage))
        result = _command(stage)
        if is_root:
            here.journal.append(event.RUN_FINISHED, **result.summary())
    if is_root:
        here.tree.ended(plot.node, result.status)
    return result


def _header(stage: Stage) -> Header:
    here, plot = stage.run, stage.plot
    return Header(
        run=here.journal.run, profile=plot.envelope.profile, engine=here.engine.name, engine_why=here.engine_why,
        layers=stage.layers, workspace=plot.workspace, journal=here.journal.path, tree=here.tree,
    )  # fmt: skip


def _command(stage: Stage) -> Result:
    """Judge the command, start it, wait for it, account for it."""
    task, plot = stage.task, stage.plot
    if plot.node.stopped:  # while its sandbox was made: nothing starts for a task that is gone
        return _finish(stage, None, Ending(stopped=plot.node.stopped), None)
    operation = Exec(argv=plot.argv, cwd=stage.confined.context.cwd)
    if plot.judged:
        _, verdict = task.judge(operation)
        if isinstance(verdict, Deny):
            task.refuse("exec", verdict)
            return _finish(stage, None, Ending(), verdict)
        assert isinstance(verdict, Allow)
    else:
        verdict = task.operators_choice(operation)

    command = Command(argv=plot.argv, cwd=stage.confined.context.cwd, env=_environment(plot))
    stage.run.journal.append(event.SPAWN_STARTED, task=task.path, argv=plot.argv, terminal=plot.terminal)
    process, ending = _attend(stage, verdict, command)
    return _finish(stage, process, ending, None)


def _attend(stage: Stage, allowed: Allow, command: Command) -> tuple[Process, Ending]:
    """Start the command and stay with it until it ends or must be ended."""
    plot, sandbox, journal = stage.plot, stage.sandbox, stage.run.journal
    scope = 0 if plot.judged else OPERATOR_SCOPE
    seconds = _seconds(stage)
    at_terminal = stage.run.watcher.terminal if plot.node is stage.run.tree.root else None
    questions = at_terminal or NOBODY_ASKS
    with _watched(stage) as watched, signals_as_events() as signals:
        budget = watched.budget
        if plot.terminal:
            assert isinstance(plot.stdin, int)
            assert isinstance(plot.stdout, int)
            process = sandbox.spawn(allowed, command, scope=scope, terminal=terminal_size(plot.stdin))
            process.wait_started()
            ending = Ending()
            if stage.ways_out is not None:
                stage.ways_out.prepare()
            if process.failed is None:
                ending = serve_terminal(
                    sandbox, process, stdin=plot.stdin, stdout=plot.stdout, seconds=seconds,
                    wake=watched.wake, budget=budget, exceeded=watched.exceeded, signals=signals, questions=questions,
                )  # fmt: skip
            _end(stage)
        else:
            plan = stage.confined.plan
            turn = at_terminal.turn if at_terminal is not None else None
            streams = Streams(plot.stdin, plot.stdout, plot.stderr, budget, owner=(plan.uid, plan.gid), turn=turn)
            process = sandbox.spawn(allowed, command, streams.inside, scope=scope)
            streams.start()
            if stage.ways_out is not None:
                stage.ways_out.prepare()
            ending = wait_attached(
                sandbox, process, seconds=seconds, wake=watched.wake, budget=budget, exceeded=watched.exceeded,
                signals=signals, questions=questions,
            )  # fmt: skip
            stage.task.oom = sandbox.container.oom_killed()  # while the kernel's counter is still there
            _end(stage)
            streams.drain(DRAIN_SECONDS if ending.ours else None, signals)
            ending.output_lost = "; ".join(streams.problems)
    if process.exited is None and not ending.ours:
        ending.stopped = plot.node.stopped
    if process.exited is not None:
        cpu = (process.exited.user_us + process.exited.system_us) / 1e6
        watched.usage.cpu_seconds = max(watched.usage.cpu_seconds, cpu)
        watched.usage.peak_memory = max(watched.usage.peak_memory, process.exited.max_rss * 1024)
        plot.node.cpu_seconds = watched.usage.cpu_seconds
    if process.failed is not None:
        journal.append(
            event.SPAWN_FAILED, task=stage.task.path, error=os.strerror(process.failed.error), step=process.failed.step
        )
    elif process.exited is not None:
        journal.append(
            event.SPAWN_EXITED, task=stage.task.path, wait_status=process.exited.status, pid=process.pid,
            user_us=process.exited.user_us, system_us=process.exited.system_us, max_rss_kib=process.exited.max_rss,
        )  # fmt: skip
    _account(stage, watched.usage)
    return process, ending


def _seconds(stage: Stage) -> float | None:
    """Return how long the task may take: what its profile says, or less when it was asked for less."""
    limit, asked = stage.confined.plan.limits.seconds, stage.plot.seconds
    return asked if limit is None else min(limit, asked or limit)


def _account(stage: Stage, used: usage.Usage) -> None:
    stage.run.journal.append(event.USAGE_MEASURED, task=stage.task.path, samples=used.samples, **used.as_dict())
    stage.task.usage = used


@dataclass(slots=True)
class _Watched:
    """What is looked at while a task runs. `wake` becomes readable when `exceeded` has something to say."""

    wake: int
    budget: OutputBudget
    exceeded: Callable[[], str]
    usage: usage.Usage = field(default_factory=usage.Usage)


@contextlib.contextmanager
def _watched(stage: Stage) -> Iterator[_Watched]:
    """Watch what a task uses, and whether somebody wants it to end. Afterwards `usage` holds what was seen."""
    plot, sandbox, limits, journal = stage.plot, stage.sandbox, stage.confined.plan.limits, stage.run.journal
    node, tree = plot.node, stage.run.tree
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stage.descriptors += [wake_read, wake_write]

    def wake() -> None:
        with contextlib.suppress(OSError):
            os.write(wake_write, b"!")

    def seen(cpu_seconds: float, memory: int, processes: int) -> None:
        if over := tree.measured(node, cpu_seconds, memory, processes):
            with contextlib.suppress(JournalError):  # the next thing that happens will fail to be recorded
                journal.append(event.BUDGET_EXCEEDED, task=node.path, budget=over)

    watched_cap = None if getattr(sandbox.container, "limits_by", "docker") else limits.memory
    quota = None
    if stage.layer is not None:
        quota = usage.Quota(str(stage.layer.folder), plot.envelope.profile.sandbox.layer_size)
    watch = usage.UsageWatch(sandbox.container.init_pid, watched_cap, wake, quota, seen)
    watched = _Watched(wake_read, OutputBudget(limits.output, wake), lambda: node.stopped or watch.exceeded)

    def stop(_reason: str) -> None:
        sandbox.cut()  # by whoever ends a part of the tree: a hundred tasks must not wait for a turn to be ended
        wake()

    tree.running(node, stop)
    watch.start()
    try:
        yield watched
    finally:
        watched.usage = watch.stop()
        watched.usage.output_bytes = watched.budget.written


@contextlib.contextmanager
def session(request: RunRequest, watcher: Watcher | None = None) -> Iterator[Session]:
    """Open a task without a command of its own: its caller starts programs in it, until the context ends.

    Then its changes land like any other's, and `result` is there. `request.argv` names it in the record. Raises what
    `run` raises.
    """
    with opened(request, watcher or Watcher()) as (here, plot):
        with staged(here, plot) as stage:
            open_session = Session(stage)
            if here.watcher.started is not None:
                here.watcher.started(_header(stage))
            with _watched(stage) as watched:
                open_session.budget = watched.budget
                ender = threading.Thread(target=open_session.end_when_exceeded, args=(watched,), daemon=True)
                ender.start()
                try:
                    yield open_session
                finally:
                    open_session.over()
                    ender.join()
                    _end(stage)
            _account(stage, watched.usage)
            open_session.result = _finish(stage, None, open_session.ending, None)
            here.journal.append(event.RUN_FINISHED, **open_session.result.summary())
        here.tree.ended(plot.node, open_session.result.status)


class Session:
    """A task that is open for its caller's programs. `result` is there when the session is over.

    `budget` counts what they write, all together (sandbox.output).
    """

    budget: OutputBudget

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ending = Ending()
        self.result: Result | None = None
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def over(self) -> None:
        """It ends as it should."""
        os.eventfd_write(self._over, 1)

    def end_when_exceeded(self, watched: _Watched) -> None:
        """Kill everything when a limit or a budget says so, or somebody asks for it."""
        seconds = _seconds(self.stage)
        try:
            ready = readable([watched.wake, self._over], seconds)
            if self._over in ready:
                return
            over = watched.exceeded()
            self.ending.timed_out = not ready
            self.ending.output_exceeded = watched.budget.exceeded
            self.ending.memory_exceeded, self.ending.layer_exceeded = over == "memory", over == "layer"
            self.ending.stopped = over if over not in ("memory", "layer") else ""
            _end(self.stage)
        finally:
            if self._over not in ready:
                readable([self._over])
            os.close(self._over)


def _end(stage: Stage) -> None:
    """End every process of a task, and tell its sub-tasks to end: nobody is there any more to take their results.

    INVARIANT: none begins after that: in a task that ends, the tree makes no room for one (tests/task/test_tree.py).
    """
    tree, node = stage.run.tree, stage.plot.node
    tree.ending(node)
    tree.stop_below(node, "parent", seconds=0.0)
    stage.sandbox.kill()  # at once: what sub-tasks have changed may take a while to look at
    if stage.task.approvals is not None:
        stage.task.approvals.close()
    if stage.ways_out is not None:
        stage.ways_out.close()  # now, so that what was under way is accounted for before the task is
    tree.landing(node)


def _end_below(stage: Stage) -> None:
    """Wait until all sub-tasks have ended. What those have changed that were still at it is kept."""
    left = stage.run.tree.stop_below(stage.plot.node, "parent", seconds=STOP_SECONDS)
    if left:
        raise BrokerError(f"sub-tasks did not end within {STOP_SECONDS:.0f} s: {', '.join(left)}")


def _finish(stage: Stage, process: Process | None, ending: Ending, denial: Deny | None) -> Result:
    """Look for survivors, record how it ended, and say so."""
    task, sandbox, journal = stage.task, stage.sandbox, stage.run.journal
    _end(stage)
    _end_below(stage)
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
    if ending.stopped:
        journal.append(event.TASK_KILLED, task=task.path, reason=ending.stopped)
    sound = not lost and not ending.layer_exceeded and not ending.stopped
    gate = _gate(stage, sound=sound)
    changes = _settle(stage, gate, sound=sound)
    task.denials.finish()
    task.below.finish()
    common = {
        "engine": stage.run.engine.name, "layers": stage.layers, "journal": journal.path, "run": journal.run, "task": task,
        "changes": changes,
    }  # fmt: skip
    result = refused(denial, **common) if denial is not None else finished(process, ending, **common)
    if gate is not None and (why := gate.why_not(changes)):
        result = held_back(result, why)
    journal.append(event.TASK_FINISHED, task=task.path, **result.summary())
    diagnose(
        "task.finished", run=journal.run, task=task.path, status=result.status, exit_code=result.exit_code,
        denials=result.denied_count,
    )  # fmt: skip
    return result


def _gate(stage: Stage, *, sound: bool) -> Gate | None:
    """Return what the changes may land on, where that is more than the profile. None, and on-panel: they do not land.

    Who wants both, a plan that is done and a panel's pass, has the panel asked only about what the plan is done on.
    """
    convene, wanted = stage.run.watcher.convene, stage.plot.land.split("+")
    asked = "on-panel" in wanted and stage.layer is not None and not stage.layer.untouched()
    if "on-plan" in wanted:
        from broker.task.plan import PlanGate

        plan = PlanGate(stage.plan())
        if not asked or not plan.done:
            return plan
    if asked and convene is not None:
        return convene(stage) if sound and stage.sandbox.failure is None else None
    return None


def _settle(stage: Stage, gate: Gate | None, *, sound: bool) -> dict[str, Any]:
    """Land what the task changed, as far as its profile permits; nothing, if it did not end as it should."""
    if stage.layer is None:
        return {}
    land, ask = stage.plot.land, stage.run.watcher.land
    if gate is not None:
        land, ask = "ask", gate.may_land
    how = Settlement(
        land=land if sound and stage.sandbox.failure is None else "never", ask=ask,
        keep=tuple(broker_itself(stage.layer.manifest.workspace)), aliases=stage.plot.workspace.aliases,
    )  # fmt: skip
    return settle(stage.layer, stage.task, stage.run.journal, how)


@contextlib.contextmanager
def _journal(state: Path) -> Iterator[Journal]:
    journal = Journal.create(state)
    try:
        yield journal
    finally:
        journal.close()
