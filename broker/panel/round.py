"""The story of one round: a change is put to each judge of a panel, and the panel decides.

In: a run, a panel, and the layer of a task that has ended. Out: a Decision, recorded. Judges begin in an order that a recorded
seed gives, several at once, each in a sandbox of its own on a read-only view of the change: none can see another one, or what
that said, or leave it something. When all were heard, the commands that are to show what they found are run, in the same way.
Each is a task beside the run's own, under its own profile alone: the operator chose that, and what the judged may do is no
measure of it. The change is looked at again afterwards: a verdict is about what was judged.
"""

from __future__ import annotations

import functools
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from broker.decide.envelope import Envelope
from broker.enforce.layer import Layer
from broker.enforce.workspace import Workspace
from broker.errors import BrokerError, JournalError
from broker.panel.at_once import all_of
from broker.panel.definition import Judge, Panel
from broker.panel.proposal import Proposal, digest_of, propose, put_to, seen_by
from broker.panel.verdict import (
    BLOCK,
    MOST_BYTES,
    NOT_REPRODUCED,
    NOT_RUN,
    PASS,
    REFUSED,
    REPRODUCED,
    Decision,
    Malformed,
    Verdict,
    decided,
    read_verdict,
)
from broker.record import event
from broker.stage import TASK_VARIABLE, Plot, Run
from broker.supervisor import carry
from broker.task.outcome import Capture
from broker.task.result import Result
from broker.task.tree import Node
from broker.values import dataclass

MOST_EVIDENCE = 8  # different commands of one judge that are run
# A judge starts in the workspace, where Python would look for modules first (`-c`, `-m`): the judged would answer for it.
SAFE_PATH = ("PYTHONSAFEPATH", "1")
MOST_SAID = 2_000  # characters of a judge's stderr
Told = Callable[[Verdict], None]
Begun = Callable[[str], None]
T = TypeVar("T")


class LastLine:
    """Takes what a judge writes, and keeps the last line that is not empty. Memory stays bounded whatever comes."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._last = b""

    def __call__(self, data: bytes) -> None:
        """Take some."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._add(piece)
            self._last = bytes(self._line) if self._line.strip() else self._last
            self._line.clear()
        self._add(rest)

    def _add(self, piece: bytes) -> None:
        self._line += piece[: MOST_BYTES + 1 - len(self._line)]  # one byte too many is how one sees that it is too long

    def line(self) -> bytes:
        """Return it."""
        return bytes(self._line) if self._line.strip() else self._last


def convene(
    run: Run, panel: Panel, layer: Layer, workspace: Workspace, *,
    round: int = 1, seed: int | None = None, goal: str = "", told: Told | None = None, begun: Begun | None = None,
) -> Decision:  # fmt: skip
    """Put a change to a panel, and return what it decided. Raises JournalError where that cannot be recorded.

    From here on, and whatever happens, the change is known as not passed, until the panel has decided. `begun` is told which
    judge begins, on a thread of its own; `told` hears each verdict, as it comes. A Ctrl-C meanwhile ends all judges, and the
    panel has blocked: `Decision.ended`.
    """
    seed = secrets.randbits(32) if seed is None else seed
    order = list(panel.judges)
    random.Random(seed).shuffle(order)
    layer.update(panel=f"panel {panel.name} has not decided")
    proposal = propose(layer, workspace, goal)
    decision = Decision(
        panel=panel.name, verdict=BLOCK, change=proposal.digest, of=layer.run, round=round, seed=seed, quorum=panel.quorum,
        order=tuple(judge.name for judge in order), run=run.journal.run,
    )  # fmt: skip
    run.journal.append(
        event.PANEL_CONVENED, panel=panel.name, digest=panel.digest, source=panel.source, change=proposal.digest, of=layer.run,
        round=round, seed=seed, order=decision.order, quorum=panel.quorum, goal=goal, at_once=panel.at_once,
        judges=[[judge.name, judge.profile.name, judge.profile.digest] for judge in order],
    )  # fmt: skip
    began = time.monotonic()
    hearing = _Hearing(run, panel, proposal, round, told, begun)
    decision = decided(decision, hearing.verdicts(order))
    if digest_of(layer) != proposal.digest:
        decision = replace(decision, verdict=BLOCK, reason="the change is not what was judged any more: it was changed meanwhile")
    if ended := run.tree.beside_stopped:
        decision = replace(decision, verdict=BLOCK, ended=ended, reason=f"it was ended before all was heard ({ended})")
    decision = replace(decision, seconds=time.monotonic() - began)
    passes = sum(one.verdict == PASS for one in decision.verdicts)
    run.journal.append(
        event.PANEL_DECIDED, panel=panel.name, verdict=decision.verdict, change=proposal.digest, of=layer.run, round=round,
        passed=passes, quorum=panel.quorum, reason=decision.reason, seconds=round_to(decision.seconds),
        blocked_by=[one.judge for one in decision.verdicts if one.verdict == BLOCK],
    )  # fmt: skip
    layer.update(panel="" if decision.passed else f"panel {panel.name} blocked it ({passes} of {panel.quorum} needed passes)")
    return decision


