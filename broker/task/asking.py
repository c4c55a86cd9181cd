"""How a task asks the operator: for a program that the guard holds, and for a tool that knows what it is about to write.

In: a verdict that an approval could change. Out: for the guard an answer that comes later, for a tool an Allow or a Deny. Only
a run's own task has a desk (broker/stage.py), and only if the operator said so: for any other there is nothing here to call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from broker.classify.risk import Assessment
from broker.decide.verdict import Allow, Ask, Deny, Layer
from broker.decide.wording import describe
from broker.enforce import wire
from broker.errors import JournalError
from broker.request.operation import FileChange, Operation
from broker.task.question import Proposal, Question
from broker.task.shell_text import part_of
from broker.task.sight import Asker, look
from broker.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the guard holds: its request, what is answered if it is approved, and what makes the answer of a refusal."""

    asked: wire.ExecAsked | wire.FileAsked
    allow: wire.Answer
    refuse: Callable[[Deny], wire.Answer]
    visible: str = ""
    approved: Callable[[], object] = lambda: None  # called before the answer is sent


def hold(task: Task, tool: str, operation: Operation, judged: tuple[Assessment, Ask], held: Held) -> wire.Answer | None:
    """Put the question of a held process on the desk, and return nothing; where it has no room, what refuses it."""
    assert task.approvals is not None
    assert task.send is not None
    send, asked, wait = task.send, held.asked, wire.Answer(request=held.asked.request, allow=False, wait_longer=True)
    asker, shell, place = Asker(), tuple[str, ...](), task.seen_by(asked.pid)
    if isinstance(asked, wire.ExecAsked):
        asker = Asker(pid=asked.pid, dev=asked.dev, ino=asked.ino, shebang=asked.shebang)
        shell = task.shells.shell_of(place, asked.pid) if task.shells is not None else ()

    def settle(verdict: Allow | Deny) -> None:
        if isinstance(verdict, Allow):
            held.approved()
        send(held.allow if isinstance(verdict, Allow) else held.refuse(verdict))

    full = task.approvals.hold(Question(
        number=asked.request, tool=tool, operation=operation, assessment=judged[0], ask=judged[1], settle=settle,
        wait=lambda: send(wait), look=partial(look, place, operation, asker), record=task.record, failed=task.cannot_record,
        task=task.path, pid=asked.pid, visible=held.visible, claims=task.claims,
        shell=partial(part_of, shell, getattr(operation, "argv", ()), task.context),
    ))  # fmt: skip
    return held.refuse(full) if full is not None else None


def ask(
    task: Task, tool: str, operation: FileChange, judged: tuple[Assessment, Ask], proposal: Proposal,
    when_cancelled: Callable[[Callable[[], None]], None],
) -> Allow | Deny:  # fmt: skip
    """Ask about a content before it is written, and wait for the answer. `when_cancelled` is told what takes the question back."""
    assert task.approvals is not None
    desk, over, found = task.approvals, threading.Event(), list[Allow | Deny]()

    def settle(verdict: Allow | Deny) -> None:
        found.append(verdict)
        over.set()

    def take_back() -> None:
        try:
            desk.withdraw(number, "the call that asked is gone")
        except JournalError as error:
            task.cannot_record(error)

    number = desk.number()
    full = desk.hold(Question(
        number=number, tool=tool, operation=operation, assessment=judged[0], ask=judged[1], settle=settle, look=proposal.sight,
        record=task.record, failed=task.cannot_record, gone=over.set, task=task.path, claims=task.claims, proposal=proposal,
    ))  # fmt: skip
    if full is not None:
        return full
    when_cancelled(take_back)
    over.wait()
    return found[0] if found else _taken_back(operation, judged[1])


def _taken_back(operation: Operation, question: Ask) -> Deny:
    return Deny(
        what=describe(operation), effects=question.effects, layer=Layer.APPROVAL, rule="approval.withdrawn",
        reason="The operator was asked, and the question was taken back before there was an answer.", hint="Nothing: it is over.",
    )  # fmt: skip
