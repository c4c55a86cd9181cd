"""The verdict on one command, without a sandbox: recorded like any other, and cheap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from broker.classify.context import Context
from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust


def judge_only(
    argv: tuple[str, ...], profile: Profile, workspace: str, trust: Trust, state: Path | None = None, *, cwd: str = ""
) -> dict[str, Any] | None:
    """Return the result of a refusal, after recording it as a run of its own; None if it is permitted. `cwd`: '' for the workspace."""
    from broker.classify import classify
    from broker.decide.decide import decide
    from broker.decide.verdict import Allow
    from broker.request.operation import Exec

    home = "/home/agent"
    context = Context(cwd=cwd or workspace, home=home, workspace=workspace)
    operation = Exec(argv=argv, cwd=cwd or workspace)
    assessment = classify(operation, context)
    envelope = Envelope(profile=profile, trust=trust)
    verdict = decide(operation, assessment, envelope, context)
    if isinstance(verdict, Allow):
        return None

    from broker.decide.refusal import nobody_to_ask
    from broker.decide.verdict import Ask
    from broker.record import event
    from broker.record.denials import DenialLog
    from broker.record.journal import Journal
    from broker.record.recorded import profile_data
    from broker.record.run_files import state_dir

    denial = nobody_to_ask(operation, verdict) if isinstance(verdict, Ask) else verdict
    journal = Journal.create(state or state_dir())
    try:
        journal.append(
            event.RUN_STARTED, command=argv, profile=profile.name, digest=profile.digest, max_risk=profile.max_risk,
            workspace=workspace, trust=trust.label, broker_pid=os.getpid(), user=os.getuid(), verb="exec",
            context=context, envelope=profile_data(profile),
        )  # fmt: skip
        journal.append(event.EXEC_DECIDED, task=event.ROOT, **event.decided(operation, assessment, verdict))
        log = DenialLog(journal)
        log.add("exec", denial)
        summary: dict[str, Any] = {"status": "denied", "exit_code": 126, "reason": denial.reason, "denials": 1}
        journal.append(event.RUN_FINISHED, task=event.ROOT, **summary)
    finally:
        journal.close()
    return {
        "status": "denied", "exit_code": 126, "reason": denial.reason, "signal": None, "timed_out": False, "oom": False,
        "denials": log.as_result(), "denied": 1, "usage": {}, "engine": "", "layers": [],
        "journal": str(journal.path), "run": journal.run,
    }  # fmt: skip
