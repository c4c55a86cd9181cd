"""What the Python interface costs over the machinery that it sits on, and a program in an open sandbox over one outside.

    python -m benchmarks.python_interface
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import pair
from benchmarks.sandboxes import folders, profile
from broker import Broker
from broker.supervisor import RunRequest, run

TRUE = ["/bin/true"]


def main() -> int:
    """Measure and print."""
    print("| work | from Python | against | ratio | goal | met |\n|---|---|---|---|---|---|", flush=True)
    with folders() as (workspace, state):
        rules = profile()
        request = RunRequest(
            argv=tuple(TRUE), profile=rules, workspace=workspace, engine="bubblewrap", state_dir=Path(state), stdin=-1
        )

        def once() -> None:
            Broker.run_once(TRUE, rules, workspace, engine="bubblewrap", state_dir=state)

        print(pair("run_once", once, lambda: run(request), against="supervisor.run", goal=1.1, runs=30).line(), flush=True)
        with Broker(rules, workspace, engine="bubblewrap", state_dir=state) as b:
            print(
                pair(
                    "run, in an open sandbox", lambda: b.run(TRUE), lambda: subprocess.run(TRUE, capture_output=True, check=True),
                    against="subprocess.run", goal=3, runs=300,
                ).line(), flush=True,
            )  # fmt: skip
            print(
                pair(
                    "eight sub-tasks at once", lambda: b.delegate_many([{"profile": "adversary", "command": TRUE}] * 8),
                    lambda: b.delegate(profile="adversary", command=TRUE), against="one", goal=8, runs=5,
                ).line(), flush=True,
            )  # fmt: skip
        python = [sys.executable, "-c"]
        print(
            pair(
                "from broker import Broker", lambda: subprocess.run([*python, "from broker import Broker"], check=True),
                lambda: subprocess.run([*python, "import broker.supervisor"], check=True), against="the supervisor alone", goal=1.5, runs=15,
            ).line()
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
