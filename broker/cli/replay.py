"""`broker replay`: past decisions, judged again under another profile, or by the classifier that is installed now.

Exit code 0: all the same. 1: something differs. 2: something would be wider. Nothing is run, nothing recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import UsageError
from broker.values import dataclass

if TYPE_CHECKING:
    from broker.cli.terminal import Colours
    from broker.record.replay import Judged, Policy, Replay

SUMMARY = "judge past decisions again, under another profile or a new version"
EXAMPLES = """\
broker replay last --profile mine.toml           # what would be decided otherwise under this profile
broker replay last --profile strict --parent base     # the same, below a parent
broker replay --all --classifier                 # by the classifier that is installed now: after an update
broker replay last --profile new.toml --for research  # in the sub-tasks that had the profile research
broker replay RUN --profile mine.toml --json || test $? -eq 1     # in CI: nothing may become wider"""
SHOWN = 50
_STYLES = {"wider": "red", "narrower": "yellow", "relabelled": "dim"}
_ORDER = ("wider", "narrower", "relabelled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker replay` takes."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="an id, its start or its last part, `last`, or a file's path")
    parser.add_argument("--all", action="store_true", help="all runs that there are")
    parser.add_argument("--profile", "-p", metavar="PROFILE", help="a profile's name, or a file, in place of the run's own")
    parser.add_argument("--for", dest="instead_of", default="", metavar="NAME", help="in place of the profile NAME, in whichever tasks had it")
    parser.add_argument(
        "--parent", action="append", default=[], metavar="PROFILE", help="a profile above the run's own task, nearest first (may be repeated)"
    )
    parser.add_argument("--profile-dir", action="append", default=[], metavar="FOLDER", help="search this folder first (may be repeated)")
    parser.add_argument("--classifier", action="store_true", help="with the profiles as they were: what an update changed (default)")
    parser.add_argument("--verdicts", action="store_true", help="only whether it is permitted counts, not by which class and rule")
    parser.add_argument("--json", action="store_true", help="print JSON")


@dataclass(slots=True)
class Group:
    """Differences that say the same: once in the list, with how often."""

    kind: str
    first: Judged
    ids: list[str] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class Told:
    """What came of it all."""

    judged: int = 0
    same: int = 0
    moot: int = 0
    groups: dict[tuple[object, ...], Group] = field(default_factory=dict)
    unjudged: dict[str, int] = field(default_factory=dict)

    def take(self, run: str, replay: Replay, found: Iterable[Judged], *, verdicts_only: bool) -> None:
        """Take in one run."""
        for one in found:
            self.judged += 1
            if one.kind == "moot":
                self.moot += 1
            elif not one.kind or (verdicts_only and one.kind == "relabelled"):
                self.same += 1
            else:
                key = (one.kind, one.what, one.was, one.would)
                group = self.groups.setdefault(key, Group(one.kind, one))
                group.count += 1
                if len(group.ids) < 10:
                    group.ids.append(f"{run}:{one.seq}")
        for why, count in replay.unjudged.items():
            self.unjudged[why] = self.unjudged.get(why, 0) + count

    def sorted(self) -> list[Group]:
        """Return the groups, what matters most first."""
        return sorted(self.groups.values(), key=lambda group: (_ORDER.index(group.kind), -group.count))

    def count(self, kind: str) -> int:
        """Return how many decisions differ in this way."""
        return sum(group.count for group in self.groups.values() if group.kind == kind)

    @property
    def code(self) -> int:
        """The exit code."""
        return 2 if self.count("wider") else 1 if self.groups else 0


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.record.journal import read
    from broker.record.replay import Replay
    from broker.record.run_files import find_run, list_runs, state_dir, without_parts

    if bool(args.runs) is args.all:
        raise UsageError("name runs, or say --all: broker replay last --profile mine.toml" if not args.runs else "--all takes no run")
    if args.classifier and (args.profile or args.parent):
        raise UsageError("--classifier keeps the profiles as they were: leave it out, or --profile and --parent")
    if args.instead_of and not args.profile:
        raise UsageError("--for says in whose place --profile is: name a profile")
    policy = _policy(args)
    state = state_dir()
    paths = without_parts(list_runs(state) if args.all else [find_run(state, word) for word in args.runs])
    told = Told()
    for path in paths:
        replay = Replay(policy)
        told.take(path.stem, replay, replay.events(read(path)), verdicts_only=args.verdicts)
    if told.judged == 0 and told.unjudged:
        why = next(iter(told.unjudged))
        raise UsageError(f"nothing can be judged again: {why}. Take a newer run")
    if args.json:
        print(json.dumps(_as_data(told, paths, args), indent=2))
    else:
        _print(told, len(paths), args)
    return told.code


