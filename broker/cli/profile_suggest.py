"""`broker profile suggest`: from what was refused in runs to a patch of a profile.

Writes nothing unless told to. What goes into the patch by itself is exact entries for what runs the project's code; whatever
else could be listed is a question, and is listed only if it is picked by its number.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import UsageError

if TYPE_CHECKING:
    from broker.cli.terminal import Colours
    from broker.profiles.proposal import Suggestion, Suggestions

SHOWN = 12  # of the commands in one question, and of those that are never proposed


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.cli.profile_new import numbers
    from broker.cli.terminal import escape
    from broker.profiles.denials import Refusals
    from broker.profiles.load import load_with_source
    from broker.profiles.patch import unified, with_entries
    from broker.profiles.proposal import suggest
    from broker.record.journal import read
    from broker.record.run_files import find_run, state_dir

    profile, source = load_with_source(args.profile, profile_dirs=args.profile_dir)
    refusals = Refusals()
    for path in dict.fromkeys(find_run(state_dir(), word) for word in args.runs):
        refusals.add_run(read(path))
    found = suggest(refusals, profile, _denies(source, profile.name))
    most = sum(1 for each in found.all if each.number)
    if args.pick and not most:
        raise UsageError("there is nothing to pick: nothing of what was refused can be listed")
    commands = found.picked(numbers(args.pick, most) if args.pick else None)
    changed = with_entries(source, profile, commands)
    name, folder = _patch_name(source.path)
    patch = unified(source.text, changed, name)
    if args.json:
        print(json.dumps(_data(found, profile.name, source.path, patch), indent=2))
    elif args.patch:
        sys.stdout.write(patch)
        if folder:
            sys.stderr.write(f"The patch is for {folder}: cd there to apply it.\n")
    else:
        _print(found, profile.name, refusals.runs)
        others = sorted(name for name in refusals.commands if name and name != profile.name)
        if others and profile.name in refusals.commands:
            print(f"\nWhat was refused to tasks with other profiles is left out: {', '.join(map(escape, others))}.")
        if patch:
            print()
            sys.stdout.write(patch)
    if args.write and patch:
        _write(source.path, changed)
        if not args.json:
            print(f"\nChanged {source.path}.")
    elif not args.json and not args.patch:
        _print_next(args, patch, most, source.path)
    return 0


def _denies(source: Any, name: str) -> tuple[str, ...]:
    from broker.profiles.schema import decode_file, decode_profile

    _, tables = decode_file(source.path, source.text.encode())
    return decode_profile(source, name, tables[name]).denies


def _patch_name(path: Path) -> tuple[str, str]:
    """Return the file's name for the patch, and the folder to apply it in if that is not this one."""
    here = os.getcwd().rstrip("/") + "/"
    full = str(path)
    if full.startswith(here):
        return full.removeprefix(here), ""
    return path.name, str(path.parent)


def _write(path: Path, text: str) -> None:
    from broker.profiles.write import replace_file

    if remedy := _shipped(path):
        raise UsageError(remedy)
    replace_file(path, text)


def _shipped(path: Path) -> str:
    """Return what to do first for a profile that comes with the broker."""
    import shlex

    from broker.profiles.load import shipped_folder, user_folder

    if path.parent != shipped_folder():
        return ""
    folder = shlex.quote(str(user_folder()))
    return (
        f"{path.stem} comes with the broker, and the next version would replace it. Make it yours first, "
        f"which then counts: mkdir -p {folder} && cp {shlex.quote(str(path))} {folder}/"
    )


def _data(found: Suggestions, name: str, path: Path, patch: str) -> dict[str, Any]:
    from broker.profiles.proposal import Kind

    return {
        "profile": name,
        "file": str(path),
        **{f"{kind.value}s" if kind in {Kind.PROPOSAL, Kind.QUESTION} else kind.value: [each.as_dict() for each in found.of(kind)] for kind in Kind},
        "landings": [
            {"rule": each.rule, "count": each.count, "paths": list(each.paths), "tasks": list(each.tasks)} for each in found.landings
        ],
        "patch": patch,
    }


def _print(found: Suggestions, name: str, runs: dict[str, None]) -> None:
    from broker.cli.terminal import Colours, escape
    from broker.profiles.proposal import Kind, landing_question

    colours = Colours(sys.stdout)
    if not found.all and not found.landings:
        print(f"Nothing was refused in {len(runs)} {'run' if len(runs) == 1 else 'runs'} that an entry could change.")
        return
    titles = {
        Kind.PROPOSAL: f"Would be listed in {name}: exact entries for what runs the project's code",
        Kind.QUESTION: "Questions: listed only if you pick them",
        Kind.NEVER: "Never proposed, however often it is tried",
        Kind.CANNOT: "Cannot be entries",
        Kind.PERMITTED: f"Permitted by {name} as it is",
    }
    first = True
    for kind, title in titles.items():
        shown = found.of(kind)
        if not shown:
            continue
        print(("" if first else "\n") + colours.paint(title, "bold"))
        first = False
        for each in shown[: None if kind in {Kind.PROPOSAL, Kind.QUESTION} else SHOWN]:
            _print_one(each, colours)
        if kind not in {Kind.PROPOSAL, Kind.QUESTION} and len(shown) > SHOWN:
            print(f"      … and {len(shown) - SHOWN} more (--json)")
    if found.landings:
        print(("" if first else "\n") + colours.paint("Changes that were withheld. Should they land from now on? Mostly not: broker diff shows them", "bold"))
        for rule in found.landings:
            paths = ", ".join(escape(path) for path in list(rule.paths)[:3])
            takes = landing_question(rule.rule)
            print(f"      {rule.count}×  {paths} [{rule.rule}]")
            print(f"         it would take: {takes}" if takes else "         never proposed: git itself would run it")


def _print_one(each: Suggestion, colours: Colours) -> None:
    from broker.cli.terminal import escape
    from broker.decide.wording import command_line
    from broker.profiles.proposal import Kind

    number = f"{each.number:>3}." if each.number else "    "
    times = colours.paint(f"{each.count}×", "dim")
    where = f" by {', '.join(each.tasks[:4])}{' …' if len(each.tasks) > 4 else ''}"
    if len(each.commands) == 1:
        print(f"{number} {command_line(each.commands[0])}  {times}{where}")
    else:
        print(f"{number} {len(each.commands)} commands, {times}{where}")
        for argv in each.commands[:SHOWN]:
            print(f"       {command_line(argv)}")
        if len(each.commands) > SHOWN:
            print(f"       … and {len(each.commands) - SHOWN} more")
    if each.why:
        print(f"       {escape(each.why)}")
    if each.kind in {Kind.PROPOSAL, Kind.QUESTION}:
        print(f"       opens: {each.opens}")


def _print_next(args: argparse.Namespace, patch: str, most: int, path: Path) -> None:
    if (patch or most) and (remedy := _shipped(path)):
        print(f"\nNothing is written yet. {remedy}")
        return
    words = f"broker profile suggest {' '.join(args.runs)} --profile {args.profile}"
    if patch:
        picked = f" --pick {args.pick}" if args.pick else ""
        print(f"\nNothing is written yet. To change the file: {words}{picked} --write")
    elif most:
        print(f"\nNothing is proposed by itself. To list one of the questions: {words} --pick 1 --write")
