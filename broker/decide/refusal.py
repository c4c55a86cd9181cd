"""Step 3: the refusals. In: what was asked, and what does not permit it. Out: a Deny that explains itself.

`reason` is one sentence: what the thing is, and who does not permit it. `hint` says what to do instead.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, PartKind, Risk
from broker.decide import wording
from broker.decide.envelope import NEVER_GRANTED, Envelope
from broker.decide.trust import Trust
from broker.decide.verdict import Ask, Deny, Grant, Layer
from broker.request.operation import Operation, ShellText
from broker.values import dataclass

# An approval cannot change these: nobody can say what would be approved.
_NOT_APPROVABLE = frozenset({Risk.UNKNOWN, Risk.BLOCKED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one level of the envelope is asked."""

    operation: Operation
    assessment: Assessment
    context: Context
    scope: Grant | None
    digest: str | None
    agent: bool = False  # the agent's own process asks
    depth: int = 0  # 0: the task's own profile; else how many ancestors up


def blocked(operation: Operation, assessment: Assessment) -> Deny:
    """Refuse what nothing permits."""
    reason = next((reason for reason in assessment.reasons if reason.risk is Risk.BLOCKED), None)
    because = f" ({_sentence(reason.text)})" if reason else ""
    return Deny(
        what=wording.describe(operation),
        effects=assessment.effects,
        layer=Layer.CLASSIFIER,
        rule=reason.rule if reason else "blocked",
        reason=f"This is blocked{because}, and nothing permits that: no profile, no entry, no approval.",
        hint=wording.HINTS[Risk.BLOCKED],
    )


def tool_disabled(level: Envelope, question: Question, tool: str) -> Deny:
    """Refuse what is done with a tool that the level's profile disables."""
    profile = level.profile
    near = ", ".join(f"`{wording.shorten(entry.text)}`" for entry in profile.allowlist[:3])
    hint = (
        f"Run programs directly, without a shell: {near}."
        if near
        else "Run programs directly, without a shell."
    )
    return Deny(
        what=wording.describe(question.operation),
        effects=question.assessment.effects,
        layer=Layer.PROFILE,
        rule=f"tool.{tool}.disabled",
        reason=f"{_capital(_whose(level, question.depth))} disables the tool {tool}.",
        hint=hint,
    )


def denylisted(level: Envelope, question: Question, part: Part, prefix: tuple[str, ...]) -> Deny:
    """Refuse a command that starts with a denied prefix."""
    shown = wording.command_line(prefix)
    where = _whose(level, question.depth)
    return Deny(
        what=wording.describe(question.operation),
        effects=part.effects,
        layer=Layer.DENYLIST,
        rule="denylist.prefix",
        reason=f"{_capital(where)} denies every command that starts with `{shown}` ({part.risk.label}).",
        hint="Do without that command; only the operator can take it off the denylist.",
    )


def beyond(level: Envelope, question: Question, worst: tuple[Risk, Part], refused: frozenset[Risk]) -> Deny:
    """Refuse classes beyond the level's and the scope's. `worst`: the worst class, and its part."""
    risk, part = worst
    reason = next((reason for reason in part.reasons if reason.risk is risk), None)
    because = _sentence(reason.text) if reason else "This"
    is_class = f" ({risk.label})" if reason else f" is {risk.label}"
    who = _whose(level, question.depth)
    if level.effective_trust is Trust.UNTRUSTED and refused & level.profile.effects:
        who = f"{who}, held by an untrusted task,"
    permits = f"{who} permits only {wording.classes(level.own_effects | {Risk.SAFE})}"
    scope = question.scope
    if scope is not None:
        inside = f"the grant of `{wording.shorten(scope.entry)}`"
        permits = f"{permits}, {inside} only {wording.classes(scope.effects - NEVER_GRANTED)}"
    trust_refuses = level.effective_trust is Trust.UNTRUSTED
    return Deny(
        what=_tried(question.operation, part),
        effects=refused,
        layer=Layer.PROFILE if scope is None else Layer.GRANT,
        rule=reason.rule if reason else "profile.effects",
        reason=f"{because}{is_class}; {permits}.",
        hint=wording.hint_for(part, risk, level.profile, grant_entry=scope.entry if scope else ""),
        approvable=not refused & _NOT_APPROVABLE and not trust_refuses,
    )


def nobody_to_ask(operation: Operation, ask: Ask) -> Deny:
    """Turn a question into a refusal: a headless task never waits."""
    return Deny(
        what=wording.describe(operation),
        effects=ask.effects,
        layer=Layer.PROFILE,
        rule=ask.rule,
        reason=ask.reason,
        hint="Nobody is here to be asked: the operator can add it to the allowlist.",
        approvable=True,
    )


def beyond_approval(denial: Deny, program: str) -> Deny:
    """Say of what an approval could permit that it would not help: the kernel lets nothing start from where the program lies."""
    if not denial.approvable:
        return denial
    return replace(
        denial,
        reason=f"{denial.reason} Nobody was asked: under this profile the kernel starts nothing from {wording.shorten(posixpath.dirname(program))}.",
        hint="Only a profile that permits code_execution, or whose allowlist has this command, lets it start.",
        approvable=False,
    )


def _whose(level: Envelope, depth: int) -> str:
    if depth == 0:
        return f"profile {level.profile.name}"
    return f"profile {level.profile.name} of {'the parent task' if depth == 1 else 'an ancestor task'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tried(operation: Operation, part: Part) -> str:
    """Return the operation in words; for a text of several commands, the command that was refused."""
    whole = wording.describe(operation)
    if isinstance(operation, ShellText) and part.kind is PartKind.COMMAND and part.argv:
        command = wording.command_line(part.argv)
        if command != whole:
            return f"{command} (in: {wording.shorten(operation.text.strip(), 120)})"
    return whole


def _sentence(text: str) -> str:
    return wording.escape(text).rstrip(". ")
