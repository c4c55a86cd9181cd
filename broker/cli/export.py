"""`broker export`: hand events on to other systems, in their words, each at least once.

Exit code 69: the other side cannot be reached, or does not take it; the next `broker export` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import UsageError

if TYPE_CHECKING:
    from broker.record.export.cursor import Cursor
    from broker.record.export.message import Format, Sink
    from broker.record.export.pump import Counts, Item

SUMMARY = "hand events on: OCSF, CEF, CloudEvents, OpenTelemetry; file, HTTP, NATS"
PATIENCE = 300.0
FORMATS = ("cloudevents", "ocsf", "cef", "otel")
EXAMPLES = """\
broker export last --format ocsf                              # to stdout, one event a line
broker export --all --format cef --to /var/log/broker.cef     # what is new since the last time
broker export --follow --format cloudevents --to https://collector.example/events --headers ~/.config/broker/headers
broker export --follow --format otel --to http://localhost:4318     # OTLP: logs and traces
broker export --follow --format ocsf --to nats://localhost:4222/BROKER    # a JetStream stream"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker export` takes."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="an id, its start or its last part, `last`, or a file's path")
    parser.add_argument("--all", action="store_true", help="all runs that there are (with --follow, and those that begin later: the default)")
    parser.add_argument("--format", choices=FORMATS, required=True, help="the format of the events")
    parser.add_argument(
        "--to", metavar="SINK", default="-", help="FILE, - for stdout (default), http(s)://…, nats://HOST[:PORT]/STREAM"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what happens now; without a RUN, in every run")
    parser.add_argument("--restart", action="store_true", help="from the beginning, whatever was handed on before")
    parser.add_argument("--cursor", metavar="NAME", default="", help="a cursor of this name; for stdout: remember how far it came")
    parser.add_argument(
        "--patience", metavar="SECONDS", type=_seconds,
        help="give up when a sink cannot be reached for so long (300; with --follow it is tried for ever)",
    )  # fmt: skip
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="for HTTP (may be repeated; others can see it: better --headers)")
    parser.add_argument("--headers", metavar="FILE", help="for HTTP: a file with a header a line")
    parser.add_argument("--ca", metavar="FILE", help="for https: the authorities to trust, instead of the system's")
    parser.add_argument("--credentials", metavar="FILE", help="for NATS: a credentials file")
    parser.add_argument("--json", action="store_true", help="print what was handed on as JSON (not with stdout)")


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.record.export.cursor import Cursor
    from broker.record.export.pump import Pump, followed, recorded
    from broker.record.lines import START
    from broker.record.run_files import find_run, list_runs, prepare, state_dir, without_parts

    if args.runs and args.all:
        raise UsageError("--all takes no run")
    if not (args.runs or args.all or args.follow):
        raise UsageError("name runs, or say --all, or --follow: broker export last --format ocsf")
    if args.json and args.to == "-":
        raise UsageError("--json would stand among what is exported to stdout: say --to FILE")
    state = state_dir()
    every = list_runs(state)
    paths = without_parts([find_run(state, word) for word in args.runs]) or sorted(every)
    format_, sink = _format(args.format), _sink(args)
    cursor: Cursor | None = None
    try:
        if args.to != "-" or args.cursor:
            cursor = Cursor(state, args.format, _target(args.to), args.cursor)
            cursor.keep_only({path.stem for path in (*every, *paths)})
            if args.restart:
                cursor.forget()
        place = cursor.place if cursor is not None else lambda _run: START
        patience = args.patience if args.patience is not None else None if args.follow else PATIENCE
        pump = Pump(format_, sink, cursor, patience, _tell)
        items: Iterator[Item | None] = recorded(paths, place)
        if args.follow:
            items = followed(paths, place, None if args.runs else prepare(state))
        _carry(pump.carry, items)
    finally:
        sink.close()
        if cursor is not None:
            cursor.close()
    _say(pump.counts, args)
    return 0


def _carry(carry: Callable[[Iterator[Item | None]], Counts], items: Iterator[Item | None]) -> None:
    """Carry until the end; a service manager's SIGTERM, and Ctrl-C, are the end of --follow: nothing is lost by them."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        carry(items)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _target(to: str) -> str:
    return to if "://" in to or to == "-" else os.path.abspath(to)


def _format(name: str) -> Format:
    """Return a format; what it needs is loaded for whoever wants it."""
    match name:
        case "cloudevents":
            from broker.record.export.cloudevents import CloudEvents

            return CloudEvents()
        case "ocsf":
            from broker.record.export.ocsf import Ocsf

            return Ocsf()
        case "cef":
            from broker.record.export.cef import Cef

            return Cef()
        case _:
            from broker.record.export.otel import Otel

            return Otel()


def _sink(args: argparse.Namespace) -> Sink:
    scheme, _, rest = args.to.partition("://") if "://" in args.to else ("", "", args.to)
    match scheme:
        case "http" | "https":
            from broker.record.export.to_http import HttpSink

            return HttpSink(args.to, _headers(args), args.ca)
        case "nats" | "tls":
            from broker.record.export.to_nats import NatsSink

            server, _, stream = rest.partition("/")
            if not server or not stream or "/" in stream:
                raise UsageError(f"name a server and a stream: --to nats://localhost:4222/BROKER, not {args.to}")
            return NatsSink(f"{scheme}://{server}", stream, args.credentials)
        case "":
            from broker.record.export.to_file import FileSink, StdoutSink

            return StdoutSink() if args.to == "-" else FileSink(os.path.abspath(args.to))
        case _:
            raise UsageError(f"--to takes a FILE, -, http://…, https://… or nats://…, not {scheme}://")


def _headers(args: argparse.Namespace) -> dict[str, str]:
    words = list(args.header)
    if args.headers:
        try:
            words += [line for line in Path(args.headers).expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the headers in {args.headers}: {getattr(error, 'strerror', None) or error}") from error
    headers = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or not name.strip() or not name.isascii() or "\n" in value:
            raise UsageError("a header is NAME: VALUE, for instance --header 'Authorization: Bearer …'")
        headers[name.strip()] = value.strip()
    return headers


def _tell(message: str) -> None:
    from broker.cli.terminal import escape

    print(f"broker: {escape(message)}", file=sys.stderr, flush=True)


def _say(counts: Counts, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps({
            "events": counts.events, "messages": counts.messages, "passed_over": counts.passed, "batches": counts.batches,
            "retries": counts.retries,
        }))  # fmt: skip
    elif args.to != "-":
        passed = f", {counts.passed} events have no place in {args.format}" if counts.passed else ""
        print(f"{counts.messages} messages from {counts.events} events{passed}")
