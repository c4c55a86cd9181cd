"""`broker events verify`: whether the record is as it was written, and whether all of it is there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from broker.cli import exit_codes
from broker.cli.terminal import Colours, escape
from broker.errors import UsageError
from broker.record import event
from broker.record.journal import is_being_written
from broker.record.run_files import find_run, list_runs
from broker.record.verify import Verification, verify

WORDS = ("verify",)  # what may follow `broker events` and is done here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that only these words take."""


def run(state: Path, word: str, rest: list[str], args: argparse.Namespace) -> int:
    """Do what the word says."""
    return _verify(state, rest, everything=args.all, as_json=args.json)


def _verify(state: Path, words: list[str], *, everything: bool, as_json: bool) -> int:
    if everything and words:
        raise UsageError("name runs or --all, not both")
    paths = list_runs(state) if everything else [find_run(state, word) for word in words or ["last"]]
    colours = Colours(sys.stdout)
    code = exit_codes.OK
    for path in paths:
        found = verify(path)
        if not found.ok:
            code = exit_codes.TAMPERED
        print(_verdict_json(path, found) if as_json else _verdict_line(path, found, colours))
    return code


def _verdict_line(path: Path, found: Verification, colours: Colours) -> str:
    name = escape(path.stem)
    if found.problem is not None:
        return f"{name}  {colours.paint('TAMPERED', 'red', 'bold')}  {escape(str(found.problem))}"
    text = f"{name}  {colours.paint('ok', 'green')}  {found.count} events, head {found.head}"
    if found.torn:
        text += (
            f"; a torn last line of {found.torn} bytes: broker died while writing it, "
            f"and what it announced did not happen"
        )
    if not found.finished:
        text += (
            "; still running"
            if is_being_written(path)
            else "; unfinished: broker died, or lines were cut from the end"
        )
    return text


def _verdict_json(path: Path, found: Verification) -> str:
    problem = None if found.problem is None else {"line": found.problem.line, "text": found.problem.text}
    row = {"run": path.stem, "journal": str(path), "ok": found.ok, "events": found.count, "head": found.head}
    row |= {"finished": found.finished, "torn": found.torn, "problem": problem}
    return event.encode(row).decode()
