"""`Broker`: a sandbox that stays open while a program of the operator's uses it.

In: a profile, a workspace, and commands. Out: values (broker.api.values). Whoever calls this is the operator: what is given
here (a profile made in code, trust, engine) counts as much as the command line's. What runs inside has no part in it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from broker.api import calls, files, once, questions
from broker.api.calls import DelegateOptions, Given, Request, RunOptions
from broker.api.opened import Hear, Opened
from broker.api.plan import Plans
from broker.api.program import Output
from broker.api.settings import Command, Options, request_for
from broker.api.values import (
    Denial,
    Explanation,
    FileResult,
    Outcome,
    ProfileInfo,
    RunResult,
    TaskInfo,
    Verdict,
)
from broker.decide.profile import Profile
from broker.errors import UsageError
from broker.stop import Stop

__all__ = ["Broker"]


class Broker:
    """A task in a sandbox, open for commands and sub-tasks. Leaving the context lands its changes.

        with Broker("builder", workspace=".") as b:
            tests = b.run(["go", "test", "./..."])
            print(tests.exit_code, tests.stdout, tests.denials)
        print(b.result.changes.landed)

    An exception that leaves the context keeps the changes instead (`broker diff`, `land`, `discard`). What is refused is a
    value; exceptions are BrokerError. Safe to use from several threads, and next to other Brokers; not across a fork.
    """

    def __init__(
        self, profile: str | Profile = "default", workspace: str | os.PathLike[str] = ".", **options: Unpack[Options]
    ) -> None:
        """Say what is to be opened; `open`, or `with`, does it.

        `profile` is a name, or what define_profile returns. Raises UsageError and ProfileError.
        """
        self._request = request_for(("python", *sys.argv[:1]), profile, workspace, **options)
        self._land = options.get("land", "auto")
        self._opened: Opened | None = None

    def open(self) -> Self:
        """Make the sandbox and prove it. Raises HostCannotEnforce, JournalError or GuardError when there can be none."""
        self._take(self._begin())
        return self

    def _begin(self) -> Opened:
        if self._opened is not None:
            raise UsageError("this Broker has been opened already. Make another one")
        return Opened(self._request, self._land)

    def _take(self, opened: Opened) -> None:
        self._opened = opened
        weakref.finalize(self, opened.forget).atexit = False  # at the exit all are ended, and waited for (opened.py)

    @property
    def _task(self) -> Opened:
        if self._opened is None:
            raise UsageError("this Broker is not open. Use it in a `with` statement, or call open()")
        return self._opened

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(land=error is None)

    def close(self, *, land: bool = True) -> Outcome:
        """End the task: what runs is killed, and the changes that may land do (without `land`: all are kept).

        Returns `result`; a second time, the same. Raises JournalError when the end cannot be recorded: nothing lands then.
        """
        return self._task.close("" if land else "never")

    def discard(self) -> Outcome:
        """End the task, and throw its changes away."""
        return calls.discard(self._task)

    @property
    def result(self) -> Outcome:
        """How the task ended: changes, usage, denials, the journal's path. Raises UsageError while it is open."""
        return self._task.outcome()

    @property
    def journal(self) -> Path:
        """The file of the run's record; its name is the run's."""
        return self._task.header.journal

    @property
    def run_id(self) -> str:
        """The run's name, for `broker events`, `diff` and `tasks`."""
        return self._task.header.run

    @property
    def engine(self) -> str:
        """What made the sandbox: docker or bubblewrap."""
        return self._task.header.engine

    def run(self, command: Command, **options: Unpack[RunOptions]) -> RunResult:
        """Run a program in the sandbox, to its end; it is judged like any other (`broker exec`).

        What it leaves running in the background is ended with it. Options: see RunOptions.
        """
        return calls.run(self._task, calls.start_of(command, **options), Stop())

    def read_file(self, path: str | os.PathLike[str], *, offset: int = 0, most: int = files.MOST) -> FileResult:
        """Read a file as the task sees it, from inside; a relative path is below the workspace. Of it `most` bytes (64 MiB)."""
        return files.read_file(self._task, path, Stop(), offset=offset, most=most)

    def write_file(
        self, path: str | os.PathLike[str], content: bytes | str, *, version: str = "", new: bool = False
    ) -> FileResult:
        """Write a whole file from inside, at once or not at all, with the folders above it.

        `version`, from read_file: only while it is still that file. `new`: only if there is none.
        """
        return files.write_file(self._task, path, content, Stop(), version=version, new=new)

    def delegate(
        self, request: Request | None = None, *, profile: str = "", command: Command = (), cwd: str = "",
        input: Given = None, on_output: Output | None = None, **options: Unpack[DelegateOptions],
    ) -> Outcome:  # fmt: skip
        """Run a sub-task that may do less than this task, to its end: its permitted changes land in this task's view.

        Either `profile` and `command` say what (options: see DelegateOptions), or a `request` does: the path of a task file,
        or its content. `cwd`, `input` and `on_output` are as for `run`.
        """
        wanted = calls.wanted(request, profile, command, **options)
        return calls.delegate(self._task, wanted, Stop(), given=input, cwd=cwd, on_output=on_output)

    def delegate_many(self, requests: Sequence[Request]) -> tuple[Outcome, ...]:
        """Run several sub-tasks next to each other, eight at most at once, and return their outcomes in the same order."""
        return calls.delegate_many(self._task, calls.requests_from(requests), Stop())

    @property
    def plan(self) -> Plans:
        """The task's plan: create it, begin a step, have its checks run. What is made here is the operator's."""
        return Plans(self._task)

    def can_i(self, command: Command | str) -> Verdict:
        """Say what would become of a command, or of a shell text. Nothing runs, and nothing is recorded."""
        return questions.can_i(self._task, command)

    def explain(self, text: str) -> Explanation:
        """Say how a shell text is understood, part by part, and what the task may do of it."""
        return questions.explain(self._task, text)

    def profiles(self) -> tuple[ProfileInfo, ...]:
        """List the profiles that a sub-task may have, and what is left of each below this task."""
        return questions.profiles(self._task)

    def denials(self) -> tuple[Denial, ...]:
        """List what was refused so far, in the task and in its sub-tasks."""
        return questions.denials(self._task)

    def tasks(self) -> tuple[TaskInfo, ...]:
        """List this task (root) and all sub-tasks, parents first."""
        return questions.tasks(self._task)

    def kill(self, task: str) -> tuple[str, ...]:
        """End a task (root/1 …) and all below it. Returns the paths of those that ran."""
        return questions.kill(self._task, task)

    def on_denied(self, hear: Hear) -> None:
        """Have a function told of each new denial, here and in sub-tasks, when it happens; on a thread for that."""
        self._task.refuse_fork()
        self._task.hear(hear)

    @staticmethod
    def run_once(
        command: Command, profile: str | Profile = "default", workspace: str | os.PathLike[str] = ".", *,
        judged: bool = False, capture: bool = True, run: RunOptions | None = None, **options: Unpack[Options],
    ) -> Outcome:  # fmt: skip
        """Run one command in a sandbox of its own, as `broker run` does (with `judged`, as `broker exec`).

        The command itself is the operator's own choice, and what it starts is judged. Without `capture` it has this
        process's stdin, stdout and stderr. `run` says how (RunOptions).
        """
        return once.run_once(once.wanted(command, profile, workspace, judged, run, options), Stop(), capture=capture)
