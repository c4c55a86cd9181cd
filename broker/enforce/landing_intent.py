"""Step 4: what a landing is about to do, and how far it has come, on disk before it does it.

A step is one change; the intent is the file with all of them (`landing.jsonl` in the layer).
"""

from __future__ import annotations

import json
from typing import Any

from broker.enforce.changes import Change, Facts, Kind, Thing
from broker.enforce.layer import Layer, write_whole
from broker.values import dataclass

INTENT = "landing.jsonl"


@dataclass(slots=True)
class Step:
    """One change, and what has to be known to finish or undo it after a crash."""

    number: int
    change: Change
    staged: int = 0  # the inode that takes its place; 0: none
    in_layer: bool = False  # that inode is the layer's own file, and a rename carries it over

    @property
    def name(self) -> str:
        """Its name in the staging folder."""
        return str(self.number)

    @property
    def kept(self) -> str:
        """The name there of what it replaces, while the two change places step by step."""
        return f"{self.number}.kept"

    def as_line(self) -> dict[str, Any]:
        """Return it for the intent."""
        change = self.change
        return {
            "n": self.number, "part": change.part, "path": change.path, "kind": change.kind, "thing": change.thing,
            "target": change.target, "staged": self.staged, "in_layer": self.in_layer,
            "old": change.old, "new": change.new, "marked": change.marked, "opaque": change.opaque,
        }  # fmt: skip


class Intent:
    """The file that says what a landing is about to do, and how far it has come."""

    def __init__(self, layer: Layer) -> None:
        self.path = layer.folder / INTENT
        self.head = {"format": 1, "run": layer.run}

    def begin(self) -> None:
        """Say that a landing is about to begin: from here on, what it leaves is undone."""
        write_whole(self.path, (json.dumps(self.head) + "\n").encode("ascii"))

    def commit(self, steps: list[Step]) -> None:
        """Say what it will do, all of it: from here on, it is completed."""
        lines = [self.head, *(step.as_line() for step in steps), {"commit": True}]
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in lines).encode("ascii"))

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the steps as lines, and whether they are to be completed. Raises OSError and ValueError."""
        lines = [json.loads(line) for line in self.path.read_bytes().splitlines()]
        return lines[1:-1], lines[-1] == {"commit": True}

    def end(self) -> None:
        """Say that nothing is left to be done."""
        self.path.unlink(missing_ok=True)


def step_of(line: dict[str, Any]) -> Step:
    """Return a step as the intent's line has it."""

    def facts(values: list[int] | None) -> Facts | None:
        return None if values is None else Facts(*values)

    change = Change(
        line["part"], line["path"], Kind(line["kind"]), Thing(line["thing"]), facts(line["new"]), facts(line["old"]),
        line["target"], marked=line["marked"], opaque=line["opaque"],
    )  # fmt: skip
    return Step(line["n"], change, line["staged"], line["in_layer"])