def _policy(args: argparse.Namespace) -> Policy:
    from broker.record.replay import Policy

    if not (args.profile or args.parent):
        return Policy()
    from broker.profiles.load import load_any

    return Policy(
        profile=load_any(args.profile, profile_dirs=args.profile_dir) if args.profile else None, name=args.instead_of,
        parents=tuple(load_any(word, profile_dirs=args.profile_dir) for word in args.parent),
    )  # fmt: skip


def _as_data(told: Told, paths: list[Path], args: argparse.Namespace) -> dict[str, Any]:
    from broker.record.replay import worst_class

    return {
        "runs": [path.stem for path in paths], "profile": args.profile, "judged": told.judged, "same": told.same,
        "wider": told.count("wider"), "narrower": told.count("narrower"), "relabelled": told.count("relabelled"), "moot": told.moot,
        "unjudged": told.unjudged,
        "differences": [
            {
                "kind": group.kind, "what": group.first.what, "count": group.count, "events": group.ids, "cause": group.first.cause,
                "task": group.first.task, "class": worst_class(group.first.was if group.kind == "wider" else group.first.would),
                "was": group.first.was.as_dict(), "would_be": group.first.would.as_dict(),
            }
            for group in told.sorted()
        ],
    }  # fmt: skip


def _print(told: Told, runs: int, args: argparse.Namespace) -> None:
    from broker.cli.terminal import Colours

    colours = Colours(sys.stdout)
    under = f"under {args.profile}" if args.profile else "below these parents" if args.parent else "by the installed classifier"
    of = f"of {runs} runs " if runs != 1 else ""
    differ = [f"{colours.paint(str(told.count(kind)), _STYLES[kind])} {kind}" for kind in _ORDER if told.count(kind)]
    print(f"{told.judged} decisions {of}judged again {under}: {', '.join([f'{told.same} the same', *differ])}")
    for group in told.sorted()[:SHOWN]:
        _print_group(group, colours)
    if (more := len(told.groups) - SHOWN) > 0:
        print(f"  … and {more} more kinds: --json has them all")
    if told.moot:
        print(f"  {told.moot} more would not have come up: what started them would have been refused")
    for why, count in told.unjudged.items():
        print(f"  {count} cannot be judged again: {why}")


def _print_group(group: Group, colours: Colours) -> None:
    from broker.cli.terminal import escape, shorten
    from broker.record.replay import worst_class

    one = group.first
    times = f"{group.count} ×" if group.count > 1 else ""
    print(f"  {colours.paint(f'{group.kind:<11}', _STYLES[group.kind])}{times:>6} {escape(shorten(one.what, 90))}")
    was, would = one.was, one.would
    gained = ""
    if was.verdict == would.verdict and was.opens != would.opens:
        gained = f"; what it opens: {_opened(was.opens)} → {_opened(would.opens)}"
    cause = f", because of the {one.cause}" if one.cause and one.cause != "both" else ""
    print(
        f"{'':19}{was.verdict} ({worst_class(was)}, {escape(was.rule)}) → {would.verdict} ({worst_class(would)}, "
        f"{escape(would.rule)}){gained}{cause}  {colours.paint(f'{one.task} {group.ids[0]}', 'dim')}"
    )


def _opened(classes: tuple[str, ...] | None) -> str:
    return "nothing" if classes is None else ", ".join(classes) or "nothing"
