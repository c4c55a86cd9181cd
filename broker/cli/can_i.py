"""`broker can-i`: would this command be permitted, why, and what would change that? Nothing is run, nothing recorded.

Exit code 0: yes. 1: no. 2: only if somebody approves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from broker.errors import UsageError

if TYPE_CHECKING:
    from broker.decide.envelope import Envelope
    from broker.decide.profile import Profile

SUMMARY = "say whether a profile permits a command, and why"
TAKES_COMMAND = True
EXAMPLES = """\
broker can-i --profile builder -- npm test
broker can-i --profile builder 'cd src && go test ./... | tee out.txt'   # one word: a shell text
broker can-i --profile builder --parent research -- make              # in a child task
broker can-i --profile builder --list                                 # all that it may do
broker can-i --profile team -- make deploy || echo 'no, or not without asking'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker can-i` takes."""
    parser.add_argument("--profile", "-p", default="default", metavar="PROFILE", help="a profile's name, or a file (default: default)")
    parser.add_argument(
        "--parent", action="append", default=[], metavar="PROFILE",
        help="the profile of the task above, nearest first (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--trust", choices=["trusted", "untrusted"], default="trusted", help="how far the task is trusted")
    parser.add_argument("--headless", action="store_true", help="nobody can be asked: what would be asked is a no")
    parser.add_argument("--workspace", "-w", metavar="DIR", default=".", help="the folder that the task works in (default: this one)")
    parser.add_argument(
        "--profile-dir", action="append", default=[], metavar="FOLDER",
        help="search this folder first (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--list", "-l", action="store_true", help="list what the profile may do, instead of asking")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.decide.trust import Trust
    from broker.profiles.effective import chain
    from broker.profiles.load import load_any

    if args.list is bool(args.command):
        raise UsageError(
            "give a command, or --list: broker can-i --profile builder -- npm test" if not args.list
            else "--list takes no command"
        )  # fmt: skip
    profile = load_any(args.profile, profile_dirs=args.profile_dir)
    parents = [load_any(word, profile_dirs=args.profile_dir) for word in args.parent]
    envelope = chain(profile, parents, Trust.parse(args.trust))
    return _list(envelope, profile, as_json=args.json) if args.list else _ask(envelope, args)


def _ask(envelope: Envelope, args: argparse.Namespace) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.decide.wording import shorten
    from broker.profiles.can import may
    from broker.profiles.judge import context_in

    answer = may(args.command, envelope, context_in(os.path.realpath(args.workspace)), headless=args.headless)
    code = {"allow": 0, "deny": 1, "ask": 2}[answer.verdict]
    if args.json:
        data = {"command": args.command, "profile": envelope.profile.name, **answer.as_dict()}
        print(json.dumps(data, indent=2))
        return code
    colours = Colours(sys.stdout)
    word, style = {"allow": ("yes", "green"), "deny": ("no", "red"), "ask": ("ask", "yellow")}[answer.verdict]
    print(f"{colours.paint(word, 'bold', style)}  {escape(answer.because)} [{shorten(answer.rule, 80)}]")
    if answer.unless:
        print(f"     At the gate: {escape('; '.join(answer.unless))}.")
    if answer.change:
        print(f"     What would change it: {escape(answer.change)}")
    return code


def _list(envelope: Envelope, profile: Profile, *, as_json: bool) -> int:
    from broker.classify.risk import Risk
    from broker.cli.profile_show import print_sections
    from broker.cli.terminal import Colours
    from broker.decide.wording import classes, command_line
    from broker.profiles.can import EXAMPLES
    from broker.profiles.effective import effective

    left = effective(envelope, profile)
    beyond = sorted(frozenset(Risk) - left.effects - {Risk.BLOCKED})
    if as_json:
        data = left.as_dict() | {
            "examples": {risk.label: list(EXAMPLES[risk]) for risk in sorted(left.effects)},
            "refused": {risk.label: list(EXAMPLES[risk]) for risk in [*beyond, Risk.BLOCKED]},
        }
        print(json.dumps(data, indent=2))
        return 0
    colours = Colours(sys.stdout)
    below = "".join(f" below {name}" for name in left.parents)
    shell = "shell" not in left.disabled_tools

    def shown(risks: list[Risk]) -> tuple[tuple[str, str], ...]:
        return tuple((risk.label, ", ".join(f"`{each}`" for each in EXAMPLES[risk])) for risk in risks)

    sections = (
        ("may do, without being listed, what is like", shown(sorted(left.effects))),
        ("may run exactly", tuple((command_line(entry.argv), f"what it starts: {classes(grant)}") for entry, grant in left.entries)),
        ("may land, although it runs later", tuple((rule, "") for rule in sorted(left.lands))),
        ("may not run, even if its classes permit it", tuple((f"{command_line(prefix)} …", "") for prefix in left.denied)),
        ("does not have the tools", tuple((tool, "") for tool in sorted(left.disabled_tools))),
        ("may not do, unless it is listed, what is like", shown(beyond)),
        ("may never do, listed or not, what is like", shown([Risk.BLOCKED])),
    )
    trust = "" if envelope.effective_trust else ", untrusted"
    print(f"A task with the profile {colours.paint(left.profile, 'bold')}{below}{trust}")
    print_sections(tuple(each for each in sections if each[1]), colours.paint)
    print(f"\nIn a shell text each command is judged by itself{'' if shell else ', but the tool shell is taken away'}.")
    return 0
