"""What profiles cost: examples at load, a check, an answer, and the suggestions of a run with 10,000 refusals.

In processor time, because these are short and the machine may be busy. Run: .venv/bin/python -m benchmarks.profiles
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.decide.trust import Trust
from broker.profiles.can import may
from broker.profiles.check import findings
from broker.profiles.compare import compare
from broker.profiles.denials import Refusals
from broker.profiles.effective import chain, effective
from broker.profiles.judge import context_in
from broker.profiles.load import load_profile, profile_of
from broker.profiles.proposal import suggest
from broker.profiles.schema import decode_file

REFUSED = 10_000


def main() -> None:
    """Print one row for each kind of work."""
    builder, research, default = (load_profile(name) for name in ("builder", "research", "default"))
    rows: list[tuple[str, Callable[[], object], int]] = [
        ("one example more in a profile", lambda: _load(1000), 1000),
        ("`profile check` of builder (24 entries)", lambda: findings(builder), 1),
        ("`profile diff default builder`", lambda: compare(default, builder), 1),
        ("`profile show builder --effective --parent research`", lambda: effective(chain(builder, [research]), builder), 1),
        ("`can-i`, an answer", lambda: may(("npm", "test"), chain(builder, [], Trust.TRUSTED), context_in()), 1),
        (f"`profile suggest`, {REFUSED:,} different refused commands", lambda: _suggest(default), 1),
    ]
    print("| work | processor time |\n|---|---|")
    for what, work, parts in rows:
        work()  # tables, modules
        spent = min(_cpu(work) for _ in range(3 if "suggest" in what else 7)) / parts
        print(f"| {what} | {spent * 1e6:.0f} µs |" if spent < 1e-3 else f"| {what} | {spent * 1e3:.1f} ms |")


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _load(examples: int) -> None:
    text = "[profiles.p]\npermits = [" + ", ".join(f'"git log file-{number}"' for number in range(examples)) + "]\n"
    source, tables = decode_file(Path("p.toml"), text.encode())
    profile_of(source, "p", tables["p"])


def _suggest(profile: Any) -> None:
    shapes = (["pytest", "tests/test_{}.py"], ["make", "t{}"], ["python3", "-c", "print({})"], ["rm", "-rf", "/x{}"])
    refusals = Refusals()
    refusals.add_run(
        {
            "type": "exec.decided", "run": "r", "task": "root", "verdict": "deny", "rule": "x",
            "operation": {"kind": "exec", "argv": [word.format(number) for word in shapes[number % len(shapes)]]},
        }
        for number in range(REFUSED)
    )  # fmt: skip
    suggest(refusals, profile)


if __name__ == "__main__":
    main()
