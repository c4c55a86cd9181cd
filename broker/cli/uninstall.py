"""`broker uninstall`: take out of an agent's settings what `broker install` put there, and nothing else."""

from __future__ import annotations

import argparse

SUMMARY = "take broker's hooks out of an agent's settings"
EXAMPLES = """
broker uninstall --agent claude
broker uninstall --agent gemini --scope project --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from broker.cli.install import add_agent_arguments

    add_agent_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Undo. Exit 0 if none of our hooks is left, 1 if somebody said no."""
    import contextlib
    import os

    from broker.cli.install import backup_path, read, settle
    from broker.serve.hook_agents import AGENTS, Scope, without_ours

    agent, workspace = AGENTS[args.agent], os.path.realpath(args.workspace)
    path = os.path.realpath(agent.path(Scope(args.scope), workspace))
    old = read(path)
    before = read(backup_path(path))
    new = None if old is None else without_ours(agent, old, path, before)
    code = settle(args, path, old, new, backup=None, left="", done="uninstalled")
    if code == 0 and not args.dry_run:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(backup_path(path))
    return code
