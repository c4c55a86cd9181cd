"""`broker events`: which runs there were, what happened in one, and whether its record is intact."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from broker.cli import events_verify, exit_codes
from broker.cli.terminal import Colours, command_line, escape, shorten
from broker.errors import JournalError, UsageError
from broker.record import event
from broker.record.journal import is_being_written, read
from broker.record.run_files import find_run, list_runs, state_dir

SUMMARY = "list runs, read and verify their journals"
EXAMPLES = """\
broker events                               # the runs, newest first
broker events last                          # what happened in the newest
broker events last --verdict deny           # only what was refused
broker events 20261130-0430 --type task.denied --json
broker events verify last                   # is the record as it was written?
broker events verify --all"""

LISTED = 20
TAIL = 1 << 16  # bytes from the end of a journal in which to look for its last line first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `broker events` takes."""
    parser.usage = "broker events [RUN | verify RUN ...] [OPTION ...]"
    parser.add_argument(
        "words", nargs="*", metavar="RUN", help="an id, its start or its last part, `last`, or a file's path"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--type", action="append", default=[], help="only this type, or this group (task.denied, exec)"
    )
    parser.add_argument("--verdict", choices=["allow", "ask", "deny"], help="only events with this verdict")
    parser.add_argument("--all", action="store_true", help=f"all runs, not only the newest {LISTED}")
    events_verify.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    state = state_dir()
    match args.words:
        case [word, *rest] if word in events_verify.WORDS:
            return events_verify.run(state, word, rest, args)
        case []:
            return _list(state, everything=args.all, as_json=args.json)
        case [word]:
            return _print(find_run(state, word), args)
        case _:
            raise UsageError("one run at a time. Try: broker events --help")


# --- the list of runs


def _list(state: Path, *, everything: bool, as_json: bool) -> int:
    paths = list_runs(state)
    shown = paths if everything else paths[:LISTED]
    rows = [_summary(path) for path in shown]
    if as_json:
        for row in rows:
            print(event.encode(row).decode())
        return exit_codes.OK
    if not rows:
        print(f"No runs yet in {escape(str(state / 'runs'))}.")
        return exit_codes.OK
    colours = Colours(sys.stdout)
    profile_width = max(7, *(len(escape(row["profile"])) for row in rows))
    heading = (
        f"{'RUN':<20}  {'WHEN (UTC)':<19}  {'PROFILE':<{profile_width}}  {'RESULT':<13}  DENIED  COMMAND"
    )
    print(colours.paint(heading, "bold"))
    for row in rows:
        result = f"{escape(row['result']):<13}"
        denied = f"{row['denials']:>6}"
        line = (
            f"{row['run']:<20}  {row['started'][:19].replace('T', ' '):<19}  "
            f"{escape(row['profile']):<{profile_width}}  "
            f"{colours.paint(result, *_result_style(row['result']))}  "
            f"{colours.paint(denied, 'red') if row['denials'] else denied}  "
            f"{command_line(row['command'], 70)}"
        )
        print(line.rstrip())
    if len(paths) > len(shown):
        print(colours.paint(f"… and {len(paths) - len(shown)} older. All: broker events --all", "dim"))
    return exit_codes.OK


def _summary(path: Path) -> dict[str, Any]:
    """Return one row of the list. A journal that makes no sense is listed as damaged, not passed over."""
    row: dict[str, Any] = {
        "run": path.stem,
        "journal": str(path),
        "started": "",
        "profile": "",
        "command": [],
    }
    row |= {"denials": 0, "result": "damaged"}
    try:
        first = next(read(path), None)
        last = _last_event(path)
        if first is not None:
            command = first.get("command")
            row["started"] = str(first.get("time", ""))
            row["profile"] = str(first.get("profile", ""))
            row["command"] = [str(word) for word in command] if isinstance(command, list) else []
        row["result"] = _result(path, last)
        counted = last.get("denials") if last and last.get("type") == event.RUN_FINISHED else None
        row["denials"] = counted if isinstance(counted, int) else count_denials(read(path))
    except JournalError:
        pass
    return row


