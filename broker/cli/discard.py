"""`broker discard`: throw away the changes of a task that were kept."""

from __future__ import annotations

import argparse

SUMMARY = "throw away the kept changes of a task"
EXAMPLES = """
broker discard 20261130-074517-353d
broker discard last
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "broker discard [--json] TASK"
    parser.add_argument("task", metavar="TASK", nargs="?", help="a run id, its start or end, or last: the newest of this workspace")
    parser.add_argument("--json", action="store_true", help="print what was discarded as JSON")


def run(args: argparse.Namespace) -> int:
    """Discard a layer. The record of what the task tried stays in its journal."""
    import json

    from broker.cli.terminal import escape
    from broker.enforce.layer import find_layer, layers_base
    from broker.errors import UsageError
    from broker.record.run_files import state_dir
    from broker.task.landing import discard

    state = state_dir()
    if not args.task:
        raise UsageError("whose changes? Name a task: broker discard last (broker diff shows them)")
    layer = find_layer(layers_base(state), args.task)
    size = layer.size()
    discard(layer, state)
    if args.json:
        print(json.dumps({"run": layer.run, "bytes": size}))
    else:
        print(f"discarded the changes of {layer.run} in {escape(layer.manifest.workspace)} ({size >> 10} KiB)")
    return 0
