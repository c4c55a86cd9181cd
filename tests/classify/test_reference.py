"""The reference pages are what the tables say, and say it completely."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from broker.classify.reference import FOLDER, main, pages
from broker.classify.tables import NO_PROGRAMS, TABLES, sources

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages, made once."""
    return pages()


def test_the_committed_pages_are_current(made: dict[str, str]) -> None:
    stale = [
        path for path, text in made.items() if not (DOCS / path).exists() or (DOCS / path).read_text() != text
    ]
    gone = [file.name for file in (DOCS / FOLDER).glob("*.md") if f"{FOLDER}/{file.name}" not in made]
    assert not stale + gone, "run `make reference` and commit what it writes"


def test_every_program_and_every_path_and_every_variable_is_on_a_page(made: dict[str, str]) -> None:
    tables = {name: tomllib.loads(content.decode()) for name, content in sources()}
    for family in (name for name in TABLES if name not in NO_PROGRAMS):
        for names in tables[family]:
            for name in names.split():
                assert f"`{name}`" in made[f"{FOLDER}/programs-{family}.md"], name
    for sections in tables["paths"].values():
        for entries in sections.values():
            for key in entries:
                assert f"`{key}`" in made[f"{FOLDER}/protected-paths.md"], key
    for section in ("runs", "set_by_a_text"):
        for name in tables["environment"][section]:
            assert f"`{name}`" in made[f"{FOLDER}/variables.md"], name


def test_a_page_is_small_enough_to_be_shown(made: dict[str, str]) -> None:
    for path, text in made.items():
        assert len(text) < 500_000, path


def test_pages_of_families_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "programs-gone.md").write_text("x")
    main(tmp_path)
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.md")}
    assert written == set(pages())