def _last_event(path: Path) -> dict[str, Any] | None:
    """Return the last whole event, reading the end of the file only if that is enough."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read().split(b"\n")
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    if len(lines) < 3 and size > TAIL:
        from collections import deque

        rest = deque(read(path), maxlen=1)
        return rest[0] if rest else None
    if len(lines) < 2:
        return None
    try:
        return event.decode(lines[-2])
    except ValueError as error:
        raise JournalError(f"{path}: the last line is no event ({error})") from error


def _result(path: Path, last: dict[str, Any] | None) -> str:
    if last is None or last.get("type") != event.RUN_FINISHED:
        return "running" if is_being_written(path) else "interrupted"
    signal, code = last.get("signal"), last.get("exit_code")
    if last.get("oom"):
        return "out of memory"
    if last.get("timed_out"):
        return "timed out"
    if signal:
        return f"signal {signal}"
    if isinstance(code, int):
        return "ok" if code == 0 else f"exit {code}"
    return str(last.get("status", "finished"))


def _result_style(result: str) -> tuple[str, ...]:
    return {"ok": ("green",), "running": ("cyan",)}.get(result, ("yellow",))


def count_denials(events: Iterable[dict[str, Any]]) -> int:
    """Return how many denials a run had, repetitions included."""
    counts: dict[tuple[object, ...], int] = {}
    for one in events:
        kind = one.get("type")
        if kind not in (event.TASK_DENIED, event.TASK_DENIED_REPEATED):
            continue
        key = (one.get("task"), one.get("tool"), one.get("rule"), one.get("what"))
        count = one.get("count") if kind == event.TASK_DENIED_REPEATED else 1
        counts[key] = max(counts.get(key, 0), count if isinstance(count, int) else 1)
    return sum(counts.values())


# --- the events of a run


def _print(path: Path, args: argparse.Namespace) -> int:
    chosen = _filter(read(path), args.type, args.verdict)
    if args.json:
        for one in chosen:
            print(event.encode(one).decode())
        return exit_codes.OK
    colours = Colours(sys.stdout)
    found = False
    for one in chosen:
        found = True
        print(describe(one, colours))
    if not found:
        sys.stderr.write(f"{escape(path.stem)} holds no such event.\n")
    return exit_codes.OK


def _filter(
    events: Iterable[dict[str, Any]], types: list[str], verdict: str | None
) -> Iterator[dict[str, Any]]:
    for one in events:
        kind = str(one.get("type", ""))
        if types and not any(kind == wanted or kind.startswith(f"{wanted}.") for wanted in types):
            continue
        # A `task.denied` is a refusal by its type; it repeats no verdict.
        said = one.get("verdict") or ("deny" if kind.startswith(event.TASK_DENIED) else None)
        if verdict is None or said == verdict:
            yield one


def describe(one: dict[str, Any], colours: Colours) -> str:
    """Return one event as a line to read: when, where, what, and for a decision why."""
    kind = str(one.get("type", "?"))
    text = _DESCRIBE.get(kind, _describe_other)(one, colours)
    when = escape(str(one.get("time", ""))[11:23])
    task = escape(str(one.get("task", "")))
    head = f"{colours.paint(when, 'dim')} {colours.paint(task, 'cyan')} {colours.paint(escape(kind), 'bold')}"
    return f"{head}  {text}".rstrip()


def _describe_decision(one: dict[str, Any], colours: Colours) -> str:
    verdict = str(one.get("verdict", "?"))
    style = {"allow": "green", "ask": "yellow"}.get(verdict, "red")
    parts = [colours.paint(f"{escape(verdict):<5}", style), operation_text(one.get("operation"))]
    parts.append(f"[{_classes(one.get('effects'), colours)}]")
    parts.append(colours.paint(_source(one), "dim"))
    if verdict != "allow" and one.get("reason"):
        parts.append(f"— {shorten(escape(str(one['reason'])), 200)}")
    return " ".join(parts)


def _describe_denial(one: dict[str, Any], colours: Colours) -> str:
    count = one.get("count")
    times = f" ×{count}" if isinstance(count, int) else ""
    text = f"{escape(str(one.get('tool', '')))}: {shorten(escape(str(one.get('what', ''))), 160)}{times}"
    if one.get("type") == event.TASK_DENIED:
        text += f" [{_classes(one.get('effects'), colours)}] {colours.paint(_source(one), 'dim')}"
        text += f" — {shorten(escape(str(one.get('reason', ''))), 200)}"
    return text


def _describe_start(one: dict[str, Any], colours: Colours) -> str:
    command = one.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    told = {"command": None, "profile": None}
    rest = _describe_other({name: value for name, value in one.items() if name not in told}, colours)
    return f"{command_line(words)} under profile {escape(str(one.get('profile', '?')))} {rest}"


def _describe_other(one: dict[str, Any], colours: Colours) -> str:
    told = event.ENVELOPE
    fields = (f"{escape(name)}={_value(value)}" for name, value in one.items() if name not in told)
    return " ".join(fields)


_DESCRIBE: dict[str, Callable[[dict[str, Any], Colours], str]] = {
    event.EXEC_DECIDED: _describe_decision,
    event.FILE_DECIDED: _describe_decision,
    event.TASK_DENIED: _describe_denial,
    event.TASK_DENIED_REPEATED: _describe_denial,
    event.RUN_STARTED: _describe_start,
}


def _value(value: object) -> str:
    if isinstance(value, str):
        return shorten(escape(value), 120)
    return shorten(json.dumps(value, sort_keys=True), 200)


def _classes(effects: object, colours: Colours) -> str:
    names = effects if isinstance(effects, list) else []
    return ", ".join(colours.risk(escape(str(name))) for name in names)


def _source(one: dict[str, Any]) -> str:
    return f"({escape(str(one.get('layer', '-')))}: {escape(str(one.get('rule', '-')))})"


def operation_text(operation: object) -> str:
    """Return a recorded operation in a few words, safe to show."""
    if not isinstance(operation, dict):
        return ""
    match operation:
        case {"kind": "shell", "text": str(text)}:
            return shorten(escape(text), 140)
        case {"kind": "exec" | "delegation", "argv": [*words]}:
            return command_line([str(word) for word in words], 140)
        case {"kind": "file_change", "action": action, "path": path}:
            other = f" ({escape(str(operation['other']))})" if operation.get("other") else ""
            return f"{escape(str(action))} {shorten(escape(str(path)), 140)}{other}"
        case {"kind": "file_read", "path": path}:
            return f"read {shorten(escape(str(path)), 140)}"
        case {"kind": "connection", "address": address}:
            return f"connect {escape(str(address))}:{operation.get('port', 0)}"
        case _:
            return _value(operation)
