"""`broker events show ID`: one event, in three paragraphs: what happened, why, and how to allow it."""

from __future__ import annotations

import sys
import textwrap
from collections import deque
from pathlib import Path
from typing import Any

from broker import exit_codes
from broker.cli.denial_words import Denial, paragraphs
from broker.cli.event_text import operation_text, text_of
from broker.cli.terminal import Colours, escape
from broker.errors import UsageError
from broker.profiles.denials import judged
from broker.record import event
from broker.record.lines import Place, event_at, lines
from broker.record.run_files import find_run
from broker.record.select import Reader
from broker.values import dataclass

NEAR = 64  # lines before and after in which the other events about one refusal stand
TITLES = ("What happened", "Why", "How to allow it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An event, and what the rest of its run says about it."""

    event: dict[str, Any]
    near: tuple[dict[str, Any], ...]  # in the order of their distance
    run: dict[str, Any]  # run.started
    task: dict[str, Any]  # task.created of its task
    profile: str
    counts: dict[tuple[str, str, str], int]  # tool, what, rule: how often


def show(state: Path, ids: list[str], *, as_json: bool) -> int:
    """Print the events with these ids."""
    if not ids:
        raise UsageError("name an event: broker events show RUN:NUMBER, or a NUMBER of the newest run")
    for position, word in enumerate(ids):
        path, number = _split(state, word)
        seen = look(path, number)
        denial = denial_of(seen)
        texts = paragraphs(denial) if denial is not None else _plainly(seen)
        if as_json:
            row = {"id": f"{path.stem}:{number}", "event": seen.event, "what": texts[0], "why": texts[1], "how": texts[2]}
            print(event.encode(row).decode())
            continue
        if position:
            print()
        _print(path, seen, denial, texts)
    return exit_codes.OK


def _split(state: Path, word: str) -> tuple[Path, int]:
    run, _, number = word.rpartition(":")
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise UsageError(f"{word!r} is no event's id. Write RUN:NUMBER (broker events RUN shows the numbers), or a NUMBER of the newest run")
    return find_run(state, run or "last"), int(number)


def look(path: Path, number: int) -> Seen:
    """Read a run for one of its events and what else is said about it. Raises UsageError when it has no such event."""
    before: deque[tuple[Place, bytes]] = deque(maxlen=NEAR)
    after: list[tuple[Place, bytes]] = []
    created: list[dict[str, Any]] = []
    counts: dict[tuple[str, str, str], int] = {}
    wanted: tuple[Place, bytes] | None = None
    count = 0
    for count, (place, line) in enumerate(lines(path), 1):
        if count == number:
            wanted = (place, line)
        elif wanted is None:
            before.append((place, line))
        elif len(after) < NEAR:
            after.append((place, line))
        if b'"task.created"' in line or b'"run.started"' in line:
            created.append(event_at(path, place, line))
        elif b'"task.denied.repeated"' in line:
            said = event_at(path, place, line)
            if isinstance(said.get("count"), int):
                counts[_key(said)] = max(counts.get(_key(said), 0), said["count"])
    if wanted is None:
        raise UsageError(f"{path.stem} has no event {number}: its last is {count}")
    one = event_at(path, *wanted)
    near = [each for pair in _zip_longest(list(reversed(before)), after) for each in pair]
    reader = Reader()
    for each in created:
        reader.facts(each)
    who = task_of(one)
    mine = [each for each in created if each.get("task") == who and each.get("type") == event.TASK_CREATED]
    first = [each for each in created if each.get("type") == event.RUN_STARTED]
    return Seen(
        event=one,
        near=tuple(event_at(path, *each) for each in near),
        run=first[0] if first else {},
        task=mine[-1] if mine else {},
        profile=reader.facts({"task": who}).profile,
        counts=counts,
    )


def task_of(one: dict[str, Any]) -> str:
    """Return the task that an event is about: what a task is refused is told to those above it as well (`of`)."""
    return str(one.get("of") or one.get("task", ""))


def _zip_longest(first: list[Any], second: list[Any]) -> list[list[Any]]:
    return [[*first[at : at + 1], *second[at : at + 1]] for at in range(max(len(first), len(second)))]


def _key(one: dict[str, Any]) -> tuple[str, str, str]:
    return str(one.get("tool", "")), str(one.get("what", "")), str(one.get("rule", ""))


def denial_of(seen: Seen) -> Denial | None:
    """Gather what the run says about the refusal that an event is, or is about. None: it refuses nothing."""
    one = seen.event
    kind = str(one.get("type", ""))
    if one.get("verdict") != "deny" and not kind.startswith(event.TASK_DENIED):
        return None
    who = task_of(one)
    alike = [each for each in seen.near if task_of(each) == who and each.get("rule") == one.get("rule")]
    told = [each for each in (one, *alike) if each.get("type") == event.TASK_DENIED and _about_the_same(one, each)]
    decided = [each for each in (one, *alike) if each.get("verdict") == "deny" and _about_the_same(told[0] if told else one, each)]
    full = {**(told[0] if told else {}), **(decided[0] if decided else {}), **one}
    refused = full.get("refused") or (told[0].get("effects") if told else None) or full.get("effects")
    own_profile = seen.profile == seen.run.get("profile")
    context = seen.task.get("context")
    writable = context.get("writable") if isinstance(context, dict) else None
    return Denial(
        run=str(one.get("run", "")), task=who, time=str(one.get("time", "")), type=kind,
        what=str(full.get("what") or _tried(judged(full))), reason=str(full.get("reason", "")),
        rule=str(full.get("rule", "")), layer=str(full.get("layer", "")),
        refused=tuple(map(str, refused)) if isinstance(refused, list) else (), hint=str(full.get("hint", "")),
        operation=judged(full) or {},
        count=max([1, *(seen.counts.get(_key(each), 1) for each in (one, *told))]), profile=seen.profile,
        source=str(seen.run.get("source", "")) if own_profile else "",
        trust=str(seen.task.get("trust") or seen.run.get("trust") or ""),
        writable=tuple(map(str, writable)) if isinstance(writable, list) else (), planting=_planting(full.get("reasons")),
    )  # fmt: skip


def _planting(reasons: object) -> tuple[str, ...]:
    found = reasons if isinstance(reasons, list) else []
    rules = [str(each.get("rule", "")) for each in found if isinstance(each, dict) and each.get("class") == "persistence"]
    return tuple(dict.fromkeys(rules))


def _about_the_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two events are about one refusal: the same reason, or, where one gives none, the same thing tried."""
    if "reason" in one and "reason" in other:
        return bool(one["reason"] == other["reason"])
    return bool(one.get("what") == other.get("what"))


def _tried(operation: dict[str, Any] | None) -> str:
    return operation_text(operation) if operation else ""


def _plainly(seen: Seen) -> tuple[str, str, str]:
    """Return the three paragraphs of an event that refuses nothing."""
    one = seen.event
    who = f"task {escape(str(one.get('task', '')))}"
    when = f"{escape(str(one.get('time', ''))[11:19])} UTC on {escape(str(one.get('time', ''))[:10])}"
    if one.get("verdict") != "allow":
        text = text_of(one, Colours(None))
        return f"At {when}, in {who}: {escape(str(one.get('type', '')))}. {text}".rstrip(), "It is a record of what happened; nothing was decided.", "There is nothing to allow."
    what = f"At {when} {who} (profile {escape(seen.profile)}) was allowed: `{_tried(judged(one))}`."
    effects = ", ".join(map(escape, map(str, one.get("effects") or ["safe"])))
    rule, layer = escape(str(one.get("rule", ""))), str(one.get("layer", ""))
    why = f"It is {effects}. {_ALLOWED.get(layer, f'Decided by {escape(layer)}')} (rule {rule})."
    if isinstance(grant := one.get("grant"), dict):
        why += f" What it starts lives in the grant of `{escape(str(grant.get('entry', '')))}`."
    return what, why, f"It is allowed. {_NOT_ANY_MORE.get(layer, '')}".rstrip()


_ALLOWED = {
    "operator": "It is the command that the operator gave",
    "profile": "The profile permits all of these classes",
    "allowlist": "It is on the allowlist, word by word",
    "grant": "It was started below an entry of the allowlist, whose grant has these classes",
    "landing": "It is a change in the task's own copy; whether it lands is decided at the end",
    "approval": "Somebody was asked, and agreed",
}
_NOT_ANY_MORE = {
    "profile": "To refuse it from now on, lower max_risk, take a class away (effects.remove), or put its beginning on the denylist.",
    "allowlist": "To refuse it from now on, take the entry off the allowlist.",
    "grant": "To refuse it from now on, take the entry off the allowlist, or put this command's beginning on the denylist.",
}


def _print(path: Path, seen: Seen, denial: Denial | None, texts: tuple[str, str, str]) -> None:
    from broker.cli.parser import columns

    colours = Colours(sys.stdout)
    width = min(columns() if sys.stdout.isatty() else 100, 100)
    word = colours.paint("denied", "red", "bold") if denial is not None else escape(str(seen.event.get("verdict") or ""))
    classes = ", ".join(colours.risk(escape(name)) for name in denial.refused) if denial is not None else ""
    head = [colours.paint(f"{escape(path.stem)}:{seen.event.get('seq', '?')}", "bold"), escape(str(seen.event.get("type", ""))), word, classes]
    print("  ".join(part for part in head if part))
    for title, text in zip(TITLES, texts, strict=True):
        print(f"\n{colours.paint(title, 'bold')}")
        print(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
