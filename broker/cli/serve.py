"""`broker serve`: a page for the browser of this machine, with what waits, what runs and what is refused."""

from __future__ import annotations

import argparse
import sys

from broker import exit_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

SUMMARY = "serve a page that shows what waits, what runs and what is refused, and takes answers"
EXAMPLES = """
broker serve                      print the page's link, and serve it until Ctrl-C
broker serve --open               open it in your browser as well
broker serve --port 8321          for ssh -L 8321:127.0.0.1:8321 from another machine
broker serve --json               {"url": ...}, for programs
"""
INSIDE = "/run/broker/bin/broker"  # what every sandbox shows, and no host has


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="the port to listen on; without it, a free one")
    parser.add_argument("--address", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1 (default) or ::1; never another one")
    parser.add_argument("--open", action="store_true", help="open the page in a browser, if this session has one")
    parser.add_argument("--json", action="store_true", help="print the link as JSON, in one line")


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit() and int(word) < 65536):
        raise argparse.ArgumentTypeError(f"{word!a} is no port: write a number from 1 to 65535")
    return int(word)


def run(args: argparse.Namespace) -> int:
    """Do it, until Ctrl-C or SIGTERM."""
    import asyncio
    import os

    from broker.errors import UsageError

    if os.path.exists(INSIDE):
        raise UsageError("inside a sandbox there is nobody who could answer. Run broker serve on the host")
    asyncio.run(_serve(args))
    return exit_codes.OK


async def _serve(args: argparse.Namespace) -> None:
    import asyncio
    import contextlib
    import signal

    from broker.serve.page.server import Server, door_of, listener

    ended, entered = asyncio.Event(), contextlib.ExitStack()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with listener(args.address, args.port) as listening, entered:
        door = door_of(listening)
        listening.listen(64)  # before anybody is told
        _tell(door.url, as_json=args.json)
        if args.open:
            _open(door.url, entered)
        await Server(door, explained, entered.close).serve(listening, ended)


def _tell(url: str, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"url": url}), flush=True)
        return
    from broker.cli.terminal import Colours

    print(f"{Colours(sys.stdout).paint(url, 'bold')}\n\nWhoever has this link can answer as you. It is good until this ends: Ctrl-C.", flush=True)


def _open(url: str, until: Any) -> None:
    """Open a browser. What it is started with can be seen by everybody on the machine, so that is a file that only we can read."""
    import os
    import webbrowser

    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        sys.stderr.write("broker: this session has no browser. Open the link in one on this machine\n")
        return
    path = until.enter_context(_link(url))
    if not webbrowser.open(path.as_uri()):
        sys.stderr.write("broker: no browser could be started. Open the link by hand\n")


def _link(url: str) -> AbstractContextManager[Path]:
    """Keep a file that leads to the link, mode 0600, for the length of the block. The link has no character that HTML knows."""
    import contextlib
    import tempfile
    from pathlib import Path

    from broker.enforce.runtime import runtime_base

    @contextlib.contextmanager
    def kept() -> Iterator[Path]:
        with tempfile.NamedTemporaryFile("w", prefix="page-", suffix=".html", dir=runtime_base(), encoding="ascii") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><title>broker</title>\n')
            file.flush()
            yield Path(file.name)

    return kept()


def explained(run: str, task: str, tool: str, rule: str, what: str) -> dict[str, Any]:
    """Find a denial in its run's record. Returns `id`, and what happened, why, and how to allow it; or a `reason` why not."""
    from broker.cli.denial_words import paragraphs
    from broker.cli.events_show import denial_of, look
    from broker.errors import BrokerError
    from broker.record import event
    from broker.record.lines import containing, event_at
    from broker.record.run_files import find_run, state_dir

    try:
        path, number = find_run(state_dir(), run), 0
        for place, line in containing(path, event.TASK_DENIED):
            one = event_at(path, place, line)
            said = one.get("type"), one.get("task"), one.get("tool"), one.get("rule")
            if said == (event.TASK_DENIED, task, tool, rule) and "of" not in one and _is(str(one.get("what")), what):
                number = int(one.get("seq", 0))
        if not number:
            return {"reason": f"the record of {run} does not have it by itself: it is one of very many"}
        denial = denial_of(look(path, number))
    except BrokerError as error:
        return {"reason": str(error)}
    assert denial is not None
    happened, why, how = paragraphs(denial)
    return {"id": f"{run}:{number}", "what": happened, "why": why, "how": how}


def _is(recorded: str, shown: str) -> bool:
    return recorded == shown or (shown.endswith("…") and recorded.startswith(shown[:-1]))
