"""How SQL is cut into statements, and that it takes no longer than the text is long."""

from __future__ import annotations

import time

import pytest

from broker.classify import classify
from broker.classify.context import Context
from broker.classify.readers.databases import statements
from broker.classify.risk import Risk
from broker.request.operation import ShellText


@pytest.mark.parametrize(
    ("text", "dialect", "cut"),
    [
        ("select 1; select 2", "psql", ["SELECT 1", "SELECT 2"]),
        ("select ';' , \";\"", "psql", ["SELECT '' , \"\""]),
        ("select 'it''s;'", "psql", ["SELECT ''"]),
        (r"select E'\''; drop", "psql", ["SELECT E''", "DROP"]),
        (r"select x like'\'; drop", "psql", ["SELECT X LIKE''", "DROP"]),
        ("select $a$ ; $$ ; $a$", "psql", ["SELECT $$"]),
        ("select 1 /* ; */ -- ;", "psql", ["SELECT 1"]),
        (r"select '\'; drop", "mysql", ["SELECT ''"]),
        ("select 1--1; drop", "mysql", ["SELECT 1--1", "DROP"]),
        ("select 1 -- ; drop", "mysql", ["SELECT 1"]),
        ("select 1 /*! ; drop */ # ;", "mysql", ["SELECT 1", "DROP */"]),
        ("select $a$ ; drop $a$", "sqlite", ["SELECT $A$", "DROP $A$"]),
        ("select 'never ends; drop", "sqlite", ["SELECT ''"]),
    ],
)
def test_statements_end_where_their_dialect_ends_them(text: str, dialect: str, cut: list[str]) -> None:
    assert [statement for statement, _ in statements(text, dialect)] == cut


def test_the_literals_of_a_statement_are_told() -> None:
    assert statements("copy t to 'a.csv'; select 'b'", "psql") == [
        ("COPY T TO ''", ["a.csv"]),
        ("SELECT ''", ["b"]),
    ]


FRAGMENTS = [
    "'",
    '"',
    "`",
    "$a$",
    "$",
    "/*",
    "--",
    "#",
    "\\",
    "'a',",
    ";",
    "(",
    "delete from ",
    "create ",
    "/*! ",
]


@pytest.mark.parametrize("fragment", FRAGMENTS)
@pytest.mark.parametrize("dialect", ["psql", "mysql", "sqlite"])
def test_a_text_of_64_kib_is_cut_in_a_moment(fragment: str, dialect: str) -> None:
    text = fragment * (64 * 1024 // len(fragment))
    started = time.process_time()
    statements(text, dialect)
    assert time.process_time() - started < 1, "a text is gone through once"


@pytest.mark.parametrize("client", ["psql", "mysql", "sqlite3 app.db", "duckdb", "usql"])
def test_more_statements_than_anybody_reads_are_not_known(client: str, context: Context) -> None:
    text = "select 1;" * 5000
    answer = classify(ShellText(text=f"{client} <<'X'\n{text}\nX"), context)
    assert Risk.UNKNOWN in answer.effects
