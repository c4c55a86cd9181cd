"""Step 2: the classifier's data. Loads `tables/*.toml`, or the compiled `tables.json` where it is current.

The digest of the sources is part of every assessment, so that an answer can be replayed with the data that
made it. The files beside this module are read once; nothing else of the world is looked at.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from zlib import crc32

TABLES = (
    "agents",
    "archives",
    "building",
    "cloud",
    "containers",
    "contents",
    "coreutils",
    "data",
    "databases",
    "desktop",
    "disks",
    "documents",
    "dotnet",
    "editors",
    "environment",
    "forges",
    "games",
    "git",
    "go",
    "hardware",
    "internal",
    "jvm",
    "languages",
    "macos",
    "mail",
    "media",
    "misc",
    "monitoring",
    "netpbm",
    "network",
    "node",
    "packagers",
    "packages",
    "paths",
    "php",
    "python",
    "ruby",
    "rust",
    "science",
    "search",
    "security",
    "shell",
    "system",
    "text",
    "transfer",
    "vcs",
    "web",
    "windows",
)
"""The families, one file each, in the order of the digest."""

COMPILED = "tables.json"
NO_PROGRAMS = ("contents", "environment", "paths")
"""The tables that are about something else than programs."""
_FOLDER = __file__.rpartition("/")[0]

Table = dict[str, Any]


def sources() -> list[tuple[str, bytes]]:
    """Return (family, content) of every table. Raises OSError when one is missing: the package is broken."""
    found: list[tuple[str, bytes]] = []
    for name in TABLES:
        with open(f"{_FOLDER}/tables/{name}.toml", "rb") as file:
            found.append((name, file.read()))
    return found


def digest_of(tables: list[tuple[str, bytes]]) -> str:
    """The digest of the tables' sources: names and contents."""
    from hashlib import sha256  # loads OpenSSL: only when compiling

    total = sha256()
    for name, content in tables:
        total.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)
    return total.hexdigest()


def stamp_of(tables: list[tuple[str, bytes]]) -> int:
    """A cheap check that a compiled file is made from these sources.

    It guards against staleness, not malice: who can write one of these files can write all of them.
    """
    total = 0
    for name, content in tables:
        total = crc32(content, crc32(f"{name} {len(content)} ".encode(), total))
    return total


def compile_tables(tables: list[tuple[str, bytes]]) -> Table:
    """Parse and merge the tables. Raises ValueError when two files define one program.

    Many programs share an entry: `entries` holds each once, `programs` says which one a name has.
    """
    import tomllib

    entries: list[Table] = []
    programs: dict[str, int] = {}
    merged: Table = {
        "digest": digest_of(tables),
        "stamp": stamp_of(tables),
        "entries": entries,
        "programs": programs,
    }
    for family, content in tables:
        parsed = tomllib.loads(content.decode())
        if family in NO_PROGRAMS:
            merged[family] = parsed
            continue
        for names, entry in parsed.items():
            entries.append(entry)
            for name in names.split():
                if name in programs:
                    raise ValueError(f"{family}.toml: {name} is already defined")
                programs[name] = len(entries) - 1
    return merged


@cache
def load() -> Table:
    """Return the merged tables: the compiled file if it is made from the sources, else the sources."""
    tables = sources()
    try:
        with open(f"{_FOLDER}/{COMPILED}", "rb") as file:
            data: Table = json.loads(file.read())
    except (OSError, ValueError):
        return compile_tables(tables)
    return data if data.get("stamp") == stamp_of(tables) else compile_tables(tables)


def program_table(name: str) -> Table | None:
    """Return what the tables say of a program, or None."""
    tables = load()
    index = tables["programs"].get(name)
    if index is None:
        return None
    entry: Table = tables["entries"][index]
    return entry


def tables_digest() -> str:
    """Return the digest of the data in use, 64 hexadecimal digits."""
    return str(load()["digest"])
