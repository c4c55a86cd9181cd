"""Step 3: the decision. In: an operation, its assessment, the task's envelope. Out: Allow, Ask or Deny.

The order is: blocked, a disabled tool, an exact allowlist entry, the denylist, the classes. Each level of
the envelope (the task's own profile, then each ancestor's) is judged on its own in that order, and the
operation goes ahead only if every level lets it. Nothing here reads the world, and nothing raises.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace

from broker.classify.context import Context
from broker.classify.risk import Assessment, Part, PartKind, Risk
from broker.decide import refusal
from broker.decide.allowlist import denied_prefix, entry_for_exec, listed_parts
from broker.decide.envelope import NEVER_GRANTED, Envelope
from broker.decide.refusal import Question
from broker.decide.trust import Trust
from broker.decide.unrecognised import merely_unrecognised
from broker.decide.verdict import Allow, Ask, Deny, Grant, Layer, Verdict
from broker.request.operation import Exec, Operation, ShellText

_SHELLS = frozenset(
    {"sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "yash", "fish", "csh", "tcsh"}
)
_SAFE = frozenset({Risk.SAFE})
_MULTI_CALL = frozenset({"busybox", "toybox"})


def decide(
    operation: Operation,
    assessment: Assessment,
    envelope: Envelope,
    context: Context,
    *,
    scope: Grant | None = None,
    interactive: bool = False,
    digest: str | None = None,
    agent: bool = False,
) -> Verdict:
    """Decide whether `operation`, assessed as `assessment`, may go ahead.

    `scope` is the grant that the asking process lives in, if its ancestry is known. `interactive` says that
    somebody is there to be asked. `digest` is the SHA-256 of the program's file in hexadecimal digits,
    needed only where `needs_digest` says so. `agent`: the agent's own process asks, which each level may let do a
    little more (broker/decide/agent.py). An Allow with a `grant` means: the started process, and what
    it starts, lives in that grant from now on; without one it stays where it is.
    """
    if Risk.BLOCKED in assessment.effects:
        return refusal.blocked(operation, assessment)
    permitted: list[tuple[Envelope, Allow]] = []
    refused: list[Deny] = []
    for depth, level in enumerate(envelope.levels()):
        question = Question(
            operation=operation,
            assessment=assessment,
            context=context,
            scope=scope,
            digest=digest,
            agent=agent,
            depth=depth,
        )
        answer = _judge(level, question)
        if isinstance(answer, Allow):
            permitted.append((level, answer))
        else:
            refused.append(answer)
    if not refused:
        return _allow(permitted, scope)
    final = next((deny for deny in refused if not deny.approvable), None)
    if final is not None:
        return final
    if interactive:
        effects = frozenset().union(*(deny.effects for deny in refused))
        return Ask(effects=effects, reason=refused[0].reason, rule=refused[0].rule)
    return refused[0]


def _judge(level: Envelope, question: Question) -> Allow | Deny:
    """Answer for one level of the envelope."""
    operation, assessment = question.operation, question.assessment
    profile = level.profile
    if "shell" in profile.disabled_tools and _is_shell(operation, assessment):
        return refusal.tool_disabled(level, question, "shell")
    if isinstance(operation, Exec):
        entry = entry_for_exec(profile, operation, question.context, question.digest)
        if entry is not None:
            grant = Grant(entry=entry.text, effects=level.grant_effects(entry), unrecognised=True)
            return Allow(
                layer=Layer.ALLOWLIST, rule="allowlist.exact", effects=assessment.effects, grant=grant
            )
    covered = listed_parts(profile.allowlist, operation, assessment.parts)
    rest: Sequence[Part] = assessment.parts
    if covered:
        rest = [part for index, part in enumerate(assessment.parts) if index not in covered]
    if profile.denylist:
        for part in rest:
            prefix = _denied(level, question, part)
            if prefix is not None:
                return refusal.denylisted(level, question, part, prefix)
    return _by_classes(level, question, rest, listed=bool(covered))


def _by_classes(level: Envelope, question: Question, rest: Sequence[Part], *, listed: bool) -> Allow | Deny:
    scope = question.scope
    own = level.own_effects | _SAFE | _of_the_agent(level, question)
    if not question.assessment.parts and not _is_empty(question.operation):
        # INVARIANT: an assessment that says nothing of something is no permission.
        rest = [_unassessed(question.operation)]
    granted = scope.effects - NEVER_GRANTED if scope else frozenset()
    beyond_own = False
    worst: tuple[Risk, Part] | None = None
    refused: set[Risk] = set()
    for part in rest:
        lifted = _lifted(level, part)
        if part.effects - lifted <= own:
            continue
        beyond_own = True
        excess = _effects_in(scope, part, own) - lifted - own - granted
        refused |= excess
        if excess and (worst is None or max(excess) > worst[0]):
            worst = (max(excess), part)
    if worst is not None:
        return refusal.beyond(level, question, worst, frozenset(refused))
    effects = question.assessment.effects
    if listed:
        return Allow(layer=Layer.ALLOWLIST, rule="allowlist.part", effects=effects)
    if beyond_own:
        return Allow(layer=Layer.GRANT, rule="grant.scope", effects=effects)
    return Allow(layer=Layer.PROFILE, rule="profile.effects", effects=effects)


def _of_the_agent(level: Envelope, question: Question) -> frozenset[Risk]:
    """Return what the level lets the agent's own processes do by themselves; nothing for an untrusted task."""
    agent = level.profile.agent
    if not question.agent or agent is None or level.effective_trust is Trust.UNTRUSTED:
        return _NO_RISKS
    return agent.lifts(question.operation, question.context)


