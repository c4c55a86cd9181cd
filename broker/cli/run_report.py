"""`broker report`: what became of a run, for whoever has to read it: on a terminal, as Markdown, or as one HTML page."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from broker import exit_codes
from broker.cli.terminal import escape
from broker.errors import JournalError
from broker.record.run_files import find_run, state_dir

if TYPE_CHECKING:
    from broker.record.summary import RunSummary

SUMMARY = "tell what became of a run: a page to read, to print or to hand on"
EXAMPLES = """\
broker report last                          # on the terminal
broker report last -o run.html              # one page that needs nothing else, to open in a browser
broker report 7f3a --format markdown        # for a pull request or a ticket
broker report last --json                   # for a program"""

FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".json": "json", ".txt": "terminal"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker report` takes."""
    parser.add_argument("run", metavar="RUN", nargs="?", default="last", help="an id, its start or its last part, `last` (default), or a file's path")
    parser.add_argument("--format", choices=["terminal", "markdown", "html", "json"], help="default: as the name after -o ends, else terminal")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--output", "-o", metavar="FILE", type=Path, help="write it there (readable by you alone), not to stdout")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.record.summary import summarise
    from broker.record.verify import verify

    path = find_run(state_dir(), args.run)
    found = verify(path)
    record = f"intact, {found.count:,} events, head {found.head}" if found.ok else f"ALTERED: {found.problem}"
    summary = summarise(path)
    how = "json" if args.json else args.format or (FORMATS.get(args.output.suffix.lower()) if args.output else None) or "terminal"
    text = written(summary, how, record=record, intact=found.ok, to_file=args.output is not None)
    if args.output is None:
        sys.stdout.write(text)
    else:
        _write(args.output, text)
        sys.stderr.write(f"broker: wrote {escape(str(args.output))}\n")
    return exit_codes.OK


def written(summary: RunSummary, how: str, *, record: str, intact: bool, to_file: bool = False) -> str:
    """Return the report in one of its forms. `record` says what verifying the journal said."""
    if how == "html":
        from broker.cli.report_html import page

        return page(summary, record=record, intact=intact)
    if how == "markdown":
        from broker.cli.report_markdown import markdown

        return markdown(summary, record=record)
    if how == "json":
        from broker.record import event

        told = dataclasses.asdict(summary) | {"record": record, "intact": intact}
        return event.encode(told).decode() + "\n"
    from broker.cli.report_text import text
    from broker.cli.terminal import Colours

    return text(summary, Colours(None if to_file else sys.stdout), record=record)


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all. It says what the journal says, so it is as private."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600 (mkstemp(3))
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}. Name a file in a folder that you can write to") from error
