"""Step 3: the verdict as it is asked for: at the gate or not, within a grant, on a copy-on-write view or on real files.

In: an operation, its assessment, the task's envelope and context, and what else was known (Given). Out: a verdict. Pure. All
that a verdict hangs on is a value here, and each of these values is recorded with it: so the same verdict can be reached again
years later, and another one asked for (broker/record/replay.py).
"""

from __future__ import annotations

from dataclasses import replace

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.risk import Assessment, Risk
from broker.decide.agent import unwrapped, without_its_variables
from broker.decide.decide import decide
from broker.decide.deferral import starts_by_deferral
from broker.decide.envelope import Envelope
from broker.decide.given import NOTHING, Given
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Deny, Layer, Verdict
from broker.decide.wording import shorten
from broker.request.operation import Exec, FileAction, FileChange, Operation

# What landing can judge as well: it finds a content, or a folder.
_LANDING_JUDGES = frozenset({
    FileAction.WRITE, FileAction.TRUNCATE, FileAction.RENAME, FileAction.LINK, FileAction.MODE, FileAction.TIMES,
    FileAction.DELETE, FileAction.MKDIR,
})  # fmt: skip


def decide_given(
    operation: Operation, assessment: Assessment, envelope: Envelope, context: Context, given: Given = NOTHING
) -> Verdict:
    """Decide whether an operation may go ahead, with all that is known where it is asked."""
    if given.agent and (own := _the_agent_itself(operation, assessment, envelope, context)) is not None:
        return own
    verdict = decide(
        operation, assessment, envelope, context, scope=given.scope, interactive=given.interactive,
        digest=given.sha256 or None, agent=given.agent,
    )  # fmt: skip
    if not given.gate or isinstance(verdict, Allow):
        return verdict
    if (deferred := starts_by_deferral(operation, assessment, envelope, context, scope=given.scope, agent=given.agent)) is not None:
        return deferred
    return _left_to_landing(operation, envelope, context, given) or verdict


def _the_agent_itself(operation: Operation, assessment: Assessment, envelope: Envelope, context: Context) -> Allow | None:
    """Allow an agent's process to start one of its own programs: it is the one that the operator chose."""
    if Risk.BLOCKED in assessment.effects or envelope.effective_trust is Trust.UNTRUSTED:
        return None
    known = [level.profile.agent for level in envelope.levels()]
    if all(agent is not None and agent.is_own(operation, context) for agent in known):
        return Allow(layer=Layer.PROFILE, rule=AGENT_PROGRAM, effects=assessment.effects)
    return None


def consider(operation: Operation, envelope: Envelope, context: Context, given: Given = NOTHING) -> tuple[Assessment, Verdict]:
    """Classify and decide: what an agent's own process starts, without what it wraps around a command and its environment.

    INVARIANT: a wrapped command is judged as if it stood alone, and its wrapper opens no grant (tests/decide/test_agent.py).
    """
    known = [level.profile.agent for level in envelope.levels()]
    plain = without_its_variables(operation, known)
    judged = unwrapped(plain, envelope.profile.agent, context) if given.agent else plain
    assessment = classify(judged, context)
    verdict = decide_given(judged, assessment, envelope, context, given)
    if judged is plain:
        return assessment, verdict
    match verdict:
        case Allow(grant=grant) if grant is not None:
            verdict = replace(verdict, grant=None)  # what it runs is asked about again, and opens its own
        case Deny():
            verdict = replace(verdict, what=shorten(visible_command(operation, envelope, context).strip()))
    return assessment, verdict


def visible_command(operation: Operation, envelope: Envelope, context: Context) -> str:
    """Return the command that stands in the wrapper of an agent's own start, as its user sees it; '': nothing is wrapped."""
    if not isinstance(operation, Exec):
        return ""
    alone = unwrapped(operation, envelope.profile.agent, context)
    return alone.argv[-1] if isinstance(alone, Exec) and alone is not operation else ""


AGENT_PROGRAM = "agent.program"


def _left_to_landing(operation: Operation, envelope: Envelope, context: Context, given: Given) -> Allow | None:
    """Allow a change to a copy-on-write file that landing can judge better than its path can.

    That is: where the content decides, a folder (what comes into it is judged), and a deletion of what the task
    made itself. Nothing real is touched before landing, which looks at every file again.
    """
    if not given.layered or not isinstance(operation, FileChange) or operation.action not in _LANDING_JUDGES:
        return None
    from broker.classify.contents import looks_into

    for path in filter(None, (operation.path, operation.other)):
        if operation.action in (FileAction.MKDIR, FileAction.DELETE) or looks_into(path, context):
            if operation.action is FileAction.DELETE and given.real:
                return None
            continue
        plain = FileChange(action=FileAction.WRITE, path=path, landing=True)
        answer = decide(plain, classify(plain, context), envelope, context, scope=given.scope)
        if not isinstance(answer, Allow):
            return None
    return Allow(layer=Layer.LANDING, rule="landing.decides", effects=frozenset({Risk.LOCAL_WRITE}))