_NO_RISKS: frozenset[Risk] = frozenset()


def _effects_in(scope: Grant | None, part: Part, own: frozenset[Risk]) -> frozenset[Risk]:
    """Return the part's effects as seen in a scope, where an unrecognised program is merely code."""
    if scope is None or not scope.unrecognised or Risk.UNKNOWN not in part.effects or Risk.UNKNOWN in own:
        return part.effects
    if not merely_unrecognised(part):
        return part.effects
    return (part.effects - {Risk.UNKNOWN}) | {Risk.CODE_EXECUTION}


def _lifted(level: Envelope, part: Part) -> frozenset[Risk]:
    """Return persistence if the profile lets land, by its rule, everything that makes this part persistence."""
    lands = level.lands
    if not lands or Risk.PERSISTENCE not in part.effects:
        return frozenset()
    rules = [reason.rule for reason in part.reasons if reason.risk is Risk.PERSISTENCE]
    return frozenset({Risk.PERSISTENCE}) if rules and all(rule in lands for rule in rules) else frozenset()


def _allow(permitted: list[tuple[Envelope, Allow]], scope: Grant | None) -> Allow:
    """Join the levels' answers: the task's own says why, all of them say what the grant may be."""
    own = permitted[0][1]
    grant = _joined_grant(permitted, scope)
    return own if grant is None and own.grant is None else replace(own, grant=grant)


def _joined_grant(permitted: list[tuple[Envelope, Allow]], scope: Grant | None) -> Grant | None:
    """Return the grant that the started process opens: what every level lets it have, and its scope's.

    A level without such an entry, which permits the invocation by its classes, gives its classes and no more.
    """
    opened = [answer.grant for _, answer in permitted if answer.grant is not None]
    if not opened:
        return None
    granted = frozenset().union(*(grant.effects for grant in opened))
    unrecognised = True
    for level, answer in permitted:
        if answer.grant is None:
            granted &= level.own_effects
            unrecognised = unrecognised and Risk.UNKNOWN in level.own_effects
        else:
            granted &= level.own_effects | answer.grant.effects
    if scope is not None:
        # What lives in a scope keeps it: an entry started from within another adds to it.
        granted |= scope.effects
        unrecognised = unrecognised or scope.unrecognised
    return Grant(entry=opened[0].entry, effects=granted, unrecognised=unrecognised)


def _is_shell(operation: Operation, assessment: Assessment) -> bool:
    if isinstance(operation, ShellText):
        return True
    if not isinstance(operation, Exec):
        return False
    if any(posixpath.basename(path) in _SHELLS for path in (operation.path, operation.program)):
        return True
    commands = [part.argv for part in assessment.parts if part.kind is PartKind.COMMAND]
    return any(names_a_shell(argv) for argv in (operation.argv, *commands))


def names_a_shell(argv: tuple[str, ...]) -> bool:
    """Tell whether an argv calls a shell, by its name or through a program that has one inside."""
    names = [posixpath.basename(word).lstrip("-") for word in argv[:2]]  # `-bash` is a login shell
    if not names:
        return False
    return names[0] in _SHELLS or (names[0] in _MULTI_CALL and len(names) > 1 and names[1] in _SHELLS)


def _denied(level: Envelope, question: Question, part: Part) -> tuple[str, ...] | None:
    if part.kind not in {PartKind.COMMAND, PartKind.WHOLE}:
        return None
    operation = question.operation
    started: tuple[str, ...] = ()
    argv = part.argv
    if isinstance(operation, Exec) and (part is question.assessment.parts[0] or argv == operation.argv):
        started = (operation.path, operation.program)
        argv = argv or operation.argv
    return denied_prefix(level.profile.denylist, argv, started)


def _is_empty(operation: Operation) -> bool:
    return isinstance(operation, ShellText) and not operation.text.strip()


def _unassessed(operation: Operation) -> Part:
    argv = operation.argv if isinstance(operation, Exec) else ()
    kind = PartKind.COMMAND if argv else PartKind.WHOLE
    return Part(kind=kind, argv=argv, effects=frozenset({Risk.UNKNOWN}), reasons=())
