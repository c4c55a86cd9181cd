"""`make bench`: every figure of docs/benchmarks.md, as the rows of its table."""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import UTC, datetime

from benchmarks import (
    calls,
    coldstart,
    connections,
    delegation,
    execs,
    gateway,
    landing,
    memory,
    starts,
    tree,
)
from benchmarks.measure import as_installed


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-docker", action="store_true", help="leave out what needs a Docker engine")
    parser.add_argument("only", nargs="*", help="starts, execs, calls, connections, delegation, landing, coldstart, memory, tree, gateway (default: all)")
    args = parser.parse_args()
    as_installed()
    chosen = args.only or ["starts", "execs", "calls", "connections", "delegation", "landing", "coldstart", "memory", "tree", "gateway"]
    print(f"{datetime.now(UTC):%Y-%m-%d}, Linux {platform.release()}, Python {platform.python_version()}\n")
    print("| work | broker | against | ratio | goal | met |\n|---|---|---|---|---|---|", flush=True)
    for module in (starts, execs, calls, connections, delegation, landing, coldstart):
        if module.__name__.rpartition(".")[2] in chosen:
            for row in module.figures(not args.no_docker):
                print(row.line(), flush=True)
    if "memory" in chosen:
        print(f"\n{memory.figures()}")
    if "tree" in chosen:
        print(f"\n{tree.figures()}")
    if "gateway" in chosen:
        print(f"\n{gateway.figures()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
