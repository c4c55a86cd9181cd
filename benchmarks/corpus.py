"""Print how the classifier does on JSON-lines files of operations.

    python benchmarks/corpus.py FILE…  [--workspace DIR] [--show KIND]

Rows hold `op` and `kind` (shell, exec, file_write, path, url, tool), and a label if they have one:
`min_class` (the lowest acceptable class; with `control` it is the highest as well), or `class` with `rel`
(eq, ge, ne, has …) or `direction` (under: at least this class; over: at most this class). Rows without a
label are counted only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from broker.classify.context import Context
from broker.classify.risk import Assessment, Risk
from broker.cli.classify import assess


def right(row: dict[str, object], answer: Assessment) -> bool | None:
    """Whether the answer fits the row's label; None if it has none that we know."""
    label = row.get("min_class") or row.get("class")
    if not isinstance(label, str):
        return None
    try:
        wanted = Risk.parse(label)
    except KeyError:
        return None
    risk, effects = answer.risk, answer.effects
    if "min_class" in row:
        return risk == wanted if row.get("control") else risk >= wanted
    if "direction" in row:
        if row["direction"] == "over":
            return risk <= wanted
        return risk >= wanted or wanted in effects
    match row.get("rel", "eq"):
        case "eq":
            return risk == wanted
        case "ge":
            return risk >= wanted
        case "ne":
            return risk != wanted
        case "has" | "deny" | "not_allow":
            return wanted in effects or risk >= wanted
        case _:
            return None


def main() -> int:
    """Read the files, print one block of figures for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--workspace", default="/work/project")
    parser.add_argument("--home", default="/home/dev")
    parser.add_argument("--show", choices=["wrong", "unknown", "denied"], help="print these rows")
    parser.add_argument("--limit", type=int, default=1000)
    arguments = parser.parse_args()
    for file in arguments.files:
        workspace = arguments.workspace
        context = Context(cwd=workspace, home=arguments.home, workspace=workspace)
        report(file, context, arguments.show, arguments.limit)
    return 0


def report(file: Path, context: Context, show: str | None, limit: int) -> None:
    """Classify every row of one file and print the figures."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    classes: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    times: list[float] = []
    judged = fitting = shown = unparsable = 0
    for row in rows:
        started = time.perf_counter()
        answer = assess(row.get("kind", "shell"), row["op"], context, row)
        times.append(time.perf_counter() - started)
        classes[answer.risk.label] += 1
        unparsable += any(reason.rule.startswith("text.") for reason in answer.reasons)
        if Risk.UNKNOWN in answer.effects:
            rules.update({f"{reason.rule}" for reason in answer.reasons if reason.risk is Risk.UNKNOWN})
        verdict = right(row, answer)
        if verdict is not None:
            judged += 1
            fitting += verdict
        wanted = (
            (show == "wrong" and verdict is False)
            or (show == "unknown" and Risk.UNKNOWN in answer.effects)
            or (show == "denied" and any(risk > Risk.CODE_EXECUTION for risk in answer.effects))
        )
        if wanted and shown < limit:
            shown += 1
            label = row.get("min_class") or row.get("class") or ""
            mark = row.get("rel") or row.get("direction") or ("control" if row.get("control") else "")
            effects = " ".join(sorted(risk.label for risk in answer.effects))
            why = {reason.rule for reason in answer.reasons if reason.risk is answer.risk}
            print(f"  {label} {mark} | {effects} | {row['op'][:160]!r} {sorted(why)[:3]}")
    total = len(rows)
    times.sort()
    print(f"{file.name}: {total} rows")
    print("  classes: " + ", ".join(f"{name} {count}" for name, count in classes.most_common()))
    print(f"  unknown {classes['unknown'] / total:.1%}, unparsable {unparsable / total:.1%}")
    if judged:
        print(f"  labels that fit: {fitting} of {judged} ({fitting / judged:.1%})")
    if rules and show == "unknown":
        print("  why unknown: " + ", ".join(f"{rule} {count}" for rule, count in rules.most_common(12)))
    print(
        f"  time: median {statistics.median(times) * 1e6:.0f} µs, p99 {times[int(total * 0.99)] * 1e6:.0f} µs,"
        f" worst {times[-1] * 1e6:.0f} µs"
    )


if __name__ == "__main__":
    sys.exit(main())
