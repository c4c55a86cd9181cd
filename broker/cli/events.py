"""`broker events`: which runs there were, and what happened in them; `show` and `verify` have modules of their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from broker import exit_codes
from broker.cli import events_verify
from broker.cli.events_list import LISTED
from broker.cli.terminal import Colours, escape
from broker.errors import UsageError
from broker.record.query import Found, find
from broker.record.run_files import find_run, list_runs, state_dir
from broker.record.select import RiskFilter, Selection, moment

SUMMARY = "list runs, read and verify their journals"
EXAMPLES = """\
broker events                               # the runs, newest first
broker events last                          # what happened in the newest
broker events last --verdict deny           # only what was refused
broker events show 12                       # event 12 of the newest run: what, why, how to allow it
broker events --follow                      # everything, as it happens, in every run
broker events --since yesterday --risk '>=install' --verdict deny
broker events last --task root/1 --rule path.persistence --format table
broker events --grep 'git push' --json      # in all runs, one JSON object a line
""" + events_verify.EXAMPLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker events` takes."""
    parser.usage = f"broker events [RUN ... | show ID ... | {' | '.join(events_verify.WORDS)} ...] [OPTION ...]"
    parser.add_argument(
        "words", nargs="*", metavar="RUN", help="an id, its start or its last part, `last`, or a file's path; several are merged by time"
    )  # fmt: skip
    which = parser.add_argument_group("which events (without a RUN: of all runs)")
    which.add_argument("--type", action="append", default=[], help="only this type, or this group (task.denied, exec)")
    which.add_argument("--verdict", choices=["allow", "ask", "deny"], help="only events with this verdict")
    which.add_argument("--risk", metavar="CLASS", help="with this class; '>=install', '==install', '<=install': with this as the worst")
    which.add_argument("--rule", action="append", default=[], help="only where this rule, or one of this group, spoke (path.persistence)")
    which.add_argument("--task", action="append", default=[], metavar="PATH", help="only this task and those below it (root/1)")
    which.add_argument("--profile", action="append", default=[], metavar="NAME", help="only tasks under this profile")
    which.add_argument("--since", metavar="TIME", help="2026-11-30T04:30:00Z, 2026-11-30, 14:05 (UTC), yesterday, or how long ago: 10m, 2h, 1d")
    which.add_argument("--until", metavar="TIME", help="the same")
    which.add_argument("--grep", metavar="TEXT", default="", help="only events that hold this text (as it is; case counts)")
    which.add_argument("--limit", "-n", type=_count, metavar="N", help="only the newest N of them")
    how = parser.add_argument_group("how")
    how.add_argument("--follow", "-f", action="store_true", help="go on with what happens now; without a RUN, in every run")
    how.add_argument("--format", choices=["compact", "json", "table"], help="compact: a line each (default)")
    how.add_argument("--json", action="store_true", help="one JSON object a line: the same as --format json")
    how.add_argument("--no-index", action="store_true", help="read every line, whatever the index says")
    how.add_argument("--all", action="store_true", help=f"list all runs, not only the newest {LISTED}")
    events_verify.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    state = state_dir()
    match args.words:
        case [word, *rest] if word in events_verify.WORDS:
            return events_verify.run(state, word, rest, args)
        case ["show", *ids]:
            from broker.cli.events_show import show

            return show(state, ids, as_json=args.json or args.format == "json")
    selection = selection_of(args, datetime.now(UTC))
    if not args.words and not (args.follow or selection != Selection() or args.limit is not None):
        from broker.cli.events_list import show_runs

        return show_runs(state, everything=args.all, as_json=args.json or args.format == "json")
    paths = [find_run(state, word) for word in args.words] or list_runs(state)
    found = _follow(state, paths, selection, args) if args.follow else _find(state, paths, selection, args)
    return _print(found, paths, args)


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of events")
    return number


