"""docs/failure-modes.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "failure-modes.md"


def test_each_way_to_fail_has_a_test_that_there_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what goes wrong")]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]

    assert len(rows) > 30
    assert [row for row, found in zip(rows, named, strict=True) if len(found) != 1] == []
    missing = []
    for [(file, name)] in named:
        functions = {node.name for node in ast.walk(ast.parse((PROJECT / file).read_text())) if isinstance(node, ast.FunctionDef)}
        missing += [f"{file}::{name}"] if name not in functions else []
    assert missing == []
