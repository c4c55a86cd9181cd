"""Step 4: from an envelope to a container's plan and the guard's setup.

In: the profile, the trust, the surveyed workspace. Out: a Plan (what the container is) and a Setup (what the
guard enforces). Everything a task may touch is decided in these two values, and nowhere else.
"""

from __future__ import annotations

import os

from broker.classify import WATCHED_ENV, WATCHED_NAMES
from broker.classify.context import Context
from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.gateway import environment_for, ports_for
from broker.decide.profile import Profile
from broker.enforce import wire
from broker.enforce.engine import Bind, Limits, Overlay, Plan, Tmpfs
from broker.enforce.limits import LEAST_MEMORY
from broker.enforce.mounts import is_below
from broker.enforce.runtime import runtime_bases
from broker.enforce.workspace import Workspace
from broker.errors import UsageError
from broker.values import dataclass

HOME = "/home/agent"
CLIENT_FOLDER = "/run/broker/bin"
PATH = f"{CLIENT_FOLDER}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
EXECUTABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/run/broker/guard", CLIENT_FOLDER)
QUIET = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx",
    "/dev/pts/ptmx", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/console",
)  # fmt: skip
ANSWER_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What a task is confined by."""

    plan: Plan
    setup: wire.Setup
    context: Context

    def starts(self, path: str) -> bool:
        """Whether the kernel lets a file at this path start: Landlock permits what any rule above it permits (landlock(7))."""
        return any("x" in rule.rights and is_below(path, rule.path) for rule in self.setup.landlock)


def confine(
    envelope: Envelope, workspace: Workspace, *, task: str, run_dir: str, engine: str, command: tuple[str, ...],
    overlays: tuple[Overlay, ...] = (), cwd: str = "", calls: bool = False,
) -> Confinement:
    """Derive the container and the guard's setup from what the envelope permits.

    `cwd` is where the command starts ('': the workspace). `calls`: what runs inside may call the broker.
    """
    profile = envelope.profile
    roots = (HOME, *SCRATCH, "/dev/pts")
    writable: tuple[str, ...] = roots if workspace.read_only else (workspace.path, *roots)
    if workspace.git_folder and workspace.git_labelled and not workspace.read_only:
        writable += (workspace.git_folder,)
    context = Context(
        cwd=cwd or workspace.path, home=HOME, workspace=workspace.path, scratch=SCRATCH,
        # The workspace also where it is read-only: its programs are the task's, not the system's.
        writable=tuple(dict.fromkeys((workspace.path, *writable))),
    )  # fmt: skip
    return Confinement(
        plan=_plan(profile, workspace, task, run_dir, overlays),
        setup=_setup(
            envelope, workspace, writable, executes_in_place=_starts_in(workspace.path, command), calls=calls,
            views=tuple(overlay.target for overlay in overlays if overlay.layer),
        ),
        context=context,
    )


def _plan(
    profile: Profile, workspace: Workspace, task: str, run_dir: str, overlays: tuple[Overlay, ...]
) -> Plan:
    wishes = profile.sandbox
    if wishes.memory is not None and wishes.memory < LEAST_MEMORY:
        raise UsageError(f"profile {profile.name} gives {wishes.memory} bytes of memory: nothing starts in so little. Give it 16M or more")
    for path in wishes.read_only:
        if not os.path.exists(path):
            raise UsageError(f"profile {profile.name} shows {path}, which does not exist")
        _refuse_runtime(profile.name, path)
    shown = [Bind(source=os.path.realpath(path), target=path) for path in wishes.read_only]
    # Later binds lie over earlier ones: what is shown of the workspace itself must not be covered by it.
    inner = [bind for bind in shown if is_below(bind.target, workspace.path)]
    home = profile.agent.home if profile.agent is not None else ""
    if home:
        _refuse_runtime(profile.name, home)
    kept = (Bind(source=home, target=HOME, read_only=False),) if home else ()
    return Plan(
        task=task, uid=workspace.uid, gid=workspace.gid, workspace=workspace.path, home=HOME,
        binds=(*(bind for bind in shown if bind not in inner), *kept, *workspace.binds(), *inner),
        tmpfs=(
            Tmpfs(target="/tmp", size=wishes.tmp_size),
            *(() if kept else (Tmpfs(target=HOME, size=wishes.tmp_size, mode=0o755),)),
        ),
        overlays=overlays, masked=workspace.masked,
        limits=Limits(
            memory=wishes.memory, cpus=wishes.cpus, pids=wishes.pids, seconds=wishes.time, output=wishes.output
        ),
        shm_size=wishes.shm_size, image=wishes.image,
        labels=(("broker.profile", profile.digest),),
        guard=os.path.join(run_dir, "guard"), run_dir=run_dir,
    )  # fmt: skip


def _refuse_runtime(profile: str, path: str) -> None:
    """Keep the control sockets of all runs out of reach: a read-only view of a socket is no hindrance to connect to it."""
    real = os.path.realpath(path)
    for base in map(os.path.realpath, runtime_bases()):
        if os.path.exists(base) and (is_below(base, real) or is_below(real, base)):
            raise UsageError(f"profile {profile} shows {path}, and broker's own running folder ({base}) with it. Name what the task needs")


def _setup(
    envelope: Envelope, workspace: Workspace, writable: tuple[str, ...], *, executes_in_place: bool, calls: bool,
    views: tuple[str, ...],
) -> wire.Setup:
    profile = envelope.profile
    runs_own_code = Risk.CODE_EXECUTION in envelope.effects or bool(profile.allowlist) or executes_in_place
    x = "x" if runs_own_code else ""
    rules = [wire.LandlockRule(rights="r", path="/")]
    rules += [wire.LandlockRule(rights="rx", path=path) for path in (*EXECUTABLE, *profile.sandbox.read_only)]
    rules.append(wire.LandlockRule(rights="rwd", path="/dev"))
    for path in writable:
        rules.append(wire.LandlockRule(rights=f"rwc{x}", path=path))
    if workspace.read_only and runs_own_code:
        rules.append(wire.LandlockRule(rights="rx", path=workspace.path))
    optional = "landlock" not in profile.requires
    flags = wire.SetupFlag.SELF_TEST | wire.SetupFlag.FILE_CHANGES
    if calls:
        flags |= wire.SetupFlag.CALLS
    if optional:
        flags |= wire.SetupFlag.NO_LANDLOCK_IS_ACCEPTABLE
    return wire.Setup(
        flags=flags, answer_timeout_ms=ANSWER_TIMEOUT_MS, live_limit=profile.sandbox.pids or 0, nofile=65_536,
        landlock=tuple(rules), writable_roots=_labelled_roots(workspace, writable), quiet_paths=QUIET, watched_names=WATCHED_NAMES,
        watched_env=WATCHED_ENV, selftest_exec="/bin/true", selftest_write="/usr/.broker-self-test", views=views,
        ports=ports_for(profile.gateways, profile.hosts),
    )  # fmt: skip


def _labelled_roots(workspace: Workspace, writable: tuple[str, ...]) -> tuple[str, ...]:
    """Return the roots below which names are watched. A root's own name is not: `.git` must lie below one."""
    return tuple(workspace.git_labelled if root == workspace.git_folder else root for root in writable)


