"""A file of the task, read or written from inside its sandbox, under its own rules: never by this process on the host.

In: an open task and a path. Out: a FileResult; a refusal is one, and so is a file that is not there. The same steps as for
the tools read_file and write_file that agents are served; what a profile disables of them is refused here, too.
"""

from __future__ import annotations

import os
import time

from broker.api.opened import Opened
from broker.api.program import recording
from broker.api.settings import text_of
from broker.api.values import Denial, FileResult
from broker.classify.risk import Risk
from broker.decide.verdict import Deny, Layer
from broker.decide.wording import shorten
from broker.errors import UsageError
from broker.record import event
from broker.request.operation import FileAction, FileChange
from broker.serve import tools_files
from broker.serve.tools_inside import Call, Problem, Workplace
from broker.stop import Stop
from broker.supervisor import Session

MOST = 64 << 20  # bytes that are read at once, unless more is asked for


def read_file(task: Opened, path: str | os.PathLike[str], stop: Stop, *, offset: int = 0, most: int = MOST) -> FileResult:
    """Read a file, or a piece of it."""
    if offset < 0 or most < 1:
        raise UsageError("offset is at least 0, and most at least 1: both count bytes")
    with task.call(stop) as session:
        tool = _Tool(session, "read_file", path, stop)
        with recording(session.stage):
            return tool.done(tool.disabled(Risk.SAFE) or tools_files.read(tool.here, tool.call, tool.path, offset=offset, length=most))


def write_file(
    task: Opened, path: str | os.PathLike[str], content: bytes | str, stop: Stop, *, version: str = "", new: bool = False
) -> FileResult:
    """Write a whole file, at once or not at all."""
    if not isinstance(content, (bytes, str)):
        raise UsageError(f"content is bytes or text, not {type(content).__name__}")
    if version and new:
        raise UsageError("version is of a file that is there, and new is for one that is not: give one of them")
    if version and (len(words := version.split(" ")) != 3 or not all(word.isdecimal() for word in words)):
        raise UsageError("version: give it as read_file returned it")
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    with task.call(stop) as session:
        tool = _Tool(session, "write_file", path, stop)
        with recording(session.stage):
            return tool.done(tool.disabled(Risk.LOCAL_WRITE) or tool.write(data, version, new=new), size=len(data))


class _Tool:
    """One use of a tool."""

    def __init__(self, session: Session, name: str, path: str | os.PathLike[str], stop: Stop) -> None:
        self.here = Workplace(stage=session.stage, budget=session.budget)
        self.name, self.call = name, Call()
        self.path = self.here.path(text_of(path, "a path"))
        self.began = time.monotonic()
        stop.does(self.call.ask)

    def disabled(self, risk: Risk) -> Problem | None:
        """Refuse it if the profile, or one above it, disables it."""
        if self.name not in self.here.stage.plot.envelope.disabled_tools:
            return None
        denial = Deny(
            what=f"the tool {self.name}", effects=frozenset({risk}), layer=Layer.PROFILE, rule=f"tool.{self.name}.disabled",
            reason=f"The task's profile, or one above it, disables the tool {self.name}.", hint="Report what you need.",
        )  # fmt: skip
        return self.here.refuse(self.name, denial)

    def write(self, data: bytes, version: str, *, new: bool) -> Problem | None:
        """Judge the change, and make it."""
        allowed = self.here.permit(self.name, FileChange(action=FileAction.WRITE, path=self.path))
        if isinstance(allowed, Problem):
            return allowed
        return tools_files.write(
            self.here, self.call, allowed, self.path, data, tool=self.name, parents=True, new=new, version=version
        )

    def done(self, answer: tools_files.Contents | Problem | None, *, size: int = 0) -> FileResult:
        """Record how it ended, and return it as a value."""
        stage = self.here.stage
        stage.run.journal.append(
            event.TOOL_CALLED, task=stage.task.path, tool=self.name, what=shorten(self.path, 200),
            outcome=answer.code if isinstance(answer, Problem) else "ok",
            milliseconds=round((time.monotonic() - self.began) * 1000, 1),
        )  # fmt: skip
        match answer:
            case None:
                return FileResult(path=self.path, status="ok", size=size)
            case Problem():
                denial = Denial.of(
                    answer.facts, task=stage.task.path, tool=self.name, risk=answer.facts["class"], reason=answer.message
                ) if answer.code == "denied" else None  # fmt: skip
                return FileResult(path=self.path, status=answer.code, reason=answer.message, denial=denial)
            case _:
                return FileResult(
                    path=self.path, status="ok", data=answer.data, size=answer.size, version=answer.version, mode=answer.mode
                )
