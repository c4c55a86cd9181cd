"""`broker profile new` and `schema`: a commented profile for a project, with the commands that its files name.

On a terminal it asks three questions; without one, or with --yes, it takes what it finds. It never overwrites, and looks at
what it wrote as `broker profile check` does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import UsageError

if TYPE_CHECKING:
    from broker.profiles.detect import Suggestion


def run(args: argparse.Namespace) -> int:
    """Do it."""
    return _schema() if args.action == "schema" else _new(args)


def _schema() -> int:
    from broker.profiles.json_schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _new(args: argparse.Namespace) -> int:
    from broker.profiles.detect import detect
    from broker.profiles.load import user_folder
    from broker.profiles.write import BY_HAND, SCHEMA_FILE, create, new_profile

    if not args.project.is_dir():
        raise UsageError(f"{args.project} is no folder. Name the project: --project DIR")
    asking = not args.yes and not args.json and sys.stdin.isatty() and sys.stdout.isatty()
    name = _name(args, asking=asking)
    path = Path(os.path.abspath(args.output)) if args.output else user_folder() / f"{name}.toml"
    if path.suffix != ".toml":
        raise UsageError(f"{path}: a new profile is TOML. Let its name end in .toml")
    if path.exists():
        raise UsageError(f"{path} exists, and is not overwritten. Choose another name, or another place with --output")
    found = detect(args.project)
    max_risk = args.max_risk or (_ceiling() if asking else "local_write")
    chosen = () if args.none else _choose(found) if asking else tuple(each for each in found if each.usual)
    own = [(_exact(command), BY_HAND) for command in args.allow]
    entries = [*((each.command, each.origin) for each in chosen), *own]
    text = new_profile(
        name, description=args.description or f"Works on {_printable(args.project.resolve().name) or name}",
        max_risk=max_risk, entries=entries,
        left_out=[each for each in found if each not in chosen and each.why_not != _ANYWAY][:20],
    )  # fmt: skip
    create(path, text)
    schema = path.with_name(SCHEMA_FILE)
    if not schema.exists():
        from broker.profiles.json_schema import json_schema

        create(schema, json.dumps(json_schema(), indent=1) + "\n")
    code = _look_at(path, name, [command for command, _ in entries], as_json=args.json)
    if code == 0 and not args.json:
        _say_next(path, name, args.project.resolve())
    return code


def _say_next(path: Path, name: str, project: Path) -> None:
    import shlex

    from broker.profiles.load import user_folder

    if path.resolve().is_relative_to(project):
        folder = shlex.quote(str(user_folder()))
        print(f"It lies in the project, where a task could change it, so no task there takes it: mv {shlex.quote(str(path))} {folder}/")
        return
    word = name if path.parent == user_folder() else shlex.quote(str(path))
    print(f"Try: broker can-i --profile {word} --list")


_ANYWAY = "its classes are permitted anyway"


def _name(args: argparse.Namespace, *, asking: bool) -> str:
    from broker.profiles.schema import NAME

    folder = re.sub(r"[^a-z0-9._-]+", "-", args.project.resolve().name.lower()).strip("-._") or "project"
    name: str = args.name or (_ask(f"Name [{folder}]: ") if asking else "") or folder
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a profile's name: use lower-case letters, digits, '.', '_' and '-'")
    return name


def _ceiling() -> str:
    answer = _ask("May tasks change files of the project? They land only when they end well. [Y/n]: ")
    return "safe" if answer.lower() in {"n", "no"} else "local_write"


def _choose(found: Sequence[Suggestion]) -> tuple[Suggestion, ...]:
    """Show what was found, and return what is to be listed."""
    from broker.cli.terminal import Colours, escape

    listable = [each for each in found if each.why_not != _ANYWAY]
    if not listable:
        print("No build or test commands were found. Add them to the file, one exact line each.")
        return ()
    colours = Colours(sys.stdout)
    print("Commands that the project's files name (x: would be listed):")
    for number, each in enumerate(listable, 1):
        mark = "x" if each.usual else " "
        because = colours.paint(f"  {escape(each.why_not)}", "yellow") if each.why_not else ""
        print(f"  {number:>2} [{mark}] {escape(each.command)}  {colours.paint(escape(each.origin), 'dim')}{because}")
    answer = _ask("List those marked x (Enter), others (their numbers: 1,3), or none (-): ")
    if answer == "-":
        return ()
    if not answer:
        return tuple(each for each in listable if each.usual)
    return tuple(listable[number - 1] for number in numbers(answer, len(listable)))


def numbers(text: str, most: int) -> list[int]:
    """Read `1,3-5`. Raises UsageError for what is none, or beyond."""
    chosen: list[int] = []
    for word in re.split(r"[,\s]+", text.strip()):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= most:
            raise UsageError(f"{word!r} is no number from 1 to {most}. Write them as 1,3-5")
        chosen += range(first, last + 1)
    return list(dict.fromkeys(chosen))


def _ask(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        return ""


def _exact(command: str) -> str:
    from broker.profiles.command_line import CommandLineError, parse_command_line

    try:
        parse_command_line(command)
    except CommandLineError as error:
        raise UsageError(f"--allow {command!r}: {error}") from None
    return command


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())


def _look_at(path: Path, name: str, entries: Sequence[str], *, as_json: bool) -> int:
    from broker.cli.profile_check import as_data, lines_of
    from broker.cli.profile_programs import finder
    from broker.cli.terminal import Colours, escape
    from broker.errors import ProfileError
    from broker.profiles.check import check_file
    from broker.profiles.finding import Severity
    from broker.profiles.load import rules_for

    checked = check_file(path, rules_for(None), finder("auto"))
    broken = any(each.worst is Severity.ERROR for each in checked)
    if as_json:
        print(json.dumps({"path": str(path), "name": name, "entries": list(entries), "check": [as_data(each) for each in checked]}, indent=2))
        return ProfileError.exit_code if broken else 0
    print(f"Wrote {escape(str(path))}: {len(entries)} {'entry' if len(entries) == 1 else 'entries'}.")
    for line in lines_of(checked, Colours(sys.stdout)):
        print(line)
    return ProfileError.exit_code if broken else 0
