"""Where questions wait for the operator: each holds one program, or one change to a path, and nothing else of its task.

In: questions of a run's own task, which decide() says an approval could permit. Out: for each, once, an Allow or a Deny. How
one may be answered is in broker/decide/approval.py; every channel comes through `answer`, so its rules hold for all of them
together. A thread of the desk's own looks at what a question would start, has the guard wait, and denies what nobody answered.

INVARIANT: an answer is recorded before it is given, and is given to the one question that it was for (tests/task/test_desk.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from broker.decide.approval import ApprovalHistory, Approved, Refuse, Request, TypedWord, next_prompt, wearies
from broker.decide.verdict import Allow, Deny, Layer
from broker.decide.wording import escape
from broker.errors import JournalError
from broker.record import event
from broker.task.question import Question
from broker.task.sight import Sight
from broker.values import dataclass

PATIENCE = 120.0  # seconds for an answer; then it is a Deny
TICK = 1.0  # seconds between two words to the guard, which waits 30 s for each; and until a dead asker is noticed
MOST_WAITING = 32
MOST_WHY = 500  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An answer as it came: `how` is once, session or deny; none: nobody can be asked there, and `why` says so in a sentence.

    `channel` is where from, `who` the kernel's word for who that is; of the channel client, its own.
    """

    how: str
    who: str
    channel: str
    why: str = ""
    word: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The answer counts."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WordWanted:
    """The word has to be typed, not before so many seconds have passed."""

    word: str
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTaken:
    """The answer changes nothing."""

    reason: str


