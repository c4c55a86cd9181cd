"""Step 5, reading: the file that the index is in: its tables, who may remove it, and what its complaints mean.

In: a state directory. Out: a connection to a file with our tables. A file that is damaged or of another version is
removed, by whoever holds it alone.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "index.sqlite"
VERSION = 1  # of the tables below and of what Facts are: raise it when either changes
WAIT = 5.0  # seconds for somebody else's batch

_TABLES = """
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, files TEXT NOT NULL, segment INTEGER NOT NULL,
  offset INTEGER NOT NULL, head TEXT NOT NULL, count INTEGER NOT NULL, profiles TEXT NOT NULL, trouble TEXT NOT NULL);
CREATE TABLE facts (id INTEGER PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE counts (
  run INTEGER NOT NULL, facts INTEGER NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (run, facts)) WITHOUT ROWID;
CREATE TABLE events (
  run INTEGER NOT NULL, number INTEGER NOT NULL, facts INTEGER NOT NULL, time INTEGER NOT NULL,
  segment INTEGER NOT NULL, offset INTEGER NOT NULL, hash INTEGER NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID;
CREATE INDEX by_facts ON events (run, facts);
"""
# What SQLite answers when the file is not, or no longer, what we made of it (sqlite.org/rescode.html).
_DAMAGED = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH,
                      sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_FORMAT})  # fmt: skip


class Unusable(Exception):
    """The index cannot be used here and now. Read the lines."""


class Untrue(Exception):
    """The index does not say what the journal says."""


@contextmanager
def connected(state: Path) -> Iterator[sqlite3.Connection]:
    """Open the file of a state directory, made anew if need be. Raises Unusable when it cannot be used."""
    lock = _lock(state)
    try:
        connection = _connect(state / NAME)
        if connection is None:
            _throw_away(state, lock)
            connection = _connect(state / NAME)
            if connection is None:
                raise Unusable
        try:
            yield connection
        finally:
            with suppress(sqlite3.Error):
                connection.close()
    finally:
        os.close(lock)


def throw_away(state: Path) -> None:
    """Remove an index that turned out to be wrong, unless somebody else is using it just now."""
    with suppress(Unusable):
        lock = _lock(state)
        try:
            _throw_away(state, lock)
        finally:
            os.close(lock)


def _lock(state: Path) -> int:
    """Return a descriptor that says: somebody uses the index. Only who holds it alone may remove the file."""
    try:
        lock = os.open(state / f"{NAME}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        raise Unusable from error
    return lock


def _throw_away(state: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for suffix in ("", "-wal", "-shm", "-journal"):
            (state / f"{NAME}{suffix}").unlink(missing_ok=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        raise Unusable from error


def _connect(path: Path) -> sqlite3.Connection | None:
    """Return a connection to a file with our tables, or None when it is not, or no longer, one of ours."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))  # SQLite would make it 0644
    except OSError as error:
        raise Unusable from error
    connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
    try:
        with complaints():
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "journal_mode = WAL", "synchronous = NORMAL",
                           "cache_size = -16000", "temp_store = MEMORY"):  # fmt: skip
                connection.execute(f"PRAGMA {pragma}")
            _make(connection)
            if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                return connection
    except Untrue:
        pass
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def _make(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file, once, whoever comes first."""
    if connection.execute("PRAGMA user_version").fetchone()[0] or connection.execute("PRAGMA schema_version").fetchone()[0]:
        return
    connection.execute("BEGIN IMMEDIATE")
    if not connection.execute("PRAGMA schema_version").fetchone()[0]:
        for statement in filter(str.strip, _TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


@contextmanager
def complaints() -> Iterator[None]:
    """Turn what SQLite complains about into what a reader can do about it."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        raise (Untrue if code in _DAMAGED else Unusable) from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise Untrue from error  # the file is well-formed, and its contents are not ours
    except OSError as error:
        raise Unusable from error
