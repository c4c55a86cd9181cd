"""`broker plan`: show the plan of a run, with its evidence; waive one of its checks while the run goes on."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from broker import exit_codes

SUMMARY = "show what a run planned, and what was seen of it; waive a check"
EXAMPLES = """
broker plan                              the plan of the newest run
broker plan show 9f6b --json
broker plan waive 9f6b tests.2 --because "the registry is down, and the release is not"
broker run --plan plan.json --land on-plan --profile builder -- my-agent
"""
WORDS = ("show", "waive")
MOST_REASON = 500  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "broker plan [show] [RUN] [--task TASK] [--json] | broker plan waive RUN STEP.CHECK --because TEXT [--task TASK]"
    parser.add_argument("words", nargs="*", metavar="show RUN | waive RUN STEP.CHECK",
                        help="RUN is a run's id, its start or its last part, or last; a plan is made with run --plan, or by the task")  # fmt: skip
    parser.add_argument("--task", metavar="TASK", help="the task whose plan it is (default for waive: root; for show: all)")
    parser.add_argument("--because", metavar="TEXT", help="why the check need not be seen; it is recorded, with who says so")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Do it. Returns 1 when there is no plan, or when nothing was waived."""
    from broker.errors import UsageError

    match args.words:
        case [] | ["show"]:
            return _show("last", args)
        case ["show", word]:
            return _show(word, args)
        case ["waive", word, check]:
            return _waive(word, check, args)
        case ["waive", *_]:
            raise UsageError("which check of which run? Write: broker plan waive RUN STEP.CHECK --because TEXT")
        case [word] if word not in WORDS:
            return _show(word, args)
        case _:
            raise UsageError("write: broker plan show RUN, or broker plan waive RUN STEP.CHECK --because TEXT")


def _show(word: str, args: argparse.Namespace) -> int:
    from broker.record.journal import read
    from broker.record.run_files import find_run, state_dir
    from broker.task.plan import as_table, rebuilt

    path = find_run(state_dir(), word)
    plans = {task: as_table(plan) for task, plan in rebuilt(read(path)).items() if args.task in (None, task)}
    if args.json:
        import json

        print(json.dumps({"run": path.stem, "plans": plans}))
    elif plans:
        print("\n\n".join("\n".join(_lines(path.stem, task, table)) for task, table in plans.items()))
    else:
        sys.stderr.write(f"broker: the run {path.stem} has no plan. Give one with run --plan, or let the task create one\n")
    return exit_codes.OK if plans else exit_codes.NOTHING


def _lines(run: str, task: str, table: dict[str, Any]) -> list[str]:
    """Return a plan for people. What its worker wrote is shown, never obeyed."""
    from broker.cli.terminal import Colours, escape
    from broker.task.plan import as_text

    colours = Colours(sys.stdout)
    shades = {"✓": "green", "✗": "red", "▸": "yellow", "–": "yellow"}
    done = sum(step["state"] == "done" for step in table["steps"])
    lines = [f"{colours.paint(run, 'bold')}  {task}  {done} of {len(table['steps'])} steps done"]
    for text in map(escape, as_text(table)):
        bare = text.lstrip(" ")
        mark, indent = bare[:1], text[: len(text) - len(bare)]
        lines.append(indent + colours.paint(mark, shades[mark]) + bare[1:] if mark in shades else text)
    return lines


def _waive(word: str, check: str, args: argparse.Namespace) -> int:
    from broker.cli.tasks import matching
    from broker.errors import UsageError
    from broker.task.watching import joined, waive

    step, dot, number = check.rpartition(".")
    if not dot or not number.isdecimal():
        raise UsageError(f"{check!a} is no check. Write STEP.CHECK, as `broker plan show` does: tests.2")
    because = (args.because or "").strip()
    if not because or len(because) > MOST_REASON:
        raise UsageError(f"why? Say it in at most {MOST_REASON} characters: --because TEXT. It is recorded")
    with joined() as runs:
        found = matching(runs, word)
        if len(found) != 1:
            more = f"could mean {len(found)} runs. Write more of the id" if found else "is no run that goes on (broker tasks shows them). A check is waived while its run goes on; afterwards, broker land RUN is your own word"
            raise UsageError(f"{word!a} {more}")
        answer = waive(runs[found[0]], args.task or "root", step, int(number), because)
    return _said(answer, found[0], args)


def _said(answer: dict[str, Any] | None, run: str, args: argparse.Namespace) -> int:
    if answer is None or answer["event"] != "waived":
        why = answer["reason"] if answer is not None else f"the broker of {run} does not answer"
        from broker.cli.terminal import escape

        sys.stderr.write(f"broker: nothing was waived: {escape(why)}\n")
        return exit_codes.NOTHING
    if args.json:
        import json

        print(json.dumps({"run": run, "plans": {answer["task"]: answer["plan"]}}))
    else:
        print("\n".join(_lines(run, answer["task"], answer["plan"])))
    return exit_codes.OK
