"""`broker profile list` and `show`: what there is, what it permits, and what of it counts below its parents."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.decide.profile import Profile
    from broker.profiles import BrokenProfile
    from broker.profiles.explain import Section


def run(args: argparse.Namespace) -> int:
    """Do it."""
    return _list(args) if args.action == "list" else _show(args)


def _list(args: argparse.Namespace) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles import BrokenProfile, list_profiles

    found = list_profiles(profile_dirs=args.profile_dir)
    if args.json:
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


def _show(args: argparse.Namespace) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.profiles.explain import sections
    from broker.profiles.load import load_any

    profile = load_any(args.name, profile_dirs=args.profile_dir)
    if args.effective or args.parent or args.trust != "trusted":
        return _effective(profile, args)
    if args.json:
        print(json.dumps(_data(profile), indent=2))
        return 0
    colours = Colours(sys.stdout)
    print(f"{colours.paint(profile.name, 'bold')}: {escape(profile.description) or '(no description)'}")
    print(f"{escape(profile.source)}  sha256 {profile.digest[:12]}")
    print_sections(sections(profile), colours.paint)
    return 0


def _effective(profile: Profile, args: argparse.Namespace) -> int:
    from broker.cli.terminal import Colours, escape
    from broker.decide.trust import Trust
    from broker.profiles.effective import chain, effective, effective_sections
    from broker.profiles.load import load_any

    parents = [load_any(word, profile_dirs=args.profile_dir) for word in args.parent]
    left = effective(chain(profile, parents, Trust.parse(args.trust)), profile)
    if args.json:
        print(json.dumps(left.as_dict(), indent=2))
        return 0
    colours = Colours(sys.stdout)
    below = "".join(f" below {each.name}" for each in parents)
    trust = ", untrusted" if args.trust == "untrusted" else ""
    print(f"{colours.paint(profile.name, 'bold')}{escape(below)}{trust}: what is left of it")
    print_sections(effective_sections(left), colours.paint)
    return 0


def print_sections(shown: tuple[Section, ...], paint: object) -> None:
    """Print titles, and their lines in two columns."""
    assert callable(paint)
    for title, lines in shown:
        print(f"\n{paint(title, 'bold')}")
        width = min(max(len(left) for left, _ in lines), 40)
        for left, right in lines:
            print(f"  {left:<{width}}  {right}".rstrip())


def _data(each: Profile | BrokenProfile) -> dict[str, object]:
    from broker.profiles import BrokenProfile
    from broker.profiles.normalise import canonical

    if isinstance(each, BrokenProfile):
        return {"name": each.name, "source": str(each.source), "error": str(each.error)}
    return canonical(each)
