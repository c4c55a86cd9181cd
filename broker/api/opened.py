"""A task that is open: a session of the supervisor on a thread of its own, from `open` to the end of its landing.

In: a request. Out: the session for whoever calls, and its result. The thread is why a forgotten Broker can end itself: what
the garbage collector calls, in whatever thread and in the middle of anything, only says so and waits for nothing.

INVARIANT: a process that was forked off does nothing to the task, and keeps nothing of it alive (tests/api/test_lifetime.py).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from broker.api.landing import Asked
from broker.api.settings import Land
from broker.api.stop import wait_for
from broker.api.values import Denial, Outcome, outcome_of
from broker.decide.envelope import Envelope
from broker.decide.verdict import Deny
from broker.errors import UsageError
from broker.record import event
from broker.serve.inside import answer, ways_out
from broker.stop import Stop
from broker.supervisor import Header, RunRequest, Session, Watcher, session
from broker.task.result import Result

T = TypeVar("T")
END_SECONDS = 60.0  # for an end at the interpreter's exit; a task is killed in milliseconds, a landing may take longer
Hear = Callable[[Denial], object]

_open: set[Opened] = set()


class Opened:
    """A task that is open. Safe to use from several threads."""

    header: Header
    session: Session

    def __init__(self, request: RunRequest, land: Land) -> None:
        """Open it, and return when its sandbox is proven. Raises what `supervisor.session` raises."""
        self.pid = os.getpid()
        self.result: Outcome | None = None
        self._request, self._asked = request, Asked(land)
        self._error: BaseException | None = None
        self._lock = threading.Condition()
        self._closing = False
        self._calls: set[Stop] = set()
        self._ready, self._over = threading.Event(), threading.Event()
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._hearers: list[Hear] = []
        self._denied: queue.SimpleQueue[Denial | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None
        _open.add(self)
        threading.Thread(target=self._live, name="broker-session", daemon=True).start()
        try:
            wait_for(self._ready.wait, self._ready.is_set)
        except BaseException:  # Ctrl-C: it opens, finds that nobody wants it, and closes
            self._orders.put("never")
            raise
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        watcher = Watcher(
            started=self._started, denied=self._refused, called=answer, ways_out=ways_out,
            land=lambda judged: self._asked.may_land(judged, self.header.workspace),
        )  # fmt: skip
        try:
            with session(self._request, watcher) as self.session:
                self._ready.set()
                land = self._orders.get()
                self._end_calls()
                stage = self.session.stage
                stage.plot = replace(stage.plot, land=land or stage.plot.land)
            result = self.session.result
            assert result is not None
            self.result = root_outcome(result, stage.plot.envelope)
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self._error = error
        finally:
            self._denied.put(None)
            _open.discard(self)
            self._ready.set()
            self._over.set()

    def _started(self, header: Header) -> None:
        self.header = header

    # What is called while it is open

    @contextlib.contextmanager
    def call(self, stop: Stop | None = None) -> Iterator[Session]:
        """Use the session. `stop` is asked to stop when the task is closed meanwhile. Raises UsageError when it is over."""
        self.refuse_fork()
        stop = stop or Stop()
        with self._lock:
            if self._closing:
                raise UsageError("this Broker is closed. Open another one")
            self._calls.add(stop)
        try:
            yield self.session
        finally:
            with self._lock:
                self._calls.discard(stop)
                self._lock.notify_all()

    def refuse_fork(self) -> None:
        """Raise UsageError in a process that was forked off."""
        if os.getpid() != self.pid:
            raise UsageError(
                f"this Broker was opened by process {self.pid}, and this is {os.getpid()}, forked off later. "
                "Open one here, or start processes before it is opened"
            )

    def _end_calls(self) -> None:
        """Stop what is under way, and let it return: its record comes before the end of the task's."""
        with self._lock:
            self._closing = True
            calls = list(self._calls)
        for stop in calls:
            stop.ask()
        with self._lock:
            self._lock.wait_for(lambda: not self._calls, END_SECONDS)

    # Denials, live

    def hear(self, hear: Hear) -> None:
        """Have a function told of each new denial, on a thread for that."""
        with self._lock:
            self._hearers.append(hear)
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, name="broker-denials", daemon=True)
                self._teller.start()

    def _refused(self, path: str, tool: str, denial: Deny) -> None:
        if not self._hearers:
            return
        told = Denial(
            task=path, tool=tool, what=denial.what, risk=denial.risk.label, effects=tuple(event.labels(denial.effects)),
            reason=denial.reason, rule=denial.rule, layer=denial.layer.value, hint=denial.hint, approvable=denial.approvable,
        )  # fmt: skip
        self._denied.put(told)

    def _tell(self) -> None:
        while (denial := self._denied.get()) is not None:
            for hear in list(self._hearers):
                try:
                    hear(denial)
                except Exception as error:  # noqa: BLE001 - it is the caller's own, and must not hide the next denial
                    told = (type(error), error, error.__traceback__, threading.current_thread())
                    threading.excepthook(threading.ExceptHookArgs(told))

    # The end

    def close(self, land: str = "") -> Outcome:
        """End the task and land its changes. `land` of never keeps them all. A second time returns the same result.

        Raises what went wrong at the end: JournalError when it cannot be recorded, for example.
        """
        self.refuse_fork()
        self._orders.put(land)
        wait_for(self._over.wait, self._over.is_set)
        if self._teller is not None and self._teller is not threading.current_thread():
            self._teller.join()
        result = self.outcome()
        self._asked.check()
        return result

    def outcome(self) -> Outcome:
        """Return the result. Raises UsageError while there is none, and what went wrong at the end."""
        if self._error is not None:
            raise self._error
        if self.result is None:
            raise UsageError("the task is not over: its result is there when the Broker is closed")
        return self.result

    def drop(self) -> None:
        """Have it ended, with its changes kept, and wait for nothing."""
        self._orders.put("never")

    def forget(self) -> None:
        """Nobody has it any more: have it ended. Called by the garbage collector, so it waits for nothing."""
        if self in _open and os.getpid() == self.pid:
            self.drop()
            warnings.warn(_FORGOTTEN, ResourceWarning, stacklevel=2)

    def end_at_exit(self) -> None:
        """The interpreter ends: wait until nothing of the task is left."""
        if os.getpid() == self.pid:
            self.drop()
            self._over.wait(END_SECONDS)


