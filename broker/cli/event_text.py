"""One event as text to read: a line, or the row of a table. Nothing that a process wrote reaches a terminal raw."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from broker.cli.terminal import Colours, command_line, escape, shorten
from broker.record import event


def describe(one: dict[str, Any], colours: Colours, *, run: str = "") -> str:
    """Return one event as a line to read: its id, when, where, what, and for a decision why.

    The id is what `broker events show` takes: a number, with the `run` in front where several are shown.
    """
    number = escape(str(one.get("seq", "?")))
    name = f"{escape(run)}:{number}" if run else f"{number:>4}"
    kind = escape(str(one.get("type", "?")))
    text = text_of(one, colours)
    when = escape(str(one.get("time", ""))[11:23])
    task = escape(str(one.get("task", "")))
    head = f"{colours.paint(name, 'dim')} {colours.paint(when, 'dim')} {colours.paint(task, 'cyan')}"
    return f"{head} {colours.paint(kind, 'bold')}  {text}".rstrip()


def text_of(one: dict[str, Any], colours: Colours) -> str:
    """Return what an event says, without its envelope."""
    usual = _describe_decision if "verdict" in one else _describe_other
    return _DESCRIBE.get(str(one.get("type", "?")), usual)(one, colours)


# What a table shows of each event; the last column takes what is left of the terminal's width.
_COLUMNS = (("ID", 4), ("TIME (UTC)", 19), ("TASK", 10), ("TYPE", 20), ("VERDICT", 7), ("CLASS", 14), ("RULE", 26))
_WHAT = 20  # at least


def table_heading(*, runs: bool) -> str:
    """Return the heading of a table; with `runs` the ids have the run in front."""
    return "  ".join([*(f"{name:<{width}}" for name, width in _widths(runs=runs)), "WHAT"])


def _widths(*, runs: bool) -> tuple[tuple[str, int], ...]:
    return ((_COLUMNS[0][0], 25), *_COLUMNS[1:]) if runs else _COLUMNS


def table_row(one: dict[str, Any], colours: Colours, width: int | None, *, run: str = "") -> str:
    """Return one event as a row of the table; `width` is the terminal's, None for no limit."""
    number = escape(str(one.get("seq", "?")))
    verdict = str(one.get("verdict") or ("deny" if str(one.get("type", "")).startswith(event.TASK_DENIED) else ""))
    effects = one.get("refused") or one.get("effects")
    worst = str(one.get("class") or (effects[-1] if isinstance(effects, list) and effects and verdict else ""))
    time = str(one.get("time", ""))[:19].replace("T", " ")
    cells = [f"{run}:{number}" if run else f"{number:>4}", time, str(one.get("task", "")), str(one.get("type", ""))]
    cells += [verdict, worst, str(one.get("rule", ""))]
    columns = _widths(runs=bool(run))
    fitted = [f"{shorten(escape(cell), size):<{size}}" for cell, (_, size) in zip(cells, columns, strict=True)]
    what = _what(one)
    if width is not None:
        what = shorten(what, max(_WHAT, width - sum(size + 2 for _, size in columns)))
    styles = {"allow": "green", "ask": "yellow", "deny": "red"}
    if cells[4] in styles:
        fitted[4] = colours.paint(fitted[4], styles[cells[4]])
    if worst:
        fitted[5] = colours.risk(fitted[5].rstrip()) + " " * (14 - len(fitted[5].rstrip()))
    return "  ".join([*fitted, what]).rstrip()


def _what(one: dict[str, Any]) -> str:
    if "operation" in one:
        return _asked_for(one)
    if isinstance(said := one.get("what"), str):
        return escape(said)
    return text_of(one, Colours(None))


def _describe_decision(one: dict[str, Any], colours: Colours) -> str:
    verdict = str(one.get("verdict", "?"))
    style = {"allow": "green", "ask": "yellow"}.get(verdict, "red")
    parts = [colours.paint(f"{escape(verdict):<5}", style), _asked_for(one)]
    parts.append(f"[{_classes(one.get('effects'), colours)}]")
    parts.append(colours.paint(_source(one), "dim"))
    if verdict != "allow" and one.get("reason"):
        parts.append(f"— {shorten(escape(str(one['reason'])), 200)}")
    if one.get("child"):
        parts.append(f"→ {escape(str(one['child']))}")
    return " ".join(parts)


def _describe_denial(one: dict[str, Any], colours: Colours) -> str:
    count = one.get("count")
    times = f" ×{count}" if isinstance(count, int) else ""
    times += f" by {shorten(escape(str(one['program'])), 80)}" if "program" in one else ""
    times += f" (in {escape(str(one['of']))})" if "of" in one else ""
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


def _asked_for(one: dict[str, Any]) -> str:
    """Return what was decided on: of a command that an agent wrapped, the command; `broker events show` has the whole of it."""
    visible = one.get("visible")
    return shorten(escape(visible), 140) if isinstance(visible, str) else operation_text(one.get("operation"))


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
