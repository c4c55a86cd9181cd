"""`broker judge`: put kept changes to a panel of judges, or find out what a panel is worth."""

from __future__ import annotations

import argparse

SUMMARY = "have a panel of judges decide on changes, or find out what a panel catches"
EXAMPLES = """
broker judge last --panel review            what is kept of the newest run
broker judge 20261130-074517-353d --panel ./panels/review.toml --json
broker judge calibrate review               seed known faults into the newest kept change, and see what is caught
broker judge calibrate review --change 353d --json
broker run --land on-panel review --rounds 3 --profile builder -- my-agent
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("what", metavar="RUN|calibrate", help="a run whose changes are kept (its id, its start or end, or last), or calibrate")
    parser.add_argument("name", nargs="?", metavar="PANEL", help="of calibrate: the panel")
    parser.add_argument("--panel", metavar="NAME", help="the panel: its name, or a file (PATH, PATH:NAME)")
    parser.add_argument("--goal", metavar="TEXT", default="", help="what you want of the change, for the judges")
    parser.add_argument("--change", metavar="RUN", default="last", help="of calibrate: the kept change to seed faults into (default: last)")
    parser.add_argument("--seed", type=int, metavar="N", help="of calibrate: choose the places of the faults as that time")
    parser.add_argument("--engine", choices=("auto", "docker", "bubblewrap"), default="auto",
                        help="what makes the judges' containers (default: what the first judge's profile says)")  # fmt: skip
    parser.add_argument("--profile-dir", action="append", default=[], metavar="DIR",
                        help="search profiles here first, and panels in the folder panels beside it; may be repeated")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the decision as JSON, with the findings as proposed steps of a plan")


def run(args: argparse.Namespace) -> int:
    """Judge, and say what was decided. 0 if the change passed, 76 if it was blocked."""
    from broker.errors import UsageError

    if args.what == "calibrate":
        if args.panel and args.name:
            raise UsageError("the panel is named twice. Write: broker judge calibrate PANEL")
        if not (args.name or args.panel):
            raise UsageError("which panel? Write: broker judge calibrate PANEL")
        return _calibrate(args, args.name or args.panel)
    if args.name:
        raise UsageError(f"what is {args.name!a}? A panel is named with --panel: broker judge {args.what} --panel NAME")
    if not args.panel:
        raise UsageError(f"which panel? Write: broker judge {args.what} --panel NAME")
    return _judge(args)


def _judge(args: argparse.Namespace) -> int:
    import json
    import sys

    from broker.cli.judge_text import Hearing, decision_lines
    from broker.cli.terminal import Colours, escape
    from broker.enforce.layer import find_layer, layers_base
    from broker.exit_codes import HELD_BACK, OK
    from broker.panel.definition import load_panel
    from broker.panel.kept import judge_kept
    from broker.record.run_files import state_dir
    from broker.serve.inside import answer, ways_out
    from broker.supervisor import Watcher

    layer = find_layer(layers_base(state_dir()), args.what)
    panel = load_panel(args.panel, profile_dirs=args.profile_dir, workspace=layer.manifest.workspace)
    colours = Colours(sys.stderr if args.json else sys.stdout)
    print(f"task    {layer.run} in {escape(layer.manifest.workspace)}", file=sys.stderr)
    hearing = None if args.json else Hearing(panel, sys.stdout)
    decision = judge_kept(
        panel, layer, Watcher(called=answer, ways_out=ways_out), engine=args.engine, goal=args.goal,
        told=hearing.told if hearing is not None else None, begun=hearing.begun if hearing is not None else None,
    )  # fmt: skip
    if args.json:
        print(json.dumps(decision.as_dict()))
    else:
        print(decision_lines(decision, colours), end="")
        run = layer.run
        print(f"        broker land {run}" if decision.passed else f"        kept: broker diff {run} · broker discard {run}")
    return OK if decision.passed else HELD_BACK


def _calibrate(args: argparse.Namespace, name: str) -> int:
    import json
    import sys

    from broker.cli.judge_calibration import calibration_text, trial_line
    from broker.cli.terminal import Colours
    from broker.enforce.layer import find_layer, layers_base
    from broker.panel.calibrate import calibrate
    from broker.panel.definition import load_panel
    from broker.record.run_files import state_dir
    from broker.serve.inside import answer, ways_out
    from broker.supervisor import Watcher

    layer = find_layer(layers_base(state_dir()), args.change)
    panel = load_panel(name, profile_dirs=args.profile_dir, workspace=layer.manifest.workspace)
    colours = Colours(sys.stdout)
    tried = None if args.json else lambda trial: print(trial_line(trial, colours), end="", flush=True)
    report = calibrate(
        panel, layer, Watcher(called=answer, ways_out=ways_out), engine=args.engine, goal=args.goal, seed=args.seed, tried=tried
    )
    print(json.dumps(report.as_dict()) if args.json else calibration_text(report), end="\n" if args.json else "")
    return 0
