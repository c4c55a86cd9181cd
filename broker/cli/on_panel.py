"""`broker run --land on-panel NAME`: a worker, judges, and as many rounds as the operator gives them."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from broker.cli.report import Reporter
    from broker.panel.gate import Bench
    from broker.panel.verdict import Decision
    from broker.stage import Watcher
    from broker.supervisor import RunRequest
    from broker.task.result import Result


def bench_for(args: argparse.Namespace, mode: str, watcher: Watcher) -> Bench:
    """Return the panel that --land on-panel names, and have it convened. `mode` is how the task has its workspace.

    Raises UsageError, ProfileError.
    """
    import sys

    from broker.cli.judge_text import Hearing
    from broker.errors import UsageError
    from broker.panel.definition import load_panel
    from broker.panel.gate import Bench

    if mode != "overlay":
        raise UsageError(
            f"--land on-panel needs a copy-on-write workspace, and the profile has it {mode}: there is nothing to hold back. "
            'Set sandbox.workspace = "overlay" in the profile, or leave --land out'
        )
    panel = load_panel(args.panel, profile_dirs=args.profile_dir, workspace=args.workspace)
    bench = Bench(panel=panel, goal=getattr(args, "goal", ""))
    if not args.quiet:
        hearing = Hearing(panel, sys.stderr)
        bench.told, bench.begun = hearing.told, hearing.begun
        if watcher.denied is not None:
            watcher.denied = hearing.beside(watcher.denied)
    watcher.convene = bench.convene
    return bench


def carry_on_panel(args: argparse.Namespace, request: RunRequest, watcher: Watcher, reporter: Reporter) -> tuple[Result, dict[str, Any]]:
    """Run the rounds. Returns the last result, and what is added to it: `panel`, the last decision, or None."""
    import sys

    from broker.cli.judge_text import decision_lines
    from broker.cli.terminal import Colours
    from broker.errors import UsageError
    from broker.panel.gate import MOST_ROUNDS, work_until_clean

    rounds = getattr(args, "rounds", 1)
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds {rounds}: write a number from 1 to {MOST_ROUNDS}")
    bench = bench_for(args, request.profile.sandbox.workspace, watcher)

    def decided(decision: Decision) -> None:
        if not args.quiet:
            sys.stderr.write(decision_lines(decision, Colours(sys.stderr)))
            sys.stderr.flush()

    result = work_until_clean(request, bench, watcher, rounds=rounds, again=decided)
    if bench.decision is not None:
        decided(bench.decision)
    return result, {"panel": bench.decision.as_dict() if bench.decision is not None else None}
