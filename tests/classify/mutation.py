"""Mutants of the tables: every row that says something worse than nothing, moved one class down.

A row is what somebody may get wrong in one edit: a program's effects, a line of sub-commands, an option that writes
or runs, the roles of operands. Each mutant is tried on the cases of tests/cases that mention its program; one that no
case notices survives. `python tests/classify/mutation.py` lists the survivors; `--write` adds a case for each
to tests/cases/mutants.toml, with what the tables say now: read them before they are committed.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.entries import Entry, Option, entry_of, sub_entry
from broker.classify.risk import Risk
from broker.classify.tables import compile_tables, sources
from broker.request.operation import ShellText

CASES = Path(__file__).parent.parent / "cases"
CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")
HARMLESS_ROLES = frozenset(("", "text", "list", "two", "read_kind"))

Undo = Callable[[], None]


@dataclass(frozen=True)
class Mutant:
    """One row moved one class down: what it says, for which command lines, and how to apply it."""

    title: str
    programs: tuple[str, ...]
    sub: tuple[str, ...]  # the sub-commands on the way
    apply: Callable[[], Undo]
    tries: tuple[str, ...]  # command lines that may tell


def down(risks: tuple[Risk, ...]) -> tuple[Risk, ...]:
    """The worst of these classes becomes the one below it."""
    worst = max(risks)
    kept = tuple(risk for risk in risks if risk is not worst)
    return (*kept, Risk(worst - 1)) if worst - 1 > Risk.SAFE or not kept else kept


def mutants() -> Iterator[Mutant]:
    """All mutants of all tables, in the tables' order."""
    tables = compile_tables(sources())  # the sources' own order, whatever was compiled
    names: dict[int, list[str]] = {}
    for name, index in tables["programs"].items():
        names.setdefault(index, []).append(name)
    for index, programs in names.items():
        raw = tables["entries"][index]
        if programs[0].startswith("_"):  # what other entries are made from
            continue
        yield from _of_entry(raw, tuple(programs), ())


def _entries(programs: tuple[str, ...], sub: tuple[str, ...]) -> list[Entry]:
    found: dict[int, Entry] = {}
    for program in programs:
        entry = entry_of(program)
        for name in sub:
            entry = sub_entry(entry, name) if entry is not None else None
        if entry is not None:
            found[id(entry)] = entry
    return list(found.values())


def _of_entry(raw: dict[str, Any], programs: tuple[str, ...], sub: tuple[str, ...]) -> Iterator[Mutant]:
    start = " ".join((programs[0], *sub))
    if raw.get("effects", "safe") != "safe":
        yield Mutant(
            f"{start}: effects = {raw['effects']}", programs, sub, lambda: _set(programs, sub, "effects", lambda entry: down(entry.effects)),
            (start, f"{start} x", f"{start} x y", f"{start} -x"),
        )  # fmt: skip
    for labels, listed in raw.get("commands", {}).items():
        if labels == "safe":
            continue
        those = [name.replace("~", " ") for name in listed.split()]

        def lowered(entry: Entry, those: list[str] = those) -> dict[str, tuple[Risk, ...]]:
            return {name: down(risks) if name in those else risks for name, risks in entry.commands.items()}

        yield Mutant(
            f"{start}: {labels} = {listed[:60]}", programs, sub, lambda lowered=lowered: _set(programs, sub, "commands", lowered),
            tuple(f"{start} {name}{more}" for name in those[:6] for more in ("", " x")),
        )  # fmt: skip
    operands = raw.get("operands", "")
    roles = {role.removesuffix("...") for role in operands.split()}
    if roles - HARMLESS_ROLES - {"command"} and not raw.get("reader"):
        paths = ("~/.ssh/id_rsa", "~/.bashrc", "/etc/motd", "https://host.example/x", "x", "A=b", "/")
        yield Mutant(
            f"{start}: operands = {operands}", programs, sub, lambda: _plain_operands(programs, sub),
            tuple(f"{start} {before}{path}{after}" for before in ("", "x ", "x y ") for path in paths for after in ("", " z")),
        )  # fmt: skip
    for token in raw.get("options", "").split():
        name = re.split(r"[,=?!>]", token)[0]
        options = [entry.options.get(name) for entry in _entries(programs, sub)[:1]]
        if not options or options[0] is None or not _says_something(options[0]):
            continue
        joined = "=" if name.startswith("--") else " "
        values = (
            ("x", "~/.bashrc", "~/.ssh/id_rsa", "/etc/motd", "https://host.example/x", "sh", "LD_PRELOAD=./x")
            if options[0].takes
            else ("",)
        )
        tails = ("", " x", " x y", " pattern x", " 1")
        yield Mutant(
            f"{start}: option {token}", programs, sub, lambda name=name: _plain_option(programs, sub, name),
            tuple(f"{start} {name}{joined if value else ''}{value}{tail}" for value in values for tail in tails),
        )  # fmt: skip
    for name, inner in raw.get("sub", {}).items():
        if "same" not in inner:
            yield from _of_entry(inner, programs, (*sub, name))


