"""Step 2: the classifier's data. Loads `tables/*.toml`, or the compiled `tables.json` where it is current.

The digest is part of every assessment, so that an answer can be replayed with the data that made it.
Data is read once, as package resources; nothing else of the world is looked at.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

FOLDER = "tables"
COMPILED = "tables.json"

Table = dict[str, Any]


def _package() -> Traversable:
    return files("broker.classify")


def sources() -> list[tuple[str, bytes]]:
    """Return (name, content) of every table, sorted by name."""
    folder = _package().joinpath(FOLDER)
    return sorted((item.name, item.read_bytes()) for item in folder.iterdir() if item.name.endswith(".toml"))


def digest_of(tables: list[tuple[str, bytes]]) -> str:
    """The digest of the tables' sources: names and contents."""
    total = sha256()
    for name, content in tables:
        total.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)
    return total.hexdigest()


def compile_tables(tables: list[tuple[str, bytes]]) -> Table:
    """Parse and merge the tables. Raises ValueError when two files define one program."""
    import tomllib

    programs: Table = {}
    merged: Table = {"digest": digest_of(tables), "programs": programs}
    for name, content in tables:
        parsed = tomllib.loads(content.decode())
        if name in ("paths.toml", "environment.toml"):
            merged[name.removesuffix(".toml")] = parsed
            continue
        for names, entry in parsed.items():
            for program in names.split():
                if program in programs:
                    raise ValueError(f"{name}: {program} is already defined in another table")
                programs[program] = entry
    return merged


@cache
def load() -> Table:
    """Return the merged tables: the compiled file if its digest matches the sources, else the sources."""
    tables = sources()
    compiled = _package().joinpath(COMPILED)
    try:
        data: Table = json.loads(compiled.read_bytes())
    except (OSError, ValueError):
        return compile_tables(tables)
    return data if data.get("digest") == digest_of(tables) else compile_tables(tables)


def tables_digest() -> str:
    """Return the digest of the data in use, 64 hexadecimal digits."""
    return str(load()["digest"])
