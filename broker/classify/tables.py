"""Step 2: the classifier's data. Loads `tables/*.toml`, or `tables.compiled` where it is current.

The digest of the sources is part of every assessment, so that an answer can be replayed with the data that
made it. The files beside this module are read once; nothing else of the world is looked at.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
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

COMPILED = "tables.compiled"
NO_PROGRAMS = ("contents", "environment", "paths")
"""The tables that are about something else than programs."""
_FOLDER = __file__.rpartition("/")[0]

Table = dict[str, Any]


class Programs(Mapping[str, int]):
    """Which entry a program's name has. Tens of thousands of names, of which a process asks for some dozens."""

    def __init__(self, lines: list[bytes]) -> None:
        """Take `name<TAB>number` lines, sorted."""
        self._lines = lines

    def __getitem__(self, name: str) -> int:
        begins = name.encode("utf-8", "surrogateescape") + b"\t"
        at = bisect_left(self._lines, begins)
        if at == len(self._lines) or not self._lines[at].startswith(begins):
            raise KeyError(name)
        return int(self._lines[at][len(begins) :])

    def __iter__(self) -> Iterator[str]:
        return (line.partition(b"\t")[0].decode() for line in self._lines)

    def __len__(self) -> int:
        return len(self._lines)


class Entries(Sequence[Table]):
    """What the tables say of programs, decoded when it is asked for."""

    def __init__(self, texts: list[bytes]) -> None:
        """Take one JSON text for each entry."""
        self._texts: list[Any] = list(texts)

    def __getitem__(self, index: Any) -> Any:
        found = self._texts[index]
        if isinstance(found, bytes):
            found = self._texts[index] = json.loads(found)
        return found

    def __len__(self) -> int:
        return len(self._texts)


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


def pack(merged: Table) -> bytes:
    """Return merged tables as the compiled file holds them: one line of JSON, the names, the entries.

    The JSON keeps the sources' order: where two entries fit, the first one is named, compiled or not.
    """
    rest = {key: value for key, value in merged.items() if key not in ("programs", "entries")}
    names = sorted(f"{name}\t{number}".encode() for name, number in merged["programs"].items())
    entries = [_json(entry) for entry in merged["entries"]]
    return b"\n\n".join((_json(rest), b"\n".join(names), b"\n".join(entries)))


def unpack(content: bytes) -> Table:
    """Return the tables of a compiled file. Raises ValueError when it is none."""
    head, names, entries = content.split(b"\n\n")
    data: Table = json.loads(head)
    data["programs"], data["entries"] = Programs(names.split(b"\n")), Entries(entries.split(b"\n"))
    return data


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@cache
def load() -> Table:
    """Return the merged tables: the compiled file if it is made from the sources, else the sources."""
    tables = sources()
    try:
        with open(f"{_FOLDER}/{COMPILED}", "rb") as file:
            data = unpack(file.read())
    except (OSError, ValueError):
        return unpack(pack(compile_tables(tables)))
    return data if data.get("stamp") == stamp_of(tables) else unpack(pack(compile_tables(tables)))


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
