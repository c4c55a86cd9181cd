"""`broker image`: build and list the images that sandboxes start from."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Self

from broker.cli.terminal import Colours, escape, shorten
from broker.enforce import images
from broker.errors import UsageError

SUMMARY = "build and list the images that sandboxes start from"
EXAMPLES = """\
broker image build base                     # once; the others build on it
broker image build python go node
broker image list
broker image list --json"""

# Without a terminal: at most one line in this many seconds, so that a log shows life and stays short.
QUIET_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker image` takes."""
    parser.usage = "broker image build NAME ... | broker image list [--json]"
    parser.add_argument("action", nargs="?", choices=["build", "list"], help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(images.shipped())}")
    parser.add_argument("--json", action="store_true", help="list: one JSON array")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.action is None:
        raise UsageError("build or list? Try: broker image list")
    if args.action == "list":
        if args.names:
            raise UsageError("`broker image list` lists all images. Try: broker image list")
        return _list(as_json=args.json)
    if not args.names:
        raise UsageError(f"which image? They are: {', '.join(images.shipped())}")
    for name in args.names:
        images.recipe(name)  # an unknown name is said before an hour of work, not after
    for name in dict.fromkeys(args.names):
        with _Progress() as progress:
            tag = images.build(name, progress.show)
        print(tag)
    return 0


def _list(*, as_json: bool) -> int:
    states = images.states()
    if as_json:
        print(json.dumps([asdict(state) for state in states], indent=2))
        return 0
    colours = Colours(sys.stdout)
    for state in states:
        if state.built:
            said = f"{colours.paint('built', 'green'):<10}  {state.size / 1e6:5.0f} MB  {state.created[:10]}"
        elif state.outdated:
            said = f"{colours.paint('outdated', 'yellow')}: broker image build {state.name}"
        else:
            said = f"not built: broker image build {state.name}"
        print(f"{state.name:<10}{state.tag:<32}{said}")
    return 0


class _Progress:
    """One line that changes on a terminal; now and then a line elsewhere. On stderr: stdout is for tags."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown_at = 0.0

    def show(self, line: str) -> None:
        """Show what is being done."""
        text = shorten(escape(line), 100)
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
        elif time.monotonic() - self._shown_at >= QUIET_SECONDS or ": Step " in line or "registry" in line:
            self._shown_at = time.monotonic()
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
