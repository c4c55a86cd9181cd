"""Step 5: the events' JSON Schema (2020-12), as it is shipped."""

from __future__ import annotations

from pathlib import Path


def schema_text() -> str:
    """Return the schema, as a file has it."""
    return (Path(__file__).parent / "event.schema.json").read_text(encoding="ascii")