_FORGOTTEN = "a Broker was never closed: its sandbox is ended, and its changes are kept, not landed. Use `with Broker(...)`"


@atexit.register
def _end_all() -> None:
    left = [one for one in list(_open) if one.pid == os.getpid()]
    for one in left:
        one.end_at_exit()
    if left:
        warnings.warn(_FORGOTTEN, ResourceWarning, stacklevel=1)


def root_outcome(result: Result, envelope: Envelope, **more: Any) -> Outcome:
    """Return the result of a run's own task as a value."""
    return outcome_of(
        result.as_dict(), profile=envelope.profile.name, trust=envelope.effective_trust.label,
        max_risk=envelope.profile.max_risk.label, effects=tuple(event.labels(envelope.effects)), **more,
    )  # fmt: skip


def attended(work: Callable[[], T], stop: Stop) -> T:
    """Do something on a thread of its own, and return what it returns. Ctrl-C asks it to stop, and waits until it has.

    The supervisor forwards the signals of the main thread to what it runs, which is right for a command line only.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def do() -> None:
        try:
            answers.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            answers.put((None, error))

    thread = threading.Thread(target=do, name="broker-call", daemon=True)
    try:
        thread.start()
        wait_for(thread.join, lambda: not thread.is_alive())
    except BaseException:
        stop.ask()
        if thread.is_alive():
            thread.join()
        raise
    value, error = answers.get()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]

