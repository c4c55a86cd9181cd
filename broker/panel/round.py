"""The story of one round: a change is put to each judge of a panel, and the panel decides.

In: a run, a panel, and the layer of a task that has ended. Out: a Decision, recorded. Judges come one after the other, in an
order that a recorded seed gives, each in a sandbox of its own on a read-only view of the change: none can see what another one
said, or leave it something. Each is a task beside the run's own, under its own profile alone: the operator chose that, and
what the judged may do is no measure of it. The change is looked at again afterwards: a verdict is about what was judged.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from broker.decide.envelope import Envelope
from broker.enforce.layer import Layer
from broker.enforce.workspace import Workspace
from broker.errors import BrokerError, JournalError
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
    Finding,
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

MOST_EVIDENCE = 8  # different commands of one judge that are run
MOST_SAID = 2_000  # characters of a judge's stderr
Told = Callable[[Verdict], None]


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
    round: int = 1, seed: int | None = None, goal: str = "", told: Told | None = None,
) -> Decision:  # fmt: skip
    """Put a change to a panel, and return what it decided. Raises JournalError where that cannot be recorded.

    From here on, and whatever happens, the change is known as not passed, until the panel has decided. `told` hears each verdict.
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
        round=round, seed=seed, order=decision.order, quorum=panel.quorum, goal=goal,
        judges=[[judge.name, judge.profile.name, judge.profile.digest] for judge in order],
    )  # fmt: skip
    verdicts = []
    for judge in order:
        verdict = _heard(run, panel, judge, proposal, round)
        run.journal.append(
            event.JUDGE_VERDICT, panel=panel.name, judge=judge.name, sandbox=verdict.task, verdict=verdict.verdict,
            reason=verdict.reason, findings=[one.as_dict() for one in verdict.findings], change=proposal.digest,
            seconds=round_to(verdict.seconds),
        )  # fmt: skip
        verdicts.append(verdict)
        if told is not None:
            told(verdict)
    decision = decided(decision, verdicts)
    if digest_of(layer) != proposal.digest:
        decision = replace(decision, verdict=BLOCK, reason="the change is not what was judged any more: it was changed meanwhile")
    passes = sum(one.verdict == PASS for one in verdicts)
    run.journal.append(
        event.PANEL_DECIDED, panel=panel.name, verdict=decision.verdict, change=proposal.digest, of=layer.run, round=round,
        passed=passes, quorum=panel.quorum, reason=decision.reason,
        blocked_by=[one.judge for one in verdicts if one.verdict == BLOCK],
    )  # fmt: skip
    layer.update(panel="" if decision.passed else f"panel {panel.name} blocked it ({passes} of {panel.quorum} needed passes)")
    return decision


def round_to(seconds: float) -> float:
    """Return seconds as events have them."""
    return round(seconds, 3)


def _heard(run: Run, panel: Panel, judge: Judge, proposal: Proposal, number: int) -> Verdict:
    """Hear one judge, and run the commands that are to show what it found."""
    ticket = secrets.token_hex(16)
    last, said = LastLine(), Capture(2 * MOST_SAID)
    facts = {"panel": panel.name, "round": number}
    plot = replace(
        _plot(run, judge, proposal, judge.argv, f"judge {judge.name}"), seconds=panel.time, stdout=last, stderr=said,
        extra=(TASK_VARIABLE, ("BROKER_TICKET", ticket)),
        files=put_to(judge, proposal, ticket, facts),
    )  # fmt: skip
    began = time.monotonic()
    result = _carried(run, plot)
    verdict = _verdict(judge, result, last.line(), ticket)
    if verdict.findings:
        verdict = replace(verdict, findings=_tried(run, panel, judge, proposal, verdict.findings))
    spent = 0.0 if isinstance(result, str) else float(result.usage.get("cpu_seconds", 0.0))
    return replace(
        verdict, task=plot.node.path, seconds=time.monotonic() - began, cpu_seconds=spent, said=said.text()[-MOST_SAID:]
    )


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


def _tried(
    run: Run, panel: Panel, judge: Judge, proposal: Proposal, findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:  # fmt: skip
    """Run each evidence command in a fresh view, as the judge could have, and mark what came of it."""
    known: dict[tuple[str, ...], str] = {}
    for finding in findings:
        words = finding.evidence
        if not words or words in known:
            continue
        if len(known) == MOST_EVIDENCE:
            break
        quiet = Capture(1024)
        plot = replace(
            _plot(run, judge, proposal, words, f"evidence of {judge.name}"), judged=True, seconds=panel.evidence_time,
            stdout=quiet, stderr=quiet,
        )  # fmt: skip
        known[words] = _shown(_carried(run, plot))
    return tuple(replace(one, shown=known.get(one.evidence, NOT_RUN) if one.evidence else "") for one in findings)


def _shown(result: Result | str) -> str:
    """Say what came of an evidence command: it shows a fault by failing, of itself."""
    if isinstance(result, str):
        return NOT_RUN
    if result.status == "denied" or result.denied_count:
        return REFUSED
    if result.status != "finished" or result.exit_code in (126, 127):
        return NOT_RUN
    return REPRODUCED if result.exit_code else NOT_REPRODUCED


def _plot(run: Run, judge: Judge, proposal: Proposal, argv: tuple[str, ...], label: str) -> Plot:
    envelope = Envelope(profile=judge.profile, trust=judge.trust)
    node = run.tree.beside(lambda path: Node(path=path, envelope=envelope, argv=argv, label=label))
    workspace = seen_by(judge, proposal)
    return Plot(argv=argv, node=node, workspace=workspace, cwd=workspace.path, stdin=-1, between=proposal.lowers)


def _carried(run: Run, plot: Plot) -> Result | str:
    """Run a task of the panel to its end, and return its result, or why there is none."""
    status = "failed"
    try:
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
