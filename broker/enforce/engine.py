"""What an engine is: it turns a Plan into a running container with the guard as process 1.

A Plan says everything that both engines must make true. An engine adds nothing of its own to what the
task may do; it only differs in where the system directories come from (an image, or the host's own).
"""

from __future__ import annotations

import socket
from dataclasses import field
from typing import Protocol

from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path (file or folder) shown at `target`. Later binds lie over earlier ones."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A host folder shown at `target` copy-on-write: every change goes into `layer`/upper, none to `lower`.

    `layer` holds the folders `upper` and `work`, on one file system; '' is none, and the view is read-only. `between`
    are folders with the changes of ancestor tasks, which lie over `lower`, topmost first. Overlays lie below every bind
    and mask.
    """

    lower: str
    target: str
    layer: str
    between: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tmpfs:
    """Temporary space of at most `size` bytes, owned by the task's user."""

    target: str
    size: int
    mode: int = 0o1777


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a task may use. Bytes, counts, seconds; None: no limit of ours."""

    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    seconds: float | None = None
    output: int | None = None
    nofile: int = 65_536
    file_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The container of one task, engine-neutral.

    `masked` are paths shown as empty read-only files (secrets). `home` is a Tmpfs target too. `guard` is
    the host path of the guard's binary, shown at /run/broker/guard. `run_dir` is a host folder private to
    the task, shown read-only at /run/broker; the broker writes `denials.jsonl` into it.
    """

    task: str
    uid: int
    gid: int
    workspace: str
    home: str
    binds: tuple[Bind, ...]
    tmpfs: tuple[Tmpfs, ...]
    overlays: tuple[Overlay, ...] = ()
    masked: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    shm_size: int = 1 << 30
    image: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    guard: str = ""
    run_dir: str = ""


class Container(Protocol):
    """A running container: the guard answers on `link`, nothing else runs in it yet."""

    link: socket.socket
    init_pid: int  # the guard's pid, as the host sees it
    overlay_words: tuple[tuple[str, str, str], ...]  # (lowers, upper, work) as each overlay of the plan was mounted with

    def kill(self) -> None:
        """End everything inside, now. Returns when the guard is gone. May be called twice."""

    def oom_killed(self) -> bool:
        """Whether the kernel killed something inside for memory. Valid until `remove`."""

    def remove(self) -> None:
        """Remove what the engine made on the host (container, cgroup, socket file). May be called twice."""


class Engine(Protocol):
    """Makes containers. `name` is what people write after --engine."""

    name: str

    def unavailable(self, image: str = "") -> str | None:
        """Return None if this engine can serve here, or one sentence: what is missing, and the remedy."""

    def start(self, plan: Plan) -> Container:
        """Start the container. Raises HostCannotEnforce when the host lacks something."""

    def sweep(self) -> list[str]:
        """Remove what a dead broker left behind. Returns one line for each thing removed."""
