"""`broker profile`: list, show and check profiles."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import ProfileError

if TYPE_CHECKING:
    from broker.decide.profile import Profile
    from broker.profiles import BrokenProfile

SUMMARY = "list, show and check profiles"
EXAMPLES = """\
broker profile list
broker profile show builder
broker profile show builder --json | jq .allowlist
broker profile check ~/.config/broker/profiles/*.toml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker profile` takes."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="every profile that a name leads to, and what is broken")
    show = actions.add_parser("show", help="what a profile permits, in words")
    show.add_argument("name", metavar="NAME")
    check = actions.add_parser("check", help="find errors in files, and what is probably not meant")
    check.add_argument("files", nargs="+", metavar="FILE", type=Path)
    for action in (listing, show):
        action.add_argument(
            "--profile-dir",
            action="append",
            default=[],
            metavar="FOLDER",
            help="search this folder first (may be repeated)",
        )
    for action in (listing, show, check):
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do it. Exit code 65 if a profile that was asked for, or checked, cannot be used."""
    if args.action == "list":
        return _list(args.profile_dir, as_json=args.json)
    if args.action == "show":
        return _show(args.name, args.profile_dir, as_json=args.json)
    return _check(args.files, as_json=args.json)


def _list(folders: list[str], *, as_json: bool) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles import BrokenProfile, list_profiles

    found = list_profiles(profile_dirs=folders)
    if as_json:
        print(json.dumps([_data(each) for each in found], indent=2))
        return 0
    colours = Colours(sys.stdout)
    good = [each for each in found if not isinstance(each, BrokenProfile)]
    names = max((len(each.name) for each in good), default=0)
    ceilings = max((len(each.max_risk.label) for each in good), default=0)
    for profile in good:
        name = colours.paint(profile.name, "bold") + " " * (names - len(profile.name))
        print(f"{name}  {profile.max_risk.label:<{ceilings}}  {escape(profile.description)}")
    for each in found:
        if isinstance(each, BrokenProfile):
            label = colours.paint(each.name or "(file)", "red")
            print(f"{label}  cannot be used: {escape(str(each.error))}")
    return 0


def _show(name: str, folders: list[str], *, as_json: bool) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles import load_profile
    from broker.profiles.explain import sections

    profile = load_profile(name, profile_dirs=folders)
    if as_json:
        print(json.dumps(_data(profile), indent=2))
        return 0
    colours = Colours(sys.stdout)
    print(f"{colours.paint(profile.name, 'bold')}: {escape(profile.description) or '(no description)'}")
    print(f"{escape(profile.source)}  sha256 {profile.digest[:12]}")
    for title, lines in sections(profile):
        print(f"\n{colours.paint(title, 'bold')}")
        width = min(max(len(left) for left, _ in lines), 40)
        for left, right in lines:
            print(f"  {left:<{width}}  {right}".rstrip())
    return 0


def _check(files: list[Path], *, as_json: bool) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles import BrokenProfile
    from broker.profiles.check import remarks
    from broker.profiles.load import load_file, rules_for

    colours = Colours(sys.stdout)
    report: list[dict[str, object]] = []
    broken = False
    for file in files:
        for each in load_file(file.absolute(), rules_for(None)):
            if isinstance(each, BrokenProfile):
                broken = True
                report.append({**_data(each), "remarks": []})
                print_line = f"{colours.paint('error', 'red')}  {escape(str(each.error))}"
            else:
                said = remarks(each)
                report.append(
                    {"name": each.name, "source": each.source, "error": None, "remarks": list(said)}
                )
                lines = [f"{colours.paint('ok', 'green')}  {each.name}  {escape(each.source)}"]
                lines += [f"    {colours.paint('note', 'yellow')}: {escape(remark)}" for remark in said]
                print_line = "\n".join(lines)
            if not as_json:
                print(print_line)
    if as_json:
        print(json.dumps(report, indent=2))
    return ProfileError.exit_code if broken else 0


def _data(each: Profile | BrokenProfile) -> dict[str, object]:
    from broker.profiles import BrokenProfile
    from broker.profiles.normalise import canonical

    if isinstance(each, BrokenProfile):
        return {"name": each.name, "source": str(each.source), "error": str(each.error)}
    return canonical(each)
