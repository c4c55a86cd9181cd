"""`AsyncBroker`: the same with `await`, for asyncio. Each call has a thread of its own.

In: what Broker takes. Out: what Broker returns. Who cancels a call that is under way ends the program, or the sub-task with
all below it; the cancellation goes on when nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from broker.api import calls, files, once
from broker.api.broker import Broker
from broker.api.calls import DelegateOptions, Given, Request, RunOptions
from broker.api.opened import Hear
from broker.api.plan import Plans, Steps
from broker.api.program import Output
from broker.api.settings import Command, Options
from broker.api.values import (
    Denial,
    Explanation,
    FileResult,
    Outcome,
    PlanStatus,
    ProfileInfo,
    RunResult,
    TaskInfo,
    Verdict,
)
from broker.decide.profile import Profile
from broker.stop import Stop

__all__ = ["AsyncBroker"]

T = TypeVar("T")


async def in_thread(work: Callable[[Stop], T]) -> T:
    """Do something on a thread of its own. A cancellation asks it to stop, and waits until it has.

    Not on the loop's executor: that has a handful of threads, and joins them at the exit, whatever they wait for.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    stop = Stop()

    def do() -> None:
        settle: Callable[[Any], None]
        answer: Any
        try:
            settle, answer = done.set_result, work(stop)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            settle, answer = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=do, name="broker-await", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        stop.ask()
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        done.exception()  # looked at, so that nobody complains that nobody did
        raise


class AsyncPlans:
    """The plan of a task: Plans with `await`, where every method is described."""

    def __init__(self, plans: Plans) -> None:
        """Take those."""
        self._plans = plans

    async def create(self, steps: Steps) -> PlanStatus:
        """Make the plan."""
        return await in_thread(lambda _stop: self._plans.create(steps))

    async def revise(self, steps: Steps) -> PlanStatus:
        """Replace the plan's steps."""
        return await in_thread(lambda _stop: self._plans.revise(steps))

    async def show(self) -> PlanStatus:
        """Return the plan as it is on the workspace as it is."""
        return await in_thread(lambda _stop: self._plans.show())

    async def begin(self, step: str) -> PlanStatus:
        """Begin a step."""
        return await in_thread(lambda _stop: self._plans.begin(step))

    async def check(self, step: str) -> PlanStatus:
        """Have the checks of a step run."""
        return await in_thread(lambda stop: self._plans.check(step, stop))

    async def complete(self, step: str) -> PlanStatus:
        """Say that a step is done."""
        return await in_thread(lambda _stop: self._plans.complete(step))

    async def waive(self, step: str, check: int, because: str) -> PlanStatus:
        """Let a check be."""
        return await in_thread(lambda _stop: self._plans.waive(step, check, because))


