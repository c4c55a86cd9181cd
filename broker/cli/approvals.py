"""`broker approvals`: answer, from another terminal, what runs with --ask want to know."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from broker import exit_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from broker.task.watching import Watched

SUMMARY = "answer the questions of runs with --ask"
EXAMPLES = """
broker run --ask --profile builder -- my-agent
broker approvals                              what waits, of all your runs
broker approvals show 9f6b.3                  all of one question
broker approvals approve 9f6b.3               this one start, once
broker approvals approve 9f6b.3 --session     the same start again too, in this run, for an hour
broker approvals deny 9f6b.3 --why "use the Makefile"
broker approvals watch                        each question as it comes, with a prompt on a terminal
"""
WORDS = ("list", "show", "approve", "deny", "watch")
LOOK = 0.5  # seconds between two looks at what waits
BURST = 0.02  # seconds within which two lines are one paste
UNREAD = 0.7  # seconds in which a question has appeared and cannot have been read: a line that comes sooner is no answer
KEYS = {"o": "once", "s": "session", "d": "deny", "w": "deny"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "broker approvals [list | show ID [--claims] | approve ID [--session] | deny ID [--why TEXT] | watch] [--json]"
    )
    parser.add_argument("words", nargs="*", metavar="show|approve|deny ID",
                        help="ID is RUN.NUMBER (a run's id, its start or its last part); to show or deny, the number will do where one run waits only")  # fmt: skip
    parser.add_argument("--session", action="store_true",
                        help="approve the exact same start for the rest of the run, an hour at most; never what is destructive, "
                             "persistent, unknown or blocked, nor a change to a path")  # fmt: skip
    parser.add_argument("--why", default="", metavar="TEXT", help="with deny: what the agent is told, at most 500 characters")
    parser.add_argument("--claims", action="store_true", help="with show: also what the agent says about itself, of which nothing was checked")
    parser.add_argument("--json", action="store_true", help="print JSON: of watch, a line for each question")


def run(args: argparse.Namespace) -> int:
    """Do it. Returns 1 when there is no such question, or the answer does not count."""
    from broker.errors import UsageError

    if args.why and args.words[:1] != ["deny"]:
        raise UsageError("--why goes with deny: broker approvals deny ID --why TEXT")
    if args.session and args.words[:1] != ["approve"]:
        raise UsageError("--session goes with approve: broker approvals approve ID --session")
    if args.claims and args.words[:1] != ["show"]:
        raise UsageError("--claims goes with show: broker approvals show ID --claims")
    if len(args.why) > 500:
        raise UsageError("--why takes at most 500 characters. Say it shorter")
    match args.words:
        case [] | ["list"]:
            return _list(args)
        case ["show", word]:
            return _show(word, args)
        case ["approve", word]:
            return _answer(word, "session" if args.session else "once", args)
        case ["deny", word]:
            return _answer(word, "deny", args)
        case ["watch"]:
            return _watch(args)
        case ["show" | "approve" | "deny" as verb, *_]:
            raise UsageError(f"which question? Name one: broker approvals {verb} ID (broker approvals lists them)")
        case _:
            raise UsageError("write: broker approvals list, show ID, approve ID, deny ID, or watch")


def _waiting(runs: dict[str, Watched], *, claims: bool = False) -> list[tuple[Watched, dict[str, Any]]]:
    """Return what waits, of all runs, with where to answer it."""
    from broker.task.watching import questions

    found = []
    for one in runs.values():
        answer = questions(one, claims=claims)
        found += [(one, row) for row in answer["waiting"]] if answer is not None and "waiting" in answer else []
    return found


def _id(one: Watched, row: dict[str, Any]) -> str:
    return f"{one.run}.{row['approval']}"


def _meant(runs: dict[str, Watched], word: str, *, claims: bool = False) -> tuple[Watched, dict[str, Any]] | None:
    """Return the question that a word means; None: it does not wait. Raises UsageError for what could mean several."""
    from broker.cli.tasks import matching
    from broker.errors import UsageError

    name, _, number = word.rpartition(".")
    if not number.isdecimal():
        raise UsageError(f"{word!a} is no question. Write RUN.NUMBER, as `broker approvals` does")
    among = {run: runs[run] for run in (matching(runs, name) if name else runs)}
    found = [(one, row) for one, row in _waiting(among, claims=claims) if row["approval"] == int(number)]
    if len(found) > 1:
        raise UsageError(f"{word!a} waits in {len(found)} runs. Write which: {_id(*found[0])}")
    return found[0] if found else None


def _list(args: argparse.Namespace) -> int:
    from broker.task.watching import connect

    runs = connect()
    try:
        found = _waiting(runs)
    finally:
        _leave(runs)
    if args.json:
        import json

        print(json.dumps([{"id": _id(one, row), "run": one.run, **row} for one, row in found]))
    else:
        from broker.cli.terminal import Colours

        colours = Colours(sys.stdout)
        lines = [f"{_id(one, row)}  {colours.risk(row['class'])}  {row['what']}  ({row['left']:.0f} s left)" for one, row in found]
        print("\n".join(lines) or "nothing waits")
    return exit_codes.OK


def _leave(runs: dict[str, Watched]) -> None:
    for one in runs.values():
        one.close()


def _show(word: str, args: argparse.Namespace) -> int:
    from broker.task.watching import connect

    runs = connect()
    try:
        found = _meant(runs, word, claims=args.claims)
    finally:
        _leave(runs)
    if found is None:
        return _none(word)
    _print(*found, as_json=args.json)
    return exit_codes.OK


def _none(word: str) -> int:
    sys.stderr.write(f"broker: no question {word} waits. `broker approvals` lists those that do\n")
    return exit_codes.NOTHING


def _print(one: Watched, row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"id": _id(one, row), "run": one.run, **row}), flush=True)
    else:
        print("\n".join(lines_of(_id(one, row), row)), flush=True)


def lines_of(name: str, row: dict[str, Any]) -> list[str]:
    """Return a question for people: all of it, one argument a line, with whatever a terminal would act on written out."""
    from broker.cli.question_text import question
    from broker.cli.terminal import Colours

    lines = question(name, row, Colours(sys.stdout))
    if "claims" in row:
        from broker.cli.question_text import named

        said = [line for key, text in row["claims"].items() for line in named(key, text)]
        lines += ["  What the agent says about itself, in its own words. None of it was checked:", *(said or ["  nothing"])]
    return lines


def _answer(word: str, how: str, args: argparse.Namespace) -> int:
    from broker.errors import UsageError
    from broker.task.watching import connect

    name, _, number = word.rpartition(".")
    if how != "deny" and name in ("", "last"):
        # The run that he has looked at may be over, and another one have a question of that number by now.
        raise UsageError(f"which run's question {number!a}? To approve one, write RUN.NUMBER, as `broker approvals` does")

    runs = connect()
    try:
        found = _meant(runs, word)
        if found is None:
            return _none(word)
        said = _say(*found, how, args.why)
    finally:
        _leave(runs)
    return _report(said, _id(*found), as_json=args.json)


def _say(one: Watched, row: dict[str, Any], how: str, why: str) -> dict[str, Any]:
    """Give an answer, with the word where it has to be typed."""
    from broker.task.watching import answer

    said = answer(one, row["approval"], how, why=why)
    if said is not None and said["event"] == "word":
        typed = _typed(_id(one, row), row, said["word"], said["pause"])
        if typed is None:
            return {"event": "refused", "reason": f"several were approved just now: this one needs the word {said['word']}, typed at a terminal"}
        said = answer(one, row["approval"], how, word=typed)
        if said is not None and said["event"] == "word":
            return {"event": "refused", "reason": f"the word is {said['word']}: it waits on"}
    return said or {"event": "refused", "reason": "the broker of the run does not answer"}


def _typed(name: str, row: dict[str, Any], word: str, pause: float) -> str | None:
    """Have the word typed at the terminal, after a pause, whatever was typed during it thrown away. None: there is no terminal."""
    import termios

    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            lines = [*lines_of(name, row), "", "Several were approved just now. Read this one."]
            terminal.write(("\r\n".join(lines) + "\r\n").encode("utf-8", "backslashreplace"))
            time.sleep(pause + 0.1)
            termios.tcflush(terminal, termios.TCIFLUSH)
            terminal.write(f"To approve it, type {word}: ".encode())
            return terminal.readline(64).strip().decode("ascii", "replace")
    except OSError:
        return None


def _report(said: dict[str, Any], name: str, *, as_json: bool) -> int:
    from broker.cli.terminal import escape

    done = said["event"] == "answered"
    if as_json:
        import json

        print(json.dumps({"id": name, **said}), flush=True)
    elif done:
        words = {"once": "approved once", "session": "approved for the session", "deny": "denied"}
        print(f"{name} {words[said['how']]}", flush=True)
    else:
        sys.stderr.write(f"broker: {name} was not answered: {escape(str(said.get('reason')))}\n")
    return exit_codes.OK if done else exit_codes.NOTHING


def _watch(args: argparse.Namespace) -> int:
    """Show each question as it comes, one at a time; on a terminal, take the answer."""
    from contextlib import ExitStack

    from broker.task.watching import connect

    known: set[str] = set()
    runs: dict[str, Watched] = {}
    with ExitStack() as stack:
        terminal: BinaryIO | None = None
        if not args.json and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
            terminal = stack.enter_context(open("/dev/tty", "r+b", buffering=0))
        stack.callback(lambda: _leave(runs))
        while True:
            for gone in [run for run, one in runs.items() if one.over]:
                runs.pop(gone).close()
            runs |= connect(runs)
            new = next(((one, row) for one, row in _waiting(runs) if _id(one, row) not in known), None)
            if new is None:
                time.sleep(LOOK)
                continue
            known.add(_id(*new))
            _print(*new, as_json=args.json)
            if terminal is not None:
                _prompt(terminal, *new)


def _prompt(terminal: BinaryIO, one: Watched, row: dict[str, Any]) -> None:
    """Take the answer to one question from the terminal, until there is one or it does not wait any more."""
    import termios

    from broker.enforce.ready import readable

    name, keys = _id(one, row), "o once, d deny, w deny and say why" + (", s for the session" if row["session"] else "")
    termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    terminal.write(f"  {keys}: ".encode())
    shown = time.monotonic()
    while any(other["approval"] == row["approval"] for _, other in _waiting({one.run: one})):
        if not readable([terminal], LOOK):
            continue
        typed, soon = terminal.readline(64), time.monotonic() - shown < UNREAD
        if not typed:
            raise KeyboardInterrupt
        more = readable([terminal], BURST)  # a line comes by itself: of a paste none is an answer, nor is what is left of a long one
        termios.tcflush(terminal, termios.TCIFLUSH)
        key = "" if soon or more else typed.strip().lower().decode("ascii", "replace")
        if key in KEYS:
            why = ""
            if key == "w":
                terminal.write(b"  why: ")
                why = terminal.readline(500).strip().decode("utf-8", "replace")[:500]
                termios.tcflush(terminal, termios.TCIFLUSH)
            if _report(_say(one, row, KEYS[key], why), name, as_json=False) == exit_codes.OK:
                return
        terminal.write(f"  {keys}: ".encode())
    print(f"\n{name} does not wait any more", flush=True)
