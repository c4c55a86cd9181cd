"""A question for the operator: what is asked, and the row that every channel shows of it.

In: an operation, why it was refused, who wants it, and how to look at what it is about. Out: a table. Nothing in it was written by
a model but what the program is given; `claims`, which may be, stand apart, and are only there for who asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from broker.classify.risk import Assessment, Risk
from broker.decide.approval import ApprovalHistory, Request, TypedWord, next_prompt
from broker.decide.verdict import Allow, Ask, Deny
from broker.decide.wording import describe, escape, shorten
from broker.errors import JournalError
from broker.record import event
from broker.request.operation import Exec, FileChange, Operation
from broker.sha256 import sha256
from broker.task.shell_text import ShellPart
from broker.task.sight import Sight
from broker.values import dataclass

MOST_LINES = 400  # of a diff
MOST_WIDTH = 400  # characters of one of its lines
MOST_WORK = 5_000_000  # steps of a comparison: half a second
MOST_NAMED = 64  # files that a row lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A file's content before it is written: what there is (`old`; None: nothing), what is to be there, and which version `old` is."""

    old: bytes | None
    new: bytes
    version: str = ""

    def sight(self) -> Sight:
        """What an approval of it hangs on: this content, in the place of that version."""
        new = sha256(self.new).hexdigest()
        return Sight(bound=sha256(f"{self.version} {new}".encode()).hexdigest(), sha256=new)

    def as_dict(self) -> dict[str, Any]:
        """Return the change as lines, escaped, and no more of it than somebody reads."""
        from broker.task.diff_text import hunks, is_text

        told: dict[str, Any] = {"bytes": len(self.new), "bytes_before": None if self.old is None else len(self.old)}
        if not (is_text(self.old) and is_text(self.new)):
            return told | {"lines": [], "note": "it is no text"}
        lines, added, removed = hunks(self.old or b"", self.new, MOST_WORK)
        shown = [_line(line) for line in lines[:MOST_LINES]]
        return told | {"lines": shown, "added": added, "removed": removed, "lines_left_out": len(lines) - len(shown)}


def _line(line: bytes) -> str:
    text = escape(line.decode("utf-8", "surrogateescape").rstrip("\n").replace("\n", " "))
    return text if len(text) <= MOST_WIDTH else f"{text[:MOST_WIDTH]}… and {len(text) - MOST_WIDTH} more characters"


@dataclass(slots=True, kw_only=True, eq=False)
class Question:
    """What is asked, and what to do about it. `settle` is called once, without any lock, unless it is withdrawn: then `gone` is.

    `number` is the guard's, or negative. `look` returns what the operation is about, as it is now; `wait` has the guard wait on.
    `failed` is told that something could not be recorded: then nothing more may happen in the task. `visible` is the command in
    an agent's wrapper: it is shown in the operation's place, beside its whole argv. `shell` returns the text of the shell that
    it comes from, `claims` what a model says about the task; neither is called before somebody is to see it.
    """

    number: int
    tool: str
    operation: Operation
    assessment: Assessment
    ask: Ask
    settle: Callable[[Allow | Deny], None]
    look: Callable[[], Sight]
    record: Callable[..., None]
    failed: Callable[[JournalError], None]
    wait: Callable[[], None] = lambda: None
    gone: Callable[[], None] = lambda: None
    task: str = event.ROOT
    pid: int = 0
    visible: str = ""
    shell: Callable[[], ShellPart | None] = lambda: None
    claims: Callable[[], dict[str, str]] = dict
    proposal: Proposal | None = None
    began: float = 0.0
    name: int = 0  # of the approval; 0: it is not shown yet
    request: Request | None = None
    sight: Sight = field(default_factory=Sight)
    word_asked: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # of the row: what does not change

    @property
    def what(self) -> str:
        """The operation in words."""
        return shorten(self.visible.strip()) or describe(self.operation)

    def row(self, history: ApprovalHistory, patience: float, *, claims: bool = False) -> dict[str, Any]:
        """Return it as a channel shows it."""
        assert self.request is not None
        now = time.monotonic()
        prompt = next_prompt(history, self.request, now)
        row = {
            "approval": self.name, "task": self.task, **self.facts, "session": getattr(prompt, "session", False),
            "word": prompt.word if isinstance(prompt, TypedWord) else "",
            "seconds": round(now - self.began, 1), "left": round(max(0.0, self.began + patience - now), 1),
        }  # fmt: skip
        if claims:
            row["claims"] = {name: escape(text) for name, text in self.claims().items() if text}
        return row

    def prepare(self) -> Request:
        """Look at what it is about, and return what is asked. Takes as long as it takes to read files: not with a lock held."""
        effects = self.assessment.effects | self.ask.effects
        operation = sha256(event.encode({"operation": event.plain(self.operation)})).hexdigest()
        self.sight = self.look()
        request = Request(operation=operation, effects=effects, content=self.sight.content)
        self.facts = self._unchanging(request)
        return request

    def _unchanging(self, request: Request) -> dict[str, Any]:
        row: dict[str, Any] = {
            "tool": self.tool, "what": self.what,
            "class": request.risk.label, "effects": event.labels(request.effects),
            "refused": event.labels(self.ask.effects), "rule": self.ask.rule, "reason": self.ask.reason,
            "reasons": [{"rule": one.rule, "class": one.risk.label, "text": escape(one.text)} for one in self.assessment.reasons],
            "sha256": self.sight.sha256,
        }  # fmt: skip
        if Risk.NETWORK_EGRESS in self.ask.effects:
            row["note"] = "an approval opens no network: only what the profile names (gateways, network.hosts) can be reached"
        if self.pid:
            row |= {"pid": self.pid, "by": list(self.sight.above)}
        match self.operation:
            case Exec(argv=argv, path=path, program=program, cwd=cwd, env=env):
                row |= {"argv": list(argv), "path": path, "program": program, "cwd": cwd, "env": [list(pair) for pair in env]}
                row["files"] = [one.as_dict() for one in self.sight.named[:MOST_NAMED]]
                left_out = {"files_left_out": len(self.sight.named[MOST_NAMED:]), "words_not_looked_up": self.sight.unseen}
                row |= {name: count for name, count in left_out.items() if count}
                if (part := self.shell()) is not None:
                    row["shell"] = part.as_dict()
            case FileChange(action=action, path=path, other=other):
                row |= {"action": action.value, "path": path, "other": other}
                if self.proposal is not None:
                    row["diff"] = self.proposal.as_dict()
                else:
                    row["content"] = "not known: nothing has been written yet"
            case _:
                pass
        return row
