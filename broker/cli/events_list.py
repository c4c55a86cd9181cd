"""The list that `broker events` prints: the runs, newest first, how each ended and how much it was denied."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from broker import exit_codes
from broker.cli.terminal import Colours, command_line, escape
from broker.errors import JournalError
from broker.record import event
from broker.record.journal import is_being_written, read
from broker.record.lines import containing, event_at
from broker.record.run_files import list_runs, segments

LISTED = 20
TAIL = 1 << 16  # bytes from the end of a journal in which to look for its last line first


def show_runs(state: Path, *, everything: bool, as_json: bool) -> int:
    """Print the runs, newest first."""
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
        f"{'RUN':<22}  {'WHEN (UTC)':<19}  {'PROFILE':<{profile_width}}  {'RESULT':<13}  DENIED  COMMAND"
    )
    print(colours.paint(heading, "bold"))
    for row in rows:
        result = f"{escape(row['result']):<13}"
        denied = f"{row['denials']:>6}"
        line = (
            f"{row['run']:<22}  {escape(row['started'][:19]).replace('T', ' '):<19}  "
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
        row["result"] = _result(path, last, hooks=first is not None and first.get("verb") == "hook")
        counted = last.get("denials") if last and last.get("type") == event.RUN_FINISHED else None
        row["denials"] = counted if isinstance(counted, int) else count_denials(_denials(path))
    except JournalError:
        pass
    return row


def _last_event(path: Path) -> dict[str, Any] | None:
    """Return the last whole event, reading the end of the journal only if that is enough."""
    for segment in reversed(segments(path)):
        if line := _last_line(segment):
            try:
                return event.decode(line)
            except ValueError as error:
                raise JournalError(f"{segment}: the last line is no event ({error})") from error
    return None


def _last_line(segment: Path) -> bytes:
    try:
        with segment.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            back = TAIL
            while True:
                file.seek(max(0, size - back))
                lines = file.read().split(b"\n")
                if len(lines) > 2 or back >= size:
                    return lines[-2] if len(lines) > 1 else b""
                back *= 8
    except OSError as error:
        raise JournalError(f"cannot read {segment}: {error.strerror}") from error


def _result(path: Path, last: dict[str, Any] | None, *, hooks: bool) -> str:
    """Return how the run ended. `hooks`: it is a session of an agent on the host, and some of these never say that they end."""
    if last is None or last.get("type") != event.RUN_FINISHED:
        return "open" if hooks else "running" if is_being_written(path) else "interrupted"
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
    return {"ok": ("green",), "running": ("cyan",), "open": ("cyan",)}.get(result, ("yellow",))


def _denials(path: Path) -> Iterator[dict[str, Any]]:
    return (event_at(path, place, line) for place, line in containing(path, event.TASK_DENIED))


def count_denials(events: Iterable[dict[str, Any]]) -> int:
    """Return how many denials a run had, repetitions included."""
    counts: dict[tuple[object, ...], int] = {}
    for one in events:
        if "of" in one:  # a task below was denied, and is counted itself
            continue
        kind = one.get("type")
        key = (one.get("task"), one.get("tool"), one.get("rule"), one.get("what"))
        if kind == event.TASK_DENIED:
            counts.setdefault(key, 1)
        elif kind == event.TASK_DENIED_REPEATED and (key in counts or key[1] == "*"):
            count = one.get("count")
            counts[key] = max(counts.get(key, 0), count if isinstance(count, int) else 1)
    return sum(counts.values())
