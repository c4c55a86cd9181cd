"""`broker profile diff` and `score`: what one profile may do that another may not, and how open one is.

diff ends with 0 if both permit the same, with 1 if the second is narrower or merely different, and with 2 if it is wider.
"""

from __future__ import annotations

import argparse
import json
import sys


def run(args: argparse.Namespace) -> int:
    """Do it."""
    return _diff(args) if args.action == "diff" else _score(args)


def _diff(args: argparse.Namespace) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles.compare import Direction, compare
    from broker.profiles.load import load_any

    before = load_any(args.before, profile_dirs=args.profile_dir)
    after = load_any(args.after, profile_dirs=args.profile_dir)
    changes = compare(before, after)
    widest = max((change.direction for change in changes), default=None)
    code = 0 if widest is None else 2 if widest is Direction.WIDER else 1
    if args.json:
        summary = "same" if widest is None else widest.label
        print(json.dumps({"before": before.name, "after": after.name, "is": summary, "changes": [each.as_dict() for each in changes]}, indent=2))
        return code
    colours = Colours(sys.stdout)
    if widest is None:
        print(f"{after.name} permits what {before.name} permits.")
        return code
    print(f"{colours.paint(after.name, 'bold')}, compared with {before.name}:")
    signs = {Direction.WIDER: ("+", "red"), Direction.NARROWER: ("-", "green"), Direction.DIFFERENT: ("~", "dim")}
    for change in changes:
        sign, style = signs[change.direction]
        print(f"  {colours.paint(sign, style)} {escape(change.text)}")
    return code


def _score(args: argparse.Namespace) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles.exposure import exposures, score, word_for
    from broker.profiles.load import load_any

    profile = load_any(args.name, profile_dirs=args.profile_dir)
    found = exposures(profile)
    mark = score(found)
    if args.json:
        data = {"name": profile.name, "score": mark, "word": word_for(mark), "exposures": [each.as_dict() for each in found]}
        print(json.dumps(data, indent=2))
        return 0
    colours = Colours(sys.stdout)
    width = max((len(each.id) for each in found), default=0)
    print(colours.paint(f"WEIGHT  {'DOOR':<{width}}  WHAT IS OPEN", "bold"))
    for each in found:
        style = "red" if each.weight >= 0.3 else "yellow" if each.weight >= 0.1 else "dim"
        remedy = f". {each.remedy}" if each.remedy else ""
        print(f"{colours.paint(f'{each.weight:>6.2f}', style)}  {each.id:<{width}}  {escape(each.text)}{remedy}")
    style = {"tight": "green", "moderate": "green", "exposed": "yellow", "open": "red"}[word_for(mark)]
    print(f"\n{profile.name}: {colours.paint(f'{mark:.1f} of 10, {word_for(mark)}', 'bold', style)}")
    return 0
