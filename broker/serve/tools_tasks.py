"""The tools that delegate: up to eight sub-tasks at once, waited for or not, and their results.

A sub-task belongs to the client that asked for it: when the client is gone, it is ended, as with `broker delegate`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import field
from typing import Any

from broker.delegation import Assignment, delegate, left_of
from broker.errors import JournalError
from broker.request.delegation import RequestRefused, TaskRequest, request_of
from broker.serve.tools_inside import Call, Problem, Workplace
from broker.task.outcome import MOST_BYTES, capped
from broker.values import dataclass

MOST_TASKS = 8
KEPT = 32  # results of ended sub-tasks that can still be asked for
END_SECONDS = 30.0
LOOK_SECONDS = 0.2  # how soon a cancelled wait is noticed


@dataclass(slots=True, eq=False)
class Delegated:
    """One sub-task of a client: its place in the tree ('' before it has one), and its outcome when it has ended."""

    request: TaskRequest
    path: str = ""
    outcome: dict[str, Any] | None = None
    error: Exception | None = None
    placed: threading.Event = field(default_factory=threading.Event)  # it has a place, or is refused one
    over: threading.Event = field(default_factory=threading.Event)


class Delegations:
    """The sub-tasks of one client."""

    def __init__(self, here: Workplace) -> None:
        self._here = here
        self._lock = threading.Lock()
        self._known: dict[str, Delegated] = {}
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def delegate_tasks(self, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
        """Start all of them; return their outcomes, or at once where they are found."""
        wait = args.get("wait", True)
        requests = []
        for number, asked in enumerate(args["tasks"]):
            try:
                requests.append(request_of(asked))
            except RequestRefused as error:
                return Problem(code="invalid", message=f"tasks[{number}].{error}")
        started = [self._start(request, call if wait else None) for request in requests]
        if wait:
            for number, one in enumerate(started):
                call.note = f"{number} of {len(started)} sub-tasks ended"
                one.over.wait()
        for one in started:
            one.placed.wait()
        if call.asked and wait:
            return Problem(code="cancelled", message="the call was cancelled, and the sub-tasks were ended")
        rows = [self._row(one, len(started)) for one in started]
        refused = [row for row in rows if not row["task"]]
        if len(refused) == len(rows) and (first := refused[0])["denials"]:
            problem = self._here.refusal(first["denials"][0])
            return Problem(code=problem.code, message=problem.message, facts={**problem.facts, "tasks": rows})
        return {"tasks": rows}

    def task_result(self, call: Call, args: dict[str, Any]) -> dict[str, Any] | Problem:
        """Return a sub-task's outcome; while it runs, after a while, how it is."""
        with self._lock:
            one = self._known.get(args["task"])
            known = [*self._known]
        if one is None:
            some = f"There are: {', '.join(known[-8:])}." if known else "There are none."
            return Problem(code="not_found", message=f"this client has no sub-task {args['task'][:64]!a}. {some}")
        until = time.monotonic() + args.get("wait", 0)
        while not one.over.wait(min(LOOK_SECONDS, max(0.0, until - time.monotonic()))):
            if call.asked or time.monotonic() >= until:
                break
        return {"task": self._row(one, 1)}

    def close(self) -> None:
        """The client is gone: end what it started, and wait for that."""
        with self._lock:
            self._closed = True
            running = [one for one in self._known.values() if not one.over.is_set()]
            threads = list(self._threads)
        for one in running:
            self._here.stage.run.tree.stop(one.path, "caller")
        for thread in threads:
            thread.join(END_SECONDS)

    def _start(self, request: TaskRequest, call: Call | None) -> Delegated:
        one = Delegated(request)
        thread = threading.Thread(target=self._run, args=(one, call), name="delegated", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()
        return one

    def _run(self, one: Delegated, call: Call | None) -> None:
        """Delegate, on a thread of its own."""
        tree = self._here.stage.run.tree

        def stop() -> None:
            tree.stop(one.path, "caller")

        def begun(path: str) -> None:
            with self._lock:
                one.path, self._known[path] = path, one
                closed = self._closed
            one.placed.set()
            if call is not None:
                call.does(stop)
            if closed:
                stop()

        try:
            one.outcome = delegate(self._here.stage, one.request, Assignment(cwd=self._here.root, begun=begun))
        except JournalError as error:
            one.error = error
            self._here.stage.fail(error)  # what cannot be recorded must not go on
        except Exception as error:  # noqa: BLE001 - it is raised where the call is served
            one.error = error
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                for path in [path for path, known in self._known.items() if known.over.is_set()][: -KEPT or None]:
                    del self._known[path]
            one.over.set()
            one.placed.set()

    def _row(self, one: Delegated, of: int) -> dict[str, Any]:
        """Return an outcome, or how a sub-task is that goes on; of many, each has less room."""
        if one.error is not None:
            raise one.error
        if one.over.is_set() and one.outcome is not None:
            return capped(one.outcome, MOST_BYTES // of)
        node = self._here.stage.run.tree.find(one.path)
        facts = node.as_dict() if node is not None else {}
        return {"status": "running", "task": one.path, **{key: facts[key] for key in ("profile", "trust", "label", "seconds", "denied") if key in facts}}


def list_subagent_profiles(here: Workplace, _call: Call, _args: dict[str, Any]) -> dict[str, Any]:
    """Return the profiles that a sub-task may have, and what is left of each here."""
    return {"profiles": [left_of(here.stage, profile) for profile in here.stage.run.known()]}
