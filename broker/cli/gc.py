"""`broker gc`: remove what brokers that died left on this host."""

from __future__ import annotations

import argparse

SUMMARY = "remove what a dead broker left behind"
EXAMPLES = """
broker gc
broker gc --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Sweep both engines. Things of a broker that still lives are never touched."""
    import json

    from broker.enforce.bubblewrap_engine import BubblewrapEngine
    from broker.enforce.choose import docker_may_answer, engine_named

    removed = BubblewrapEngine().sweep()
    if docker_may_answer():
        removed += engine_named("docker").sweep()
    if args.json:
        print(json.dumps({"removed": removed}))
    else:
        for line in removed:
            print(f"removed {line}")
        print(f"{len(removed)} leftovers removed" if removed else "nothing was left behind")
    return 0