class AsyncBroker:
    """A task in a sandbox, open for commands and sub-tasks: Broker with `await`, where every method is described.

        async with AsyncBroker("builder") as b:
            tests = await b.run(["go", "test", "./..."], timeout=600)

    A cancelled call ends what it started. `on_denied`'s function is called by the loop.
    """

    def __init__(
        self, profile: str | Profile = "default", workspace: str | os.PathLike[str] = ".", **options: Unpack[Options]
    ) -> None:
        """Say what is to be opened; `async with`, or `open`, does it."""
        self._broker = Broker(profile, workspace, **options)

    async def open(self) -> Self:
        """Make the sandbox and prove it."""
        broker = self._broker

        def begin(stop: Stop) -> None:
            opened = broker._begin()
            broker._take(opened)
            stop.does(opened.drop)
            if stop.asked:
                opened.close("never")

        await in_thread(begin)
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close(land=error is None)

    async def close(self, *, land: bool = True) -> Outcome:
        """End the task: what runs is killed, and the changes that may land do. A cancellation waits until it is done."""
        return await in_thread(lambda _stop: self._broker.close(land=land))

    async def discard(self) -> Outcome:
        """End the task, and throw its changes away."""
        return await in_thread(lambda _stop: self._broker.discard())

    @property
    def result(self) -> Outcome:
        """How the task ended. Raises UsageError while it is open."""
        return self._broker.result

    @property
    def journal(self) -> Path:
        """The file of the run's record."""
        return self._broker.journal

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self._broker.run_id

    @property
    def engine(self) -> str:
        """What made the sandbox."""
        return self._broker.engine

    async def run(self, command: Command, **options: Unpack[RunOptions]) -> RunResult:
        """Run a program in the sandbox, to its end."""
        task, start = self._broker._task, calls.start_of(command, **options)
        return await in_thread(lambda stop: calls.run(task, start, stop))

    async def read_file(self, path: str | os.PathLike[str], *, offset: int = 0, most: int = files.MOST) -> FileResult:
        """Read a file as the task sees it, from inside."""
        task = self._broker._task
        return await in_thread(lambda stop: files.read_file(task, path, stop, offset=offset, most=most))

    async def write_file(
        self, path: str | os.PathLike[str], content: bytes | str, *, version: str = "", new: bool = False
    ) -> FileResult:
        """Write a whole file from inside, at once or not at all."""
        task = self._broker._task
        return await in_thread(lambda stop: files.write_file(task, path, content, stop, version=version, new=new))

    async def delegate(
        self, request: Request | None = None, *, profile: str = "", command: Command = (), cwd: str = "",
        input: Given = None, on_output: Output | None = None, **options: Unpack[DelegateOptions],
    ) -> Outcome:  # fmt: skip
        """Run a sub-task that may do less than this task, to its end."""
        task, wanted = self._broker._task, calls.wanted(request, profile, command, **options)
        return await in_thread(
            lambda stop: calls.delegate(task, wanted, stop, given=input, cwd=cwd, on_output=on_output)
        )

    async def delegate_many(self, requests: Sequence[Request]) -> tuple[Outcome, ...]:
        """Run several sub-tasks next to each other, eight at most at once, and return their outcomes in the same order."""
        task, wanted = self._broker._task, calls.requests_from(requests)
        return await in_thread(lambda stop: calls.delegate_many(task, wanted, stop))

    @property
    def plan(self) -> AsyncPlans:
        """The task's plan."""
        return AsyncPlans(self._broker.plan)

    async def can_i(self, command: Command | str) -> Verdict:
        """Say what would become of a command, or of a shell text."""
        return await in_thread(lambda _stop: self._broker.can_i(command))

    async def explain(self, text: str) -> Explanation:
        """Say how a shell text is understood, part by part."""
        return await in_thread(lambda _stop: self._broker.explain(text))

    async def profiles(self) -> tuple[ProfileInfo, ...]:
        """List the profiles that a sub-task may have."""
        return await in_thread(lambda _stop: self._broker.profiles())

    async def denials(self) -> tuple[Denial, ...]:
        """List what was refused so far."""
        return await in_thread(lambda _stop: self._broker.denials())

    async def tasks(self) -> tuple[TaskInfo, ...]:
        """List this task (root) and all sub-tasks."""
        return await in_thread(lambda _stop: self._broker.tasks())

    async def kill(self, task: str) -> tuple[str, ...]:
        """End a task and all below it."""
        return await in_thread(lambda _stop: self._broker.kill(task))

    def on_denied(self, hear: Hear) -> None:
        """Have a function told of each new denial, by the running loop."""
        loop = asyncio.get_running_loop()

        def tell(denial: Denial) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(hear, denial)

        self._broker.on_denied(tell)

    @staticmethod
    async def run_once(
        command: Command, profile: str | Profile = "default", workspace: str | os.PathLike[str] = ".", *,
        judged: bool = False, capture: bool = True, run: RunOptions | None = None, **options: Unpack[Options],
    ) -> Outcome:  # fmt: skip
        """Run one command in a sandbox of its own, as `broker run` does."""
        what = once.wanted(command, profile, workspace, judged, run, options)
        return await in_thread(lambda stop: once.run_once(what, stop, capture=capture))
