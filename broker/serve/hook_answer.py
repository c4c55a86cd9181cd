"""What an agent is answered. In: an Answer, and whose dialect. Out: the bytes for stdout.

A refusal is JSON and exit code 0: that is the one form that all of them obey and show to the model. Exit code 2 is for
what went wrong with us: it blocks in all of them, too, and no other code does (docs/hooks.md has what was measured).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from broker.decide.verdict import Deny
from broker.serve.hook_event import Dialect
from broker.values import dataclass

BLOCKS = 2


class Kind(StrEnum):
    """What becomes of the tool's call."""

    ALLOWED = "allowed"
    PASSED = "passed"  # it touches nothing that a profile speaks of
    REWRITTEN = "rewritten"
    ASKED = "asked"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. `reason` is for the model, or for whoever is asked; `input` is the tool's new input, of a REWRITTEN."""

    kind: Kind
    reason: str = ""
    input: Mapping[str, Any] | None = None


def words_of(denial: Deny) -> str:
    """Return a refusal in the words that the model reads: what, class, reason, rule, and what to do instead."""
    return (
        f"broker denied this ({denial.risk.label}): {denial.what}\n{denial.reason} "
        f"[{denial.rule} · {denial.layer.value}]\n{denial.hint}"
    )


def encoded(answer: Answer, dialect: Dialect) -> bytes:
    """Return the answer in this dialect, as one line. PASSED is silence: the agent goes on as without us."""
    match dialect:
        case Dialect.CLAUDE | Dialect.CODEX:
            said = _claude(answer)
        case Dialect.GEMINI:
            said = _gemini(answer)
        case Dialect.OPENCODE:
            said = _opencode(answer)
    return json.dumps(said).encode("ascii") + b"\n" if said else b""


def _claude(answer: Answer) -> dict[str, Any]:
    told: dict[str, Any] = {"hookEventName": "PreToolUse"}
    match answer.kind:
        case Kind.PASSED:
            return {}
        case Kind.ALLOWED:
            told |= {"permissionDecision": "allow"}
        case Kind.REWRITTEN:
            told |= {"permissionDecision": "allow", "updatedInput": answer.input}
        case Kind.ASKED:
            told |= {"permissionDecision": "ask", "permissionDecisionReason": answer.reason}
        case Kind.DENIED:
            told |= {"permissionDecision": "deny", "permissionDecisionReason": answer.reason}
    return {"hookSpecificOutput": told}


def _gemini(answer: Answer) -> dict[str, Any]:
    match answer.kind:
        case Kind.PASSED:
            return {}
        case Kind.ALLOWED:
            return {"decision": "allow"}
        case Kind.REWRITTEN:
            return {"decision": "allow", "hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": answer.input}}
        case Kind.ASKED | Kind.DENIED:
            return {"decision": "deny", "reason": answer.reason}


def _opencode(answer: Answer) -> dict[str, Any]:
    """Our own plugin reads this: it knows no silence, so that nothing at all can be taken for a go-ahead."""
    match answer.kind:
        case Kind.PASSED | Kind.ALLOWED:
            return {"decision": "allow"}
        case Kind.REWRITTEN:
            return {"decision": "allow", "tool_input": answer.input}
        case Kind.ASKED | Kind.DENIED:
            return {"decision": "deny", "reason": answer.reason}
