"""Build step: write `tables.compiled`, so that a cold start does not parse TOML. Run by the build hook."""

from __future__ import annotations

from pathlib import Path

from broker.classify.tables import COMPILED, compile_tables, pack, sources


def main(target: Path | None = None) -> Path:
    """Write the compiled tables (beside the sources, unless told otherwise) and return the file's path."""
    target = target or Path(__file__).with_name(COMPILED)
    temporary = target.with_name(f"{target.name}.new")
    temporary.write_bytes(pack(compile_tables(sources())))
    temporary.replace(target)
    return target


if __name__ == "__main__":
    print(main())
