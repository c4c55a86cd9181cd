"""A sandbox as a framework wants one: made for a piece of work, and gone after it. What all of them have in common.

In: settings of the operator's. Out: an open task. Without a workspace it has an empty one of its own; with one, the folder
is seen copy-on-write, so that any number of sandboxes start from the same files. What they change is thrown away, unless
the operator says that it is to land.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple

from broker.api import calls, files
from broker.api.broker import Broker
from broker.api.opened import Opened
from broker.api.values import FileResult, Outcome, RunResult
from broker.decide.profile import Profile
from broker.errors import UsageError
from broker.stop import Stop
from broker.supervisor import MOST_WORDS

__all__ = ["Place", "Settings", "error_of", "profile_of"]

# What ended the whole sandbox, and not one program of it: a limit of the profile, or the loss of a layer.
OVER = frozenset({"memory", "killed", "output", "layer", "budget"})


class Settings(NamedTuple):
    """What the operator says of a sandbox. `profile`: a name, a file of one (PATH or PATH:NAME), or a profile made in code."""

    profile: str | Profile = "default"
    workspace: str | os.PathLike[str] | None = None
    land: bool = False
    engine: Literal["auto", "docker", "bubblewrap"] = "auto"
    image: str = ""
    trust: Literal["trusted", "untrusted"] = "trusted"
    profile_dirs: Sequence[str | os.PathLike[str]] = ()
    state_dir: str | os.PathLike[str] | None = None


class Place:
    """An open sandbox. Safe to use from several threads."""

    def __init__(self, settings: Settings, stop: Stop | None = None) -> None:
        """Open it. Raises BrokerError where there can be none. `stop` ends it again, if nobody wants it by then."""
        self._own = tempfile.mkdtemp(prefix="broker-") if settings.workspace is None else ""
        self._land = settings.land and not self._own
        self._ending = threading.Lock()
        self._ended: Outcome | None = None
        try:
            self.broker = _broker(settings, self._own or os.fspath(settings.workspace or "")).open()
        except BaseException:
            self._remove()
            raise
        if stop is not None:
            stop.does(self.task.drop)
            if stop.asked:
                self.close(land=False)

    @property
    def task(self) -> Opened:
        """The task that is open in it."""
        return self.broker._task

    def run(
        self, argv: Sequence[str], stop: Stop | None = None, *, cwd: str = "", env: dict[str, str] | None = None,
        given: bytes | str | None = None, seconds: float | None = None, keep: int = 1 << 20,
    ) -> RunResult:  # fmt: skip
        """Run a program to its end. Raises OSError (E2BIG) for a command that is too long to be judged, and BrokerError."""
        if (size := sum(len(os.fsencode(word)) + 1 for word in argv)) > MOST_WORDS:
            raise OSError(errno.E2BIG, f"the command has {size} bytes, and at most {MOST_WORDS} can be judged. Pass long text on stdin")
        start = calls.start_of(argv, cwd=cwd, env=env, input=given, timeout=seconds, keep=keep)
        return calls.run(self.task, start, stop or Stop())

    def read(self, path: str, stop: Stop | None = None, *, most: int = files.MOST) -> FileResult:
        """Read a file as the task sees it."""
        return files.read_file(self.task, path, stop or Stop(), most=most)

    def write(self, path: str, content: bytes | str, stop: Stop | None = None, *, new: bool = False) -> FileResult:
        """Write a whole file, with the folders above it. `new`: only if there is none."""
        return files.write_file(self.task, path, content, stop or Stop(), new=new)

    def close(self, *, land: bool = True) -> Outcome:
        """End it: its changes land if the settings say so and `land` does, and are thrown away otherwise. Twice is once."""
        with self._ending:
            if self._ended is None:
                try:
                    self._ended = self.broker.close() if land and self._land else self.broker.discard()
                finally:
                    self._remove()
            return self._ended

    def _remove(self) -> None:
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)


def profile_of(settings: Settings) -> Profile:
    """Return the profile that the settings name. Raises ProfileError."""
    if isinstance(settings.profile, Profile):
        return settings.profile
    from broker.profiles.load import load_any

    return load_any(
        settings.profile, profile_dirs=[os.fspath(one) for one in settings.profile_dirs],
        workspace=os.path.abspath(settings.workspace) if settings.workspace is not None else None,
    )  # fmt: skip


def _broker(settings: Settings, workspace: str) -> Broker:
    if not os.path.isdir(workspace):
        raise UsageError(f"the workspace {workspace} is no folder that is there. Make it, or leave it out for an empty one")
    return Broker(
        profile_of(settings), workspace, engine=settings.engine, image=settings.image, trust=settings.trust,
        land="auto" if settings.land else "never", profile_dirs=settings.profile_dirs, state_dir=settings.state_dir,
    )  # fmt: skip


def error_of(result: FileResult, path: str) -> OSError | None:
    """Return the system's word for what went wrong with a file, None if nothing did. `path` is what the caller called it."""
    match result.status:
        case "ok":
            return None
        case "not_found":
            return FileNotFoundError(errno.ENOENT, "No such file", path)
        case "denied":
            hint = f" {result.denial.hint}" if result.denial and result.denial.hint else ""
            return PermissionError(errno.EACCES, f"denied: {result.reason}{hint}", path)
        case "not_permitted":
            return PermissionError(errno.EACCES, "Permission denied", path)
        case "timeout":
            return TimeoutError(errno.ETIMEDOUT, result.reason, path)
        case _ if result.reason.endswith(": it is a folder"):
            return IsADirectoryError(errno.EISDIR, "Is a directory", path)
        case _ if result.reason.endswith(": Not a directory"):
            return NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        case _:
            return OSError(errno.EIO, result.reason, path)
