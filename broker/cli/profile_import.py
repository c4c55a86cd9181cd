"""`broker profile import`: what another tool's permissions come to here, line by line, and the profile if it is wanted."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from broker.errors import UsageError

if TYPE_CHECKING:
    from broker.profiles.importers import Draft


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.profiles.importers import import_file
    from broker.profiles.load import profile_of
    from broker.profiles.schema import NAME, decode_file

    if args.name is not None and not NAME.fullmatch(args.name):
        raise UsageError(f"{args.name!r} cannot be a profile's name: use lower-case letters, digits, '.', '_' and '-'")
    drafts = import_file(args.origin, args.file, args.name)
    text = "\n".join(draft.as_toml(args.origin) for draft in drafts)
    source, tables = decode_file(Path("imported.toml"), text.encode())
    for name, table in tables.items():
        profile_of(source, name, table)  # what is written can be loaded
    if args.json:
        report = [{"name": draft.name, "rows": [row.as_dict() for row in draft.rows], "profile": draft.as_table()} for draft in drafts]
        print(json.dumps(report, indent=2))
    else:
        for draft in drafts:
            _print(draft, sys.stderr if args.output == "-" else sys.stdout)
    if args.output == "-" and not args.json:
        sys.stdout.write(text)
    elif args.output and args.output != "-":
        from broker.profiles.write import create

        path = Path(os.path.abspath(args.output))
        if path.suffix != ".toml":
            raise UsageError(f"{args.output}: the profile is TOML. Let the file's name end in .toml")
        create(path, text)
        if not args.json:
            print(f"Wrote {path}. Look at it: broker profile check {args.output}")
    return 0


def _print(draft: Draft, stream: IO[str]) -> None:
    from broker.cli.terminal import Colours, escape
    from broker.profiles.importers.draft import Fate

    colours = Colours(stream)
    styles = {Fate.IMPORTED: "green", Fate.NARROWED: "yellow", Fate.DROPPED: "red"}
    counts = {fate: sum(1 for row in draft.rows if row.fate is fate) for fate in Fate}
    summary = ", ".join(f"{count} {fate.value}" for fate, count in counts.items())
    stream.write(f"{colours.paint(draft.name, 'bold')}: {summary}. Beyond what is safe, it permits nothing that the source does not.\n")
    for fate in Fate:
        for row in draft.rows:
            if row.fate is fate:
                why = f"  {escape(row.why)}" if row.why else ""
                stream.write(f"  {colours.paint(f'{fate.value:<8}', styles[fate])}  {escape(row.what)}{colours.paint(why, 'dim')}\n")