def _starts_in(workspace: str, command: tuple[str, ...]) -> bool:
    """Whether the operator's own command is a program of the workspace: then it must be executable there."""
    if not command or "/" not in command[0]:
        return False
    return os.path.realpath(os.path.join(workspace, command[0])).startswith(workspace + "/")


def environment(
    profile: Profile, *, read_only: bool, terminal: bool, extra: tuple[tuple[str, str], ...] = ()
) -> tuple[str, ...]:
    """Return the whole environment of a task: fixed names, what the profile passes in and sets, its ways out, and `extra`."""
    values = {
        "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash", "PATH": PATH,
        "TMPDIR": "/tmp", "LANG": "C.UTF-8",
        "BROKER_DENIALS": "/run/broker/denials.jsonl",
    }  # fmt: skip
    if read_only:
        values["GIT_OPTIONAL_LOCKS"] = "0"  # git status would try, and fail, to refresh its index
    if terminal:
        for name in ("TERM", "COLORTERM"):
            if name in os.environ:
                values[name] = os.environ[name]
    for name in profile.env.passed:
        if name in os.environ:
            values[name] = os.environ[name]
    values |= dict(profile.env.set) | dict(environment_for(profile.gateways, profile.hosts)) | dict(extra)
    return tuple(f"{name}={value}" for name, value in values.items())
