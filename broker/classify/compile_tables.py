"""Build step: write `tables.json`, so that a cold start does not parse TOML. Run by the build hook."""

from __future__ import annotations

import json
from pathlib import Path

from broker.classify.tables import COMPILED, compile_tables, sources


def main(target: Path | None = None) -> Path:
    """Write the compiled tables (beside the sources, unless told otherwise) and return the file's path."""
    target = target or Path(__file__).with_name(COMPILED)
    # In the sources' order: where two entries fit, the first one is named, compiled or not.
    text = json.dumps(compile_tables(sources()), ensure_ascii=False, separators=(",", ":"))
    temporary = target.with_suffix(".json.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)
    return target


if __name__ == "__main__":
    print(main())