def selection_of(args: argparse.Namespace, now: datetime) -> Selection:
    """Return what the options ask for. Raises UsageError."""
    if args.follow and args.until:
        raise UsageError("--follow goes on for ever, and --until does not: take one of them")
    return Selection(
        types=tuple(args.type),
        verdicts=(args.verdict,) if args.verdict else (),
        tasks=tuple(task.rstrip("/") for task in args.task),
        rules=tuple(args.rule),
        profiles=tuple(args.profile),
        risk=RiskFilter.parse(args.risk) if args.risk else None,
        since=moment(args.since, now) if args.since else None,
        until=moment(args.until, now) if args.until else None,
        grep=args.grep,
    )


def _find(state: Path, paths: list[Path], selection: Selection, args: argparse.Namespace) -> Iterator[Found]:
    return find(state, paths, selection, newest=args.limit, index=not args.no_index, warn=_warn)


def _follow(state: Path, paths: list[Path], selection: Selection, args: argparse.Namespace) -> Iterator[Found]:
    """Yield what there is (of all runs only what was asked for by time or number), and then what comes."""
    from broker.record.follow import Follower

    folder = None
    if not args.words:
        from broker.record.run_files import prepare

        folder = prepare(state)
    follower = Follower(paths, folder=folder)
    try:
        ends = follower.ends()
        if args.words or selection.since is not None or args.limit is not None:
            for each in _find(state, paths, selection, args):
                if each.place < ends[each.path.absolute()]:
                    yield each
        yield from follower.events(selection)
    finally:
        follower.close()


def _print(found: Iterable[Found], paths: list[Path], args: argparse.Namespace) -> int:
    several = len(paths) != 1 or not args.words
    shown = 0
    for line in _printed(found, several=several, args=args):
        sys.stdout.write(f"{line}\n")
        if args.follow:
            sys.stdout.flush()
        shown += 1
    if not shown and not args.follow:
        sys.stderr.write(f"No such event in {escape(paths[0].stem) if not several else 'any run'}.{_misspelt(args.type)}\n")
    return exit_codes.OK


def _misspelt(types: list[str]) -> str:
    """Return which type was probably meant. Only where nothing was found: a record may have types that we do not know."""
    from difflib import get_close_matches

    from broker.record import event

    known = [value for name, value in vars(event).items() if name.isupper() and isinstance(value, str) and "." in value]
    groups = {name.partition(".")[0] for name in known}
    for wanted in types:
        if wanted not in groups and not any(name.startswith(wanted) for name in known):
            near = get_close_matches(wanted, [*known, *sorted(groups)], n=1)
            return f" There is no type {escape(wanted)}: " + (f"did you mean {near[0]}?" if near else "docs/events.md has them all.")
    return ""


def _printed(found: Iterable[Found], *, several: bool, args: argparse.Namespace) -> Iterator[str]:
    how = "json" if args.json else args.format or "compact"
    if how == "json":
        return (each.line.decode("ascii") for each in found)
    line = _table(several=several) if how == "table" else _compact(several=several)
    return (text for each in found for text in line(each))


def _compact(*, several: bool) -> Callable[[Found], list[str]]:
    from broker.cli.event_text import describe

    colours = Colours(sys.stdout)
    return lambda each: [describe(each.event, colours, run=each.path.stem if several else "")]


def _table(*, several: bool) -> Callable[[Found], list[str]]:
    from broker.cli.event_text import table_heading, table_row
    from broker.cli.parser import columns

    colours = Colours(sys.stdout)
    width = columns() if sys.stdout.isatty() else None
    heading = [colours.paint(table_heading(runs=several), "bold")]

    def rows(each: Found) -> list[str]:
        row = table_row(each.event, colours, width, run=each.path.stem if several else "")
        first, heading[:] = heading[:], []
        return [*first, row]

    return rows


def _warn(sentence: str) -> None:
    sys.stderr.write(f"broker: {escape(sentence)}\n")
