"""`broker diff`: what a task changed and did not land, as a unified diff."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.cli.terminal import Colours
    from broker.enforce.layer import Layer
    from broker.task.diff_text import Diff

SUMMARY = "show the changes of a task that are kept, not landed"
EXAMPLES = """
broker diff                        the newest task whose changes are kept
broker diff 20261130-074517-353d
broker diff last --stat
broker diff last --withheld src
broker diff last > change.patch    for git apply
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "task",
        nargs="?",
        default="last",
        metavar="TASK",
        help="a run id, its start or end, or last: the newest of this workspace (default)",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these paths, and what lies below them")
    parser.add_argument("--stat", action="store_true", help="one line a path")
    parser.add_argument(
        "--withheld", action="store_true", help="only what the profile does not permit, and conflicts"
    )
    parser.add_argument("--no-pager", action="store_true", help="print at once, on a terminal too")
    parser.add_argument("--json", action="store_true", help="print paths, kinds and reasons as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the changes. On a terminal they are coloured, made harmless to look at, and shown in a pager."""
    import sys

    from broker.cli.terminal import Colours
    from broker.enforce.changes import changes_of
    from broker.enforce.layer import find_layer, layers_base
    from broker.record.run_files import state_dir
    from broker.task.diff_text import Diff, stat_lines
    from broker.task.landing import select

    layer = find_layer(layers_base(state_dir()), args.task)
    reasons = dict(layer.manifest.withheld)
    changes = select(layer, changes_of(layer), args.paths)
    chosen = sorted(
        (change for change in changes if not args.withheld or change.never or layer.path(change) in reasons),
        key=lambda change: (change.part, change.path),
    )
    if args.json:
        import json

        rows = [
            {
                "path": layer.path(one),
                "change": str(one.kind),
                "withheld": one.never or reasons.get(layer.path(one), ""),
            }
            for one in chosen
        ]
        print(json.dumps({"run": layer.run, "workspace": layer.manifest.workspace, "changes": rows}))
        return 0
    colours = Colours(sys.stdout)
    terminal = sys.stdout.isatty()
    diffs = (Diff(layer, change) for change in chosen)
    lines = stat_lines(diffs) if args.stat else _unified(layer, diffs, reasons)
    shown = b"".join(_paint(line, colours, terminal=terminal) for line in lines) or b"no changes are kept\n"
    _show(shown, pager=terminal and not args.no_pager)
    return 0


def _unified(layer: Layer, diffs: Iterable[Diff], reasons: dict[str, str]) -> list[bytes]:
    from broker.cli.terminal import escape

    lines: list[bytes] = []
    for one in diffs:
        why = one.change.never or reasons.get(layer.path(one.change), "")
        if why:
            lines.append(b"# withheld: %b\n" % escape(why).encode())
        lines += one.head()
        lines += one.lines
    return lines


_STYLES = {b"+": "green", b"-": "red", b"@": "cyan", b"#": "yellow", b"d": "bold"}


def _paint(line: bytes, colours: Colours, *, terminal: bool) -> bytes:
    from broker.cli.terminal import escape

    if not terminal:
        return line
    text = line.decode("utf-8", "surrogateescape")
    safe = "\n".join(escape(part.replace("\t", "    ")) for part in text.rstrip("\n").split("\n"))
    style = _STYLES.get(line[:1])
    return (colours.paint(safe, style) if style else safe).encode() + b"\n"


def _show(text: bytes, *, pager: bool) -> None:
    import os
    import shlex
    import subprocess
    import sys

    words = shlex.split(os.environ.get("BROKER_PAGER") or os.environ.get("PAGER") or "less -FRX")
    if pager and words:
        try:
            subprocess.run(words, input=text, check=False)
        except OSError:
            pass
        else:
            return
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
