"""Holds journals against the schema that is shipped: every suite that drives `broker` does, with all that it made."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from broker.record.schema import schema_text


@functools.cache
def validator() -> Draft202012Validator:
    """The schema, itself checked."""
    schema = json.loads(schema_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def unfit(events: Iterable[dict[str, Any]]) -> list[str]:
    """What does not fit, of the first event of each shape."""
    found = []
    for shape, one in _by_shape(events).items():
        for error in validator().iter_errors(one):
            place = "/".join(map(str, error.absolute_path))
            found.append(f"{shape[0]}: {place or 'the event'}: {error.message[:200]}")
    return found


def undescribed(events: Iterable[dict[str, Any]]) -> set[str]:
    """Types that the schema does not have, and fields that it does not name."""
    schema = validator().schema
    assert isinstance(schema, dict)
    missing = set()
    for one in events:
        kind = one["type"]
        if kind not in schema["$defs"]:
            missing.add(kind)
            continue
        known = schema["properties"].keys() | schema["$defs"][kind]["properties"].keys()
        missing |= {f"{kind}: {name}" for name in one.keys() - known}
    return missing


def _in_order(path: Path) -> tuple[str, int]:
    """A long run goes on in `RUN.2.jsonl`, which comes after `RUN.jsonl`."""
    run, _, segment = path.stem.partition(".")
    return str(path.parent / run), int(segment) if segment.isdigit() else 1


def events_below(folder: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of every journal below a folder that makes sense; tests of faults make some that do not."""
    for path in sorted(folder.rglob("runs/*.jsonl"), key=_in_order):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and line.startswith(b"{") and b'"seq"' in line:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def _by_shape(events: Iterable[dict[str, Any]]) -> dict[tuple[object, ...], dict[str, Any]]:
    shapes: dict[tuple[object, ...], dict[str, Any]] = {}
    for one in events:
        operation = one.get("operation")
        kind = operation.get("kind") if isinstance(operation, dict) else None
        shapes.setdefault((one.get("type"), kind, one.get("verdict"), one.get("seq") == 1, *sorted(one)), one)
    return shapes