def round_to(seconds: float) -> float:
    """Return seconds as events have them."""
    return round(seconds, 3)


@dataclass(frozen=True, slots=True)
class _Hearing:
    """All judges of a round, and after them all evidence."""

    run: Run
    panel: Panel
    proposal: Proposal
    number: int
    told: Told | None
    begun: Begun | None

    def verdicts(self, order: list[Judge]) -> list[Verdict]:
        """Hear the judges, and return their verdicts in this order. Each is recorded when nothing of it is missing."""
        nodes = [_node(self.run, judge, judge.argv, f"judge {judge.name}") for judge in order]
        jobs = [functools.partial(self._heard, judge, node) for judge, node in zip(order, nodes, strict=True)]
        heard = self._all(jobs, self._record_unless_it_waits)
        shown = self._tried(order, heard)
        return [self._with_evidence(one, shown) for one in heard]

    def _all(self, jobs: Sequence[Callable[[], T]], came: Callable[[T], None]) -> list[T]:
        return all_of(jobs, at_once=self.panel.at_once, stop=self.run.tree.stop_beside, came=came)

    def _heard(self, judge: Judge, node: Node) -> Verdict:
        """Hear one judge."""
        if self.begun is not None and not node.stopped:
            self.begun(judge.name)
        ticket = secrets.token_hex(16)
        last, said = LastLine(), Capture(2 * MOST_SAID)
        facts = {"panel": self.panel.name, "round": self.number}
        plot = replace(
            _plot(judge, self.proposal, node), seconds=self.panel.time, stdout=last, stderr=said,
            extra=(TASK_VARIABLE, ("BROKER_TICKET", ticket), SAFE_PATH), files=put_to(judge, self.proposal, ticket, facts),
        )  # fmt: skip
        began = time.monotonic()
        result = _carried(self.run, plot)
        spent = 0.0 if isinstance(result, str) else float(result.usage.get("cpu_seconds", 0.0))
        return replace(
            _verdict(judge, result, last.line(), ticket), task=node.path, seconds=time.monotonic() - began, cpu_seconds=spent,
            said=said.text()[-MOST_SAID:],
        )  # fmt: skip

    def _tried(self, order: list[Judge], heard: list[Verdict]) -> dict[tuple[str, tuple[str, ...]], _Shown]:
        """Run each evidence command in a fresh view, as its judge could have, and return what came of it."""
        left = {verdict.judge: len(words) for verdict in heard if (words := _evidence(verdict))}
        verdicts = {verdict.judge: verdict for verdict in heard}
        shown: dict[tuple[str, tuple[str, ...]], _Shown] = {}

        def came(one: _Shown) -> None:
            shown[one.judge, one.words] = one
            left[one.judge] -= 1
            if not left[one.judge]:
                self._record(self._with_evidence(verdicts[one.judge], shown))

        jobs = [functools.partial(self._show, judge, words) for judge, verdict in zip(order, heard, strict=True) for words in _evidence(verdict)]
        self._all(jobs, came)
        return shown

    def _show(self, judge: Judge, words: tuple[str, ...]) -> _Shown:
        node = _node(self.run, judge, words, f"evidence of {judge.name}")
        quiet = Capture(1024)
        plot = replace(
            _plot(judge, self.proposal, node), judged=True, seconds=self.panel.evidence_time, stdout=quiet, stderr=quiet
        )
        began = time.monotonic()
        result = _carried(self.run, plot)
        return _Shown(judge.name, words, _what_came(result), time.monotonic() - began)

    def _with_evidence(self, verdict: Verdict, shown: Mapping[tuple[str, tuple[str, ...]], _Shown]) -> Verdict:
        """Return a verdict whose findings are marked."""
        tried = {words: shown[verdict.judge, words] for words in _evidence(verdict)}
        return replace(
            verdict, seconds=verdict.seconds + sum(one.seconds for one in tried.values()),
            findings=tuple(
                replace(one, shown=(tried[one.evidence].what if one.evidence in tried else NOT_RUN) if one.evidence else "")
                for one in verdict.findings
            ),
        )  # fmt: skip

    def _record_unless_it_waits(self, verdict: Verdict) -> None:
        if not _evidence(verdict):
            self._record(verdict)

    def _record(self, verdict: Verdict) -> None:
        self.run.journal.append(
            event.JUDGE_VERDICT, panel=self.panel.name, judge=verdict.judge, sandbox=verdict.task, verdict=verdict.verdict,
            reason=verdict.reason, findings=[one.as_dict() for one in verdict.findings], change=self.proposal.digest,
            seconds=round_to(verdict.seconds),
        )  # fmt: skip
        if self.told is not None:
            self.told(verdict)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What came of an evidence command of a judge."""

    judge: str
    words: tuple[str, ...]
    what: str
    seconds: float


def _evidence(verdict: Verdict) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a verdict that are run: different ones, and not too many."""
    return tuple(dict.fromkeys(one.evidence for one in verdict.findings if one.evidence))[:MOST_EVIDENCE]


