"""`broker doctor`: start a real sandbox on each engine, and show which layers hold.

Each with how that was proven and, where one does not hold, what mends it.
"""

from __future__ import annotations

import argparse

SUMMARY = "prove which layers are effective on this host"
EXAMPLES = """
broker doctor
broker doctor --engine docker --image python
broker doctor --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--engine", choices=("all", "docker", "bubblewrap"), default="all", help="look at one engine only")
    parser.add_argument("--image", default="", help="the image to look at, for docker (default: base)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Examine. Exit 0 if at least one engine enforces every layer, else 78."""
    import json
    import sys

    from broker.cli.terminal import Colours
    from broker.enforce.examine import Finding, examine, host_findings

    names = ("bubblewrap", "docker") if args.engine == "all" else (args.engine,)
    host = host_findings()
    engines = {name: examine(name, args.image) for name in names}
    good = any(all(finding.effective for finding in found) for found in engines.values())
    if args.json:
        print(
            json.dumps(
                {
                    "host": [finding.as_dict() for finding in host],
                    "engines": {name: [finding.as_dict() for finding in found] for name, found in engines.items()},
                    "ok": good,
                }
            )
        )
        return 0 if good else 78
    colours = Colours(sys.stdout)

    def show(finding: Finding) -> None:
        mark = colours.paint("effective    ", "green") if finding.effective else colours.paint("NOT effective", "red")
        print(f"  {mark}  {finding.name:<12} {finding.evidence}")
        if not finding.effective and finding.remedy:
            print(f"                              → {finding.remedy}")

    print(colours.paint("host", "bold"))
    for finding in host:
        show(finding)
    for name, found in engines.items():
        print(colours.paint(name, "bold"))
        for finding in found:
            show(finding)
    if not good:
        print("\nNo engine enforces every layer here: tasks are refused (exit 78) until one does.")
    return 0 if good else 78