@dataclass(slots=True)
class ApprovalDesk:
    """The desk of one run. `shown` is told of each question that an operator can answer now; it must not wait."""

    patience: float = PATIENCE
    shown: Callable[[dict[str, Any]], None] | None = None
    tick: float = TICK
    history: ApprovalHistory = field(default_factory=ApprovalHistory)
    _waiting: dict[int, Question] = field(default_factory=dict)  # by the guard's number, in their order
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _names: int = 0
    _own: int = 0  # questions that no guard has a number for
    _settling: int = 0
    _closed: bool = False

    # From the link's thread, which never waits

    def hold(self, question: Question) -> Deny | None:
        """Take a question. Returns a Deny when there is no room; else it is settled later."""
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                return _denial(question, "approval.queue", f"{MOST_WAITING} questions wait for the operator already.", "Wait for those.")
            question.began = time.monotonic()
            self._waiting[question.number] = question
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="approvals", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return None

    def withdraw(self, number: int, reason: str = "the process that asked is gone") -> None:
        """Take back the question with the guard's number. Raises JournalError when that cannot be recorded."""
        with self._changed:
            if (question := self._waiting.pop(number, None)) is not None:
                question.gone()
                if question.name:
                    self.history = self.history.after_withdrawal(time.monotonic())
                    question.record(event.APPROVAL_WITHDRAWN, approval=question.name, reason=reason)

    def number(self) -> int:
        """Return a number for a question that is not the guard's. It is no other question's."""
        with self._changed:
            self._own -= 1
            return self._own

    # From whoever answers

    def rows(self, *, claims: bool = False) -> list[dict[str, Any]]:
        """Return what can be answered now, oldest first, as it is shown; with `claims` also what a model says about it."""
        with self._changed:
            return [one.row(self.history, self.patience, claims=claims) for one in self._waiting.values() if one.name]

    def answer(self, name: int, given: Given) -> Taken | WordWanted | NotTaken:
        """Answer a question, if that is how it may be answered now."""
        with self._changed:
            question = self._named(name)
        if question is None or question.request is None:
            return NotTaken(reason=f"there is no question {name} that waits")
        sight = question.look() if given.how in _YES else Sight()
        try:
            verdict = self._decided(question, question.request, given, sight)
        except JournalError as error:
            question.failed(error)
            return NotTaken(reason=str(error))
        if isinstance(verdict, (WordWanted, NotTaken)):
            return verdict
        seconds = time.monotonic() - question.began
        self._settle(question, verdict)
        if isinstance(verdict, Deny) and given.how in _YES:
            return NotTaken(reason=verdict.reason)
        return Taken(seconds=seconds)

    def _decided(self, question: Question, request: Request, given: Given, sight: Sight) -> Allow | Deny | WordWanted | NotTaken:
        """Say what an answer comes to. What it settles is recorded, and nobody else can settle it any more. Raises JournalError."""
        with self._changed:
            if self._named(question.name) is not question:
                return NotTaken(reason=f"question {question.name} was answered or withdrawn meanwhile")
            now = time.monotonic()
            verdict: Allow | Deny | WordWanted | NotTaken
            if given.how not in _YES:
                verdict = _denied(question, given)
            elif sight.wrong or sight.bound != question.sight.bound:
                verdict = _changed(question, sight)
            else:
                verdict = self._approved(question, request, given, now)
            if isinstance(verdict, (WordWanted, NotTaken)):
                return verdict
            self._record_answer(question, verdict, given, now)
            if isinstance(verdict, Allow):
                self.history = self.history.after_approval(request, now, session=given.how == "session")
            else:
                self.history = self.history.after_denial(request, now)
            self._take_off(question)
            return verdict

    def _approved(self, question: Question, request: Request, given: Given, now: float) -> Allow | WordWanted | NotTaken:
        prompt = next_prompt(self.history, request, now)
        if isinstance(prompt, Refuse):
            return NotTaken(reason=prompt.reason)
        if given.how == "session" and not getattr(prompt, "session", True):
            return NotTaken(reason="this can be approved once only: it cannot be undone, outlives the task, or starts what cannot be read")
        if isinstance(prompt, TypedWord):
            if given.word != prompt.word or question.word_asked is None:
                question.word_asked = now
                return WordWanted(word=prompt.word, pause=prompt.pause)
            if now - question.word_asked < prompt.pause:
                question.word_asked = now
                return NotTaken(reason=f"that was typed too soon: read it for {prompt.pause} s, and type the word then")
        return Allow(layer=Layer.APPROVAL, rule=f"approval.{given.how}", effects=question.assessment.effects)

    # The desk's own thread

    def close(self, reason: str = "the task has ended") -> None:
        """Take back whatever waits, and take no more. May be called twice. Nothing is recorded after it."""
        with self._changed:
            self._closed = True
            try:
                for number in list(self._waiting):
                    self.withdraw(number, reason)
            except JournalError:
                self._waiting.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._settling)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self) -> None:
        told = time.monotonic()
        while True:
            with self._changed:
                while not self._closed and not self._waiting:
                    self._changed.wait()
                if self._closed:
                    return
                new = next((one for one in self._waiting.values() if one.request is None), None)
                if new is None:
                    self._changed.wait(max(0.0, self._next_due(told) - time.monotonic()))
                    new = next((one for one in self._waiting.values() if one.request is None), None)
                now = time.monotonic()
                late = [one for one in self._waiting.values() if one.name and now - one.began >= self.patience]
                waiting = list(self._waiting.values()) if now - told >= self.tick else []
            for one in waiting:
                one.wait()
                told = now
            for one in late:
                self._nobody_answered(one)
            if new is not None:
                self._look_at(new)

    def _next_due(self, told: float) -> float:
        return min([told + self.tick, *(one.began + self.patience for one in self._waiting.values())])

    def _look_at(self, question: Question) -> None:
        """Show a new question, or settle it at once as an earlier answer says."""
        request = question.prepare()
        try:
            verdict, row = self._shown_or_settled(question, request)
        except JournalError as error:
            question.failed(error)
            return
        if verdict is not None:
            self._settle(question, verdict)
        elif row and self.shown is not None:
            self.shown(row)

    def _shown_or_settled(self, question: Question, request: Request) -> tuple[Allow | Deny | None, dict[str, Any]]:
        """Return what settles a new question, or how it is shown; neither where it was withdrawn. Raises JournalError."""
        with self._changed:
            if question.number not in self._waiting:
                return None, {}
            now = time.monotonic()
            if question.sight.wrong:
                self._take_off(question)
                return _changed(question, question.sight), {}
            prompt = next_prompt(self.history, request, now)
            if not isinstance(prompt, Approved):
                prompt = wearies(self.history, request, now) or prompt
            if isinstance(prompt, Refuse):
                self._take_off(question)
                return _denial(
                    question, "approval.again", prompt.reason, "Do it another way, or tell the operator why it is needed."
                ), {}  # fmt: skip
            self._names += 1
            question.request, question.name = request, self._names
            question.record(event.APPROVAL_ASKED, **self._asked(question, request))
            if not isinstance(prompt, Approved):
                return None, question.row(self.history, self.patience)
            verdict = Allow(layer=Layer.APPROVAL, rule="approval.session", effects=request.effects)
            self._record_answer(question, verdict, Given(how="session", who="", channel="session"), now)
            self._take_off(question)
            return verdict, {}

    def _nobody_answered(self, question: Question) -> None:
        verdict = _denial(
            question, "approval.timeout", f"The operator was asked, and did not answer within {self.patience:.0f} s.",
            "Go on without it, or ask again later.",
        )  # fmt: skip
        try:
            with self._changed:
                if self._waiting.get(question.number) is not question or question.request is None:
                    return
                now = time.monotonic()
                self._record_answer(question, verdict, Given(how="deny", who="", channel="timeout"), now)
                self.history = self.history.after_denial(question.request, now)
                self._take_off(question)
        except JournalError as error:
            question.failed(error)
            return
        self._settle(question, verdict)

    def _take_off(self, question: Question) -> None:
        """From here on nobody else can settle it. With the lock held."""
        del self._waiting[question.number]
        self._settling += 1

    def _settle(self, question: Question, verdict: Allow | Deny) -> None:
        """Pass the verdict on, without the lock: a denial is told to the tree, and to whoever watches it."""
        try:
            question.settle(verdict)
        except JournalError as error:
            question.failed(error)
        finally:
            with self._changed:
                self._settling -= 1
                self._changed.notify_all()

    # What is said of a question

    def _named(self, name: int) -> Question | None:
        return next((one for one in self._waiting.values() if one.name == name), None)

    def _asked(self, question: Question, request: Request) -> dict[str, object]:
        return {
            "approval": question.name, "tool": question.tool, "operation": question.operation,
            "effects": request.effects, "refused": question.ask.effects, "rule": question.ask.rule,
            "reason": question.ask.reason, "sha256": question.sight.sha256, "patience": self.patience,
        }  # fmt: skip

    def _record_answer(self, question: Question, verdict: Allow | Deny, given: Given, now: float) -> None:
        question.record(
            event.APPROVAL_ANSWERED, approval=question.name, verdict="allow" if isinstance(verdict, Allow) else "deny",
            layer=verdict.layer, rule=verdict.rule, answer=given.how if given.how in _YES else "deny", who=given.who, channel=given.channel,
            seconds=round(now - question.began, 3), why=given.why[:MOST_WHY], word=question.word_asked is not None,
        )  # fmt: skip


_YES = ("once", "session")


def _denied(question: Question, given: Given) -> Deny:
    why = escape(given.why[:MOST_WHY]).strip()
    end = "" if why.endswith((".", "!", "?", "…")) else "."  # a sentence follows
    if given.how == "none":
        return _denial(question, "approval.no_channel", why, "Do it another way, or leave it.")
    who = "client of the tools" if given.channel == "client" else "operator"
    reason = f"The {who} was asked, and said no: {why}{end}" if why else f"The {who} was asked, and said no."
    return _denial(question, "approval.denied", reason, f"Do as the {who} says." if why else "Do it another way, or leave it.")


def _changed(question: Question, sight: Sight) -> Deny:
    what = f": {sight.wrong}" if sight.wrong else ""
    return _denial(
        question, "approval.changed", f"What it would start, or work on, was changed while the operator was asked{what}.",
        "Leave its files as they are, and ask again.",
    )  # fmt: skip


def _denial(question: Question, rule: str, reason: str, hint: str) -> Deny:
    return Deny(
        what=question.what, effects=question.ask.effects, layer=Layer.APPROVAL, rule=rule, reason=reason, hint=hint,
    )  # fmt: skip