def _verdict(judge: Judge, result: Result | str, line: bytes, ticket: str) -> Verdict:
    """Return what a judge's end means. Only one that ended by itself, with 0, can pass a change."""
    try:
        spoken = read_verdict(judge.name, line, ticket)
    except Malformed as error:
        spoken = Verdict(judge=judge.name, verdict=BLOCK, reason=f"malformed: {error}")
    if why := _why_not(result):
        return replace(spoken, verdict=BLOCK, reason=why)
    return spoken


def _why_not(result: Result | str) -> str:
    if isinstance(result, str):
        return f"not started: {result}"
    match result.status:
        case "finished" if result.exit_code == 0:
            return ""
        case "timeout":
            return "late: the time for a judge was over"
        case "denied" | "not_found" | "failed":
            return f"not started: {result.reason}"
        case _:
            return f"crashed: {result.status}, exit code {result.exit_code}"


def _what_came(result: Result | str) -> str:
    """Say what came of an evidence command: it shows a fault by failing, of itself."""
    if isinstance(result, str):
        return NOT_RUN
    if result.status == "denied" or result.denied_count:
        return REFUSED
    if result.status != "finished" or result.exit_code in (126, 127):
        return NOT_RUN
    return REPRODUCED if result.exit_code else NOT_REPRODUCED


def _node(run: Run, judge: Judge, argv: tuple[str, ...], label: str) -> Node:
    envelope = Envelope(profile=judge.profile, trust=judge.trust)
    return run.tree.beside(lambda path: Node(path=path, envelope=envelope, argv=argv, label=label))


def _plot(judge: Judge, proposal: Proposal, node: Node) -> Plot:
    workspace = seen_by(judge, proposal)
    return Plot(argv=node.argv, node=node, workspace=workspace, cwd=workspace.path, stdin=-1, between=proposal.lowers)


def _carried(run: Run, plot: Plot) -> Result | str:
    """Run a task of the panel to its end, and return its result, or why there is none."""
    status = "failed"
    try:
        if plot.node.stopped:  # before its turn came: it need not begin
            status = "killed"
            return f"it was ended ({plot.node.stopped})"
        result = carry(run, plot)
        status = result.status
        return result
    except JournalError:
        raise
    except (BrokerError, OSError) as error:
        run.journal.append(event.TASK_FINISHED, task=plot.node.path, status=status, exit_code=70, reason=str(error))
        return str(error)
    finally:
        run.tree.ended(plot.node, status)
