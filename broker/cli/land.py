"""`broker land`: carry changes that were kept into the workspace. An operator's decision, and recorded as one."""

from __future__ import annotations

import argparse

SUMMARY = "carry kept changes of a task into the workspace"
EXAMPLES = """
broker land last                          what the profile permits (after run --land never)
broker land last .github/workflows        these paths, though the profile withheld them
broker land 20261130-074517-353d --all    everything that can land
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "broker land [--all] [--json] TASK [PATH ...]"
    parser.add_argument("task", metavar="TASK", nargs="?", help="a run id, its start or end, or last: the newest of this workspace")
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="land these and what lies below them, withheld or not"
    )
    parser.add_argument("--all", action="store_true", dest="everything", help="land what was withheld, too")
    parser.add_argument("--json", action="store_true", help="print what landed and what did not as JSON")


def run(args: argparse.Namespace) -> int:
    """Land, say what landed, and why the rest did not. 0 if all that was asked for is in the workspace."""
    import json
    import sys

    from broker.cli.terminal import escape
    from broker.enforce.layer import find_layer, layers_base
    from broker.errors import UsageError
    from broker.exit_codes import DENIED
    from broker.record.run_files import state_dir
    from broker.task.landing import land_by_hand

    if not args.task:
        raise UsageError("what is to land? Name a task whose changes are kept: broker land last (broker diff shows them)")
    state = state_dir()
    layer = find_layer(layers_base(state), args.task)
    if args.everything and args.paths:
        raise UsageError("--all lands everything: leave out the paths, or leave out --all")
    if not args.json:
        print(f"task      {layer.run} in {escape(layer.manifest.workspace)}", file=sys.stderr)
    result = land_by_hand(layer, state, args.paths, everything=args.everything)
    rest = result["withheld"] + result["conflicts"]
    if args.json:
        print(json.dumps(result))
    else:
        for row in result["landed"]:
            print(f"landed    {escape(row['path'])}  ({row['change']})")
        for row in rest:
            print(f"not landed  {escape(row['path'])}: {escape(row['reason'])}", file=sys.stderr)
        if not result["landed"] and not rest:
            print("there was nothing to land")
        if result["kept"]:
            print(f"the rest is kept: broker diff {result['kept']}", file=sys.stderr)
    return DENIED if rest else 0
