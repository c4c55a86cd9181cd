"""Step 3: an operator's profile, decoded and normalised.

`broker.profiles` makes these from files; nothing here reads one. A Profile is a value: everything that the
operator wrote and nothing of the machine it is used on.
"""

from __future__ import annotations

import shlex
from dataclasses import field

from broker.classify.risk import Risk
from broker.decide.agent import Agent
from broker.decide.gateway import Gateway
from broker.values import dataclass

# What a profile may name under `tools.disabled`. `shell` is enforced at the exec gate; the others are the
# tools that agents are served.
TOOLS = ("shell", "read_file", "write_file", "patch", "batch_patch", "delegate")

# What a profile may name under `requires`, in the order people read them. All of them by default.
LAYERS = ("network", "seccomp", "landlock", "exec_gate", "file_labels", "limits")

# What no ceiling and no entry includes by itself.
NEVER_IMPLIED = frozenset({Risk.UNKNOWN, Risk.BLOCKED})

MIB = 1 << 20
GIB = 1 << 30


def up_to(ceiling: Risk) -> frozenset[Risk]:
    """Return every class from safe to `ceiling`; unknown and blocked are never among them."""
    return frozenset(risk for risk in Risk if risk <= ceiling) - NEVER_IMPLIED


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowEntry:
    """One exact invocation. `effects` are what its descendants may have beyond what every grant gives.

    `cwd` is absolute, or relative to the workspace (None: anywhere in the workspace). `sha256` is the
    digest of the program's file, in lower-case hexadecimal digits.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    sha256: str | None = None
    effects: frozenset[Risk] = frozenset()

    @property
    def text(self) -> str:
        """The entry as a command line, quoted where it must be."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the task's environment gets: names passed in from the operator's, and values set."""

    passed: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """What the container is to be. Sizes in bytes, times in seconds, None: no limit of ours.

    `engine` is auto, docker or bubblewrap; `workspace` is overlay, direct or read-only. `read_only` are extra
    host paths to show; `show` are names of secret-looking files not to mask. `layer_size` is how much the changes
    of a task may take on disk.
    """

    engine: str = "auto"
    image: str = ""
    workspace: str = "overlay"
    read_only: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = 4096
    time: float | None = None
    tmp_size: int = 2 * GIB
    shm_size: int = GIB
    output: int | None = None
    layer_size: int = 10 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSettings:
    """How far a task may hand work on. Seconds, bytes, counts; None: no limit of ours.

    `profiles` are those that its children may have (None: any of the operator's). `agents` are programs (absolute paths)
    that may lead a child with any arguments; any other command of a child is judged. `depth` is how many levels there may
    be below it, `breadth` how many children it may have at once, `tasks` how many descendants in all. `cpu_time` and
    `time` are sums over all descendants, `memory` is what they may have together at once.
    """

    profiles: tuple[str, ...] | None = None
    agents: tuple[str, ...] = ()
    depth: int = 3
    breadth: int = 8
    tasks: int = 64
    cpu_time: float | None = None
    time: float | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """Whether the operator is asked about what an approval could permit, in place of a refusal; for the run's own task only.

    `ask`: a run on a terminal asks without being told to. `timeout` is how many seconds a question waits; then it is denied.
    `approver` is who may answer: operator, or client, which is whoever uses the tools over MCP, in the operator's place.
    """

    ask: bool = False
    timeout: float = 120.0
    approver: str = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named permission envelope. `effects` is the final set: the ceiling's classes, then add and remove.

    `denylist` holds token prefixes. `lands` are the rules of persistence that may land, in a copy-on-write
    workspace. `gateways` are the only ways out that a task has without reaching the network; `hosts` (`name:port`) are what
    it may reach through a proxy of the broker's. `agent` is what is known of the agent that it is meant for. `source` is the file it came from; `digest` is the SHA-256 of the content (not of the file's bytes),
    so that two spellings of one profile have one digest.
    """

    name: str
    description: str = ""
    max_risk: Risk = Risk.SAFE
    effects: frozenset[Risk] = frozenset({Risk.SAFE})
    allowlist: tuple[AllowEntry, ...] = ()
    denylist: tuple[tuple[str, ...], ...] = ()
    disabled_tools: frozenset[str] = frozenset()
    lands: frozenset[str] = frozenset()
    env: Environment = field(default_factory=Environment)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    delegate: DelegationSettings = field(default_factory=DelegationSettings)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    gateways: tuple[Gateway, ...] = ()
    hosts: tuple[str, ...] = ()
    agent: Agent | None = None
    requires: tuple[str, ...] = LAYERS
    source: str = ""
    digest: str = ""