def _says_something(option: Option) -> bool:
    return bool(option.effects) or option.role not in HARMLESS_ROLES | {"command"}


def _set(programs: tuple[str, ...], sub: tuple[str, ...], field: str, value: Callable[[Entry], Any]) -> Undo:
    """Change a field of all entries of a row. Returns how to undo it."""
    before = [(entry, getattr(entry, field)) for entry in _entries(programs, sub)]
    for entry, _ in before:
        setattr(entry, field, value(entry))
    return lambda: [setattr(entry, field, old) for entry, old in before] and None


def _plain_operands(programs: tuple[str, ...], sub: tuple[str, ...]) -> Undo:
    undo = [
        _set(programs, sub, "prefix", lambda entry: tuple("text" for _ in entry.prefix)),
        _set(programs, sub, "repeated", lambda entry: "text"),
        _set(programs, sub, "suffix", lambda entry: tuple("text" for _ in entry.suffix)),
    ]
    return lambda: [one() for one in undo] and None


def _plain_option(programs: tuple[str, ...], sub: tuple[str, ...], name: str) -> Undo:
    """The option's effects go one class down, or, where it has none, its value is a plain word."""

    def lowered(entry: Entry) -> dict[str, Option]:
        option = entry.options[name]
        if option.effects:
            changed = option._replace(effects=down(option.effects))
        else:
            changed = option._replace(role="text")
        return {
            key: changed if found == option._replace(name=key) else found
            for key, found in entry.options.items()
        }

    return _set(programs, sub, "options", lowered)


def effects_of(command: str) -> frozenset[str]:
    """The classes of a command, as cases write them."""
    found = {risk.label for risk in classify(ShellText(text=command), CONTEXT).effects - {Risk.SAFE}}
    return frozenset(found or {"safe"})


class Cases:
    """The commands of all cases with their effects, by the words in them."""

    def __init__(self, leave_out: tuple[str, ...] = ()) -> None:
        self.by_word: dict[str, list[tuple[str, frozenset[str]]]] = {}
        for file in sorted(CASES.glob("*.toml")):
            if file.stem in leave_out:
                continue
            for row in tomllib.loads(file.read_text(encoding="utf-8"))["case"]:
                self.add(row["command"], frozenset(row["effects"]))

    def add(self, command: str, effects: frozenset[str]) -> None:
        """Know one more case."""
        for word in set(re.findall(r"[\w.+:@\[-]+", command)):
            self.by_word.setdefault(word, []).append((command, effects))

    def notice(self, mutant: Mutant) -> bool:
        """Whether any case fails while the mutant is in place."""
        candidates = {
            command: effects
            for program in mutant.programs
            for command, effects in self.by_word.get(program, ())
            if all(name in command for name in mutant.sub)
        }
        undo = mutant.apply()
        try:
            return any(effects_of(command) != effects for command, effects in candidates.items())
        finally:
            undo()


def telling(mutant: Mutant) -> str | None:
    """A command line whose effects the mutant changes."""
    tries = [(command, effects_of(command)) for command in dict.fromkeys(mutant.tries)]
    undo = mutant.apply()
    try:
        return next((command for command, effects in tries if effects_of(command) != effects), None)
    finally:
        undo()


def main() -> None:
    """List the survivors, or write a case for each."""
    write = "--write" in sys.argv
    cases = Cases(leave_out=("mutants",) if write else ())
    rows: dict[str, dict[str, Any]] = {}
    total = survivors = same = 0
    for mutant in mutants():
        total += 1
        if cases.notice(mutant):
            continue
        command = telling(mutant)
        if command is None:
            same += 1
            continue
        survivors += 1
        effects = effects_of(command)
        rows[command] = {"id": command, "title": mutant.title, "command": command, "effects": sorted(effects)}
        cases.add(command, effects)
        if not write:
            print(f"survives: {mutant.title}   {command}")
    print(f"{total} mutants: {same} say the same as before, {survivors} of the others survive the cases")
    if write:
        lines = [
            "  { " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items()) + " },"
            for row in rows.values()
        ]
        (CASES / "mutants.toml").write_text(
            HEADER + "case = [\n" + "\n".join(lines) + "\n]\n", encoding="utf-8"
        )


HEADER = """\
# One line for each row of the tables that no other case would miss: what it says, as a command with its effects.
# Made by `python tests/classify/mutation.py --write` and read by people: a line that changes is a decision that changes.

"""

if __name__ == "__main__":
    main()
