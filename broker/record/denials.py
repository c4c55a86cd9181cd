"""Step 5: a task's denials, counted.

In: each Deny of one task. Out: one `task.denied` event for each different denial, `task.denied.repeated` with
the count when it happens again (at 10, 100, 1,000 … and at the end), and the `denials` of the task's result.
An agent that tries the same thing a million times must neither fill the disk nor hide its other denials; one
that tries a million different things must not fill the memory.
"""

from __future__ import annotations

import threading
from typing import NotRequired, TypedDict

from broker.classify.risk import Risk
from broker.decide.verdict import Deny
from broker.record import event
from broker.record.journal import Journal
from broker.record.needles import may_hold
from broker.sha256 import sha256

KEPT = 1_000  # different denials; the rest are only counted
SHOWN = 2_000  # characters of what was tried; the whole of it is in the event that decided


# `class` is a keyword, hence the call form.
DenialRow = TypedDict(
    "DenialRow",
    {
        "tool": str,
        "what": str,
        "class": str,
        "effects": list[str],
        "reason": str,
        "rule": str,
        "layer": str,
        "hint": str,
        "approvable": bool,
        "count": int,
        "of": NotRequired[str],  # the task that was denied, when it is a descendant
    },
)


class DenialLog:
    """The denials of one task. Safe to use from several threads."""

    def __init__(self, journal: Journal, task: str = event.ROOT) -> None:
        """Start empty. Events go to `journal` as the task's."""
        self._journal = journal
        self._task = task
        self._lock = threading.Lock()
        self._rows: dict[bytes, DenialRow] = {}
        self._written: dict[bytes, int] = {}
        self._others = 0
        self._others_written = 0
        self._others_risk = Risk.SAFE

    def add(self, tool: str, denial: Deny, *, of: str = "", **fields: object) -> bool:
        """Count a denial, and return whether it is a new one.

        `tool` is what was used: exec, shell, write_file, connect … `of` is the descendant task that was denied; ''
        is this one. `fields` go into the event of a new denial (pid, scope …). Raises JournalError when it cannot be recorded.
        """
        key = _key(tool, denial, of)
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                row["count"] += 1
                if _is_power_of_ten(row["count"]):
                    self._write_count(key, row)
                return False
            if len(self._rows) >= KEPT:
                self._count_other(denial.risk)
                return False
            row = row_of(tool, denial)
            if of:
                row["of"] = of
            self._rows[key], self._written[key] = row, 1
            told = {name: value for name, value in row.items() if name != "count"}
            self._journal.append(event.TASK_DENIED, task=self._task, **{**fields, **told})
            return True

    def _count_other(self, risk: Risk) -> None:
        self._others += 1
        self._others_risk = max(self._others_risk, risk)
        if _is_power_of_ten(self._others):
            self._write_others()

    def _write_count(self, key: bytes, row: DenialRow) -> None:
        self._journal.append(
            event.TASK_DENIED_REPEATED,
            task=self._task,
            tool=row["tool"],
            what=row["what"],
            rule=row["rule"],
            count=row["count"],
            **({"of": row["of"]} if "of" in row else {}),
        )
        self._written[key] = row["count"]

    def _write_others(self) -> None:
        self._journal.append(
            event.TASK_DENIED_REPEATED, task=self._task, tool="*", what=_OTHERS, rule="", count=self._others
        )
        self._others_written = self._others

    def finish(self) -> None:
        """Record the counts that are not recorded yet. Call it at the end of the task, before its result."""
        with self._lock:
            for key, row in self._rows.items():
                if row["count"] != self._written[key]:
                    self._write_count(key, row)
            if self._others != self._others_written:
                self._write_others()

    @property
    def total(self) -> int:
        """How many denials there were, repetitions included."""
        with self._lock:
            return self._others + sum(row["count"] for row in self._rows.values())

    def as_result(self) -> list[DenialRow]:
        """Return the denials in the order of their first time. What was over the limit is one last row."""
        with self._lock:
            rows = [row.copy() for row in self._rows.values()]
            if self._others:
                rows.append(_others_row(self._others, self._others_risk))
            return rows


_OTHERS = f"other denials, after the first {KEPT:,} different ones"


def _key(tool: str, denial: Deny, of: str) -> bytes:
    # A digest: argv can be 128 KiB, and a thousand of those are kept.
    text = f"{of}\0{tool}\0{denial.rule}\0{denial.layer.value}\0{denial.what}"
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def row_of(tool: str, denial: Deny) -> DenialRow:
    """Return a denial as results and terminals show it: without secrets, and of a bearable length."""
    # Redacted first: half a secret has not the look of one.
    what = _redacted(denial.what)
    what = what if len(what) <= SHOWN else what[: SHOWN - 1] + "…"
    return {
        "tool": tool,
        "what": what,
        "class": denial.risk.label,
        "effects": event.labels(denial.effects),
        "reason": _redacted(denial.reason),
        "rule": denial.rule,
        "layer": denial.layer.value,
        "hint": _redacted(denial.hint),
        "approvable": denial.approvable,
        "count": 1,
    }


def _redacted(text: str) -> str:
    if not may_hold(text):
        return text
    from broker.record.redact import redact_text

    return redact_text(text)


def _others_row(count: int, risk: Risk) -> DenialRow:
    return {
        "tool": "*",
        "what": _OTHERS,
        "class": risk.label,
        "effects": [risk.label],
        "reason": "too many different denials to keep each of them",
        "rule": "",
        "layer": "profile",
        "hint": "the run's events name each decision",
        "approvable": False,
        "count": count,
    }


def _is_power_of_ten(count: int) -> bool:
    return count >= 10 and str(count).strip("0") == "1"
