"""`broker exec`: run one command if, and only if, the profile permits that command itself."""

from __future__ import annotations

import argparse

SUMMARY = "run a command only if the profile permits that command itself"
EXAMPLES = """
broker exec --profile builder -- go test ./...
broker exec --profile builder -- bash -c 'git status && wc -l *.py'
broker exec --profile default -- curl https://example.com    # refused: exit 126
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from broker.cli.run import add_sandbox_arguments

    add_sandbox_arguments(parser)
    parser.add_argument("--cwd", default="", metavar="DIR",
                        help="where in the workspace the command starts (default: the workspace itself)")  # fmt: skip
    parser.add_argument("--brief", action="store_true",
                        help="print what was refused and what did not land, and neither header nor summary: for agents")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Judge, and run only what is permitted. A refusal is exit 126, and said on stderr."""
    from broker.errors import UsageError

    if not args.command or not args.command[0]:
        raise UsageError("what is to run? Put it after `--`: broker exec --profile builder -- CMD")
    args.cwd = _cwd(args)
    denial = _refused_at_once(args)
    if denial is not None:
        return denial
    from broker.cli.run import carry_out

    return carry_out(args, judged=True, terminal=False)


def _cwd(args: argparse.Namespace) -> str:
    """Return --cwd as an absolute path. Raises UsageError for one that a task cannot start in."""
    import os

    from broker.errors import UsageError

    if not args.cwd:
        return ""
    cwd: str = os.path.realpath(args.cwd)
    workspace: str = os.path.realpath(args.workspace)
    if not (cwd == workspace or cwd.startswith(workspace.rstrip("/") + "/")) or not os.path.isdir(cwd):
        raise UsageError(f"--cwd {args.cwd}: there is no such folder in the workspace {workspace}, and a task sees no other")
    return cwd


def _refused_at_once(args: argparse.Namespace) -> int | None:
    """Judge the command without making a sandbox: most refusals need none, and cost a tenth of it.

    Returns the exit code of a refusal (which is recorded), or None when the command goes on to be judged
    again where it will run.
    """
    import os
    import sys

    from broker.cli.report import denial_lines
    from broker.cli.run import claim_result, write_result
    from broker.cli.terminal import Colours
    from broker.decide.trust import Trust
    from broker.profiles.load import load_profile
    from broker.task.verdict_only import judge_only

    profile = load_profile(args.profile, profile_dirs=args.profile_dir, workspace=args.workspace)
    result = judge_only(tuple(args.command), profile, os.path.realpath(args.workspace), Trust.parse(args.trust), cwd=args.cwd)
    if result is None:
        return None
    if not args.quiet:
        for row in result["denials"]:
            sys.stderr.write(denial_lines(row, Colours(sys.stderr)))
    claim_result(args)
    write_result(args, result)
    return int(result["exit_code"])
