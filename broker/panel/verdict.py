"""Step 3: what a judge says, read strictly; and what a panel says.

In: the last line that a judge wrote, which nobody trusts. Out: a Verdict. INVARIANT: what is not a verdict is a block
(tests/panel/test_verdict.py): a judge that crashes, talks, comes late or was never started lets nothing through. A pass has to
hold the ticket that this judge got for this change: a line that the judged wrote beforehand cannot. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from broker.values import dataclass

PASS, BLOCK = "pass", "block"
MOST_BYTES = 64 * 1024  # of the line
MOST_FINDINGS = 50
MOST_CLAIM = 1_000  # characters
MOST_PATH = 4_096
MOST_WORDS = 64  # of an evidence command
MOST_WORD = 8_192
MOST_STEPS = 50  # of a plan
MOST_TITLE = 200
SEVERITIES = ("low", "medium", "high", "critical")
REPRODUCED, NOT_REPRODUCED, REFUSED, NOT_RUN = "reproduced", "not_reproduced", "refused", "not_run"
_KEYS = frozenset({"verdict", "findings", "ticket"})
_FINDING_KEYS = frozenset({"file", "line", "severity", "claim", "evidence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault that a judge claims. `line` counts from 1; 0: none is said.

    `evidence` is a command that fails because of the fault (its exit code is not 0), and would end with 0 without it; () is
    none. `shown` says what came of it when broker ran it: reproduced, not_reproduced, refused, not_run, or '' for none.
    """

    file: str
    line: int
    severity: str
    claim: str
    evidence: tuple[str, ...] = ()
    shown: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        return {
            "file": self.file, "line": self.line, "severity": self.severity, "claim": self.claim,
            "evidence": list(self.evidence), "shown": self.shown,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one judge said. `reason` is why it counts as a block although the judge did not say so; '': the judge spoke.

    `seconds` is how long it took; `task` is its place in the run; `said` the end of what it wrote on stderr.
    """

    judge: str
    verdict: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    task: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    said: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        return {
            "judge": self.judge, "verdict": self.verdict, "reason": self.reason, "task": self.task,
            "findings": [finding.as_dict() for finding in self.findings], "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3), "stderr": self.said,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a panel said of one change. `change` is its digest, `of` the run that made it; `order` the judges as they began.

    `ended` says why somebody ended it before all judges were heard ('': nobody did); `seconds` is how long all of it took.
    """

    panel: str
    verdict: str
    change: str
    of: str
    round: int
    seed: int
    quorum: int
    order: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = ()
    reason: str = ""
    run: str = ""
    ended: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the change may land."""
        return self.verdict == PASS

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What all judges found, worst first."""
        found = [finding for verdict in self.verdicts for finding in verdict.findings]
        return tuple(sorted(found, key=lambda one: -SEVERITIES.index(one.severity)))

    def as_dict(self) -> dict[str, Any]:
        """Return it as data, with the steps that a plan would need."""
        return {
            "panel": self.panel, "verdict": self.verdict, "reason": self.reason, "change": self.change, "of": self.of,
            "run": self.run, "round": self.round, "seed": self.seed, "quorum": self.quorum, "order": list(self.order),
            "ended": self.ended, "seconds": round(self.seconds, 3),
            "judges": [verdict.as_dict() for verdict in self.verdicts], "plan": plan_of(self.findings),
        }  # fmt: skip


class Malformed(ValueError):
    """Not a verdict. The text says why; it holds nothing of what the judge wrote."""


def read_verdict(judge: str, line: bytes, ticket: str) -> Verdict:
    """Read the last line of a judge's output. Raises Malformed."""
    if len(line) > MOST_BYTES:
        raise Malformed(f"its last line has more than {MOST_BYTES} bytes")
    if not line.strip():
        raise Malformed("it said nothing")
    try:
        table = json.loads(line.decode("utf-8"), object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Malformed("its last line is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed("its last line is no JSON object") from None
    if not isinstance(table, dict):
        raise Malformed("its last line is no JSON object")
    if table.keys() - _KEYS or "verdict" not in table:
        raise Malformed("its verdict has keys that no verdict has, or none called verdict")
    said, rows = table["verdict"], table.get("findings", [])
    if said not in (PASS, BLOCK):
        raise Malformed("its verdict is neither pass nor block")
    if not isinstance(rows, list) or len(rows) > MOST_FINDINGS:
        raise Malformed(f"its findings are no list of at most {MOST_FINDINGS}")
    if said == PASS and table.get("ticket") != ticket:
        raise Malformed("its pass does not hold the ticket that it got for this change")
    return Verdict(judge=judge, verdict=said, findings=tuple(_finding(row, number) for number, row in enumerate(rows, 1)))


def _finding(row: object, number: int) -> Finding:
    if not isinstance(row, dict) or row.keys() - _FINDING_KEYS:
        raise Malformed(f"finding {number} has keys that no finding has")
    evidence = row.get("evidence", [])
    if not isinstance(evidence, list) or len(evidence) > MOST_WORDS or (evidence and not evidence[0]):
        raise Malformed(f"finding {number}: its evidence is no list of at most {MOST_WORDS} words")
    for word in evidence:
        _text(word, MOST_WORD, f"finding {number}: a word of its evidence")
        if "\0" in word:
            raise Malformed(f"finding {number}: a word of its evidence holds a null character")
    line = row.get("line", 0)
    if isinstance(line, bool) or not isinstance(line, int) or not 0 <= line < 1 << 31:
        raise Malformed(f"finding {number}: its line is no number")
    if row.get("severity") not in SEVERITIES:
        raise Malformed(f"finding {number}: its severity is none of {', '.join(SEVERITIES)}")
    return Finding(
        file=_text(row.get("file", ""), MOST_PATH, f"finding {number}: its file"), line=line, severity=row["severity"],
        claim=_text(row.get("claim"), MOST_CLAIM, f"finding {number}: its claim"), evidence=tuple(evidence),
    )  # fmt: skip


def _text(value: object, most: int, what: str) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise Malformed(f"{what} is no text of at most {most} characters")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise Malformed(f"{what} is no text")
    return value


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise Malformed("a key occurs twice in its verdict")
    return table


def _no_constant(_text: str) -> object:
    raise Malformed("its last line is no JSON object")


def decided(decision: Decision, verdicts: Iterable[Verdict]) -> Decision:
    """Return the decision that these verdicts make: it passes if as many as the quorum say so."""
    given = tuple(verdicts)
    passes = sum(one.verdict == PASS for one in given)
    return replace(decision, verdicts=given, verdict=PASS if passes >= decision.quorum else BLOCK)


def plan_of(findings: Iterable[Finding], *, owner: str = "judge") -> dict[str, Any]:
    """Return the findings as proposed steps, in the form that `broker plan` takes: what showed the fault has to succeed.

    Findings with one evidence command are one step. What comes without any, or with one that did not show the fault, proposes
    nothing: it could be done without being so. `owner` of the checks: '' for a worker, who can only write for himself.
    """
    whose = {"owner": owner} if owner else {}
    steps: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        if finding.shown == REPRODUCED:
            steps.setdefault(finding.evidence, []).append(finding)
    return {
        "steps": [
            {"id": f"finding-{number}", "title": _title(found), "checks": [{"argv": list(evidence), **whose}]}
            for number, (evidence, found) in enumerate(list(steps.items())[:MOST_STEPS], 1)
        ]
    }


def _title(findings: list[Finding]) -> str:
    first = findings[0]
    place = f"{first.file}:{first.line}" if first.line else first.file
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    text = f"{place}: {first.claim}" if place else first.claim
    plain = "".join(character if character.isprintable() else " " for character in text)
    return (plain[: MOST_TITLE - len(more)] + more).strip() or "a fault without a name"
