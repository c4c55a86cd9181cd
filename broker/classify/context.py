"""Everything outside the operation that the classifier may know. It is recorded with each event."""

from __future__ import annotations

from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where an operation happens. All paths are absolute and as seen inside the sandbox.

    `scratch` are the task's own temporary places (they vanish with it); `writable` are all roots the
    task can write to, the workspace and scratch included. `symlinks` maps known links to their targets.
    """

    cwd: str
    home: str
    workspace: str
    scratch: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm")
    writable: tuple[str, ...] = ()
    symlinks: tuple[tuple[str, str], ...] = ()
    dialect: str = "bash"

    @property
    def writable_roots(self) -> tuple[str, ...]:
        """Every root the task can write to."""
        return self.writable or (self.workspace, self.home, *self.scratch)
