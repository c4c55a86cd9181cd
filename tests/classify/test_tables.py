"""The data: every entry can be read, every role and reader exists, and the compiled form says the same."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from broker.classify import tables, tables_digest
from broker.classify.call import READERS
from broker.classify.compile_tables import main as compile_main
from broker.classify.entries import Entry, entry_of, sub_entry
from broker.classify.readers import FAMILIES, reader_named
from broker.classify.risk import Risk
from broker.classify.roles import ROLES

FOLDER = Path(tables.__file__).parent / "tables"
PROGRAMS = sorted(name for name in tables.load()["programs"] if name != "_internal")


def test_every_file_of_the_folder_is_a_table_and_every_table_is_a_file() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.toml")) == sorted(tables.TABLES)


def check(entry: Entry) -> None:
    """An entry names only roles, readers and classes that exist."""
    assert not entry.reader or reader_named(entry.reader), entry.name
    roles = {*entry.prefix, entry.repeated, *entry.suffix}
    for option in entry.options.values():
        roles |= {option.role, *(word.removesuffix("...") for word in option.operands.split())}
    assert roles - {""} <= ROLES, entry.name
    assert all(isinstance(risk, Risk) for risk in entry.effects)
    commands = [name for names in entry.raw.get("commands", {}).values() for name in names.split()]
    assert sorted(set(commands)) == sorted(commands), f"{entry.name} has a command twice"
    for name in entry.sub:
        own = sub_entry(entry, name)
        assert own is not None
        check(own)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_readers_registers_what_it_is_said_to(family: str) -> None:
    """And nothing else: the reader of a name that is listed nowhere would never be found."""
    name = f"broker.classify.readers.{family}"
    import_module(name)
    registered = [reader for reader, function in READERS.items() if function.__module__ == name]
    assert registered == FAMILIES[family].split()


def test_every_module_of_readers_is_a_family() -> None:
    folder = FOLDER.parent / "readers"
    assert sorted(file.stem for file in folder.glob("[!_]*.py")) == sorted(FAMILIES)


def test_every_program_has_an_entry_that_can_be_read() -> None:
    for name in PROGRAMS:
        entry = entry_of(name)
        assert entry is not None
        check(entry)


def test_the_compiled_tables_say_what_the_sources_say(tmp_path: Path) -> None:
    merged = tables.compile_tables(tables.sources())
    target = compile_main(tmp_path / "tables.compiled")
    compiled = tables.unpack(target.read_bytes())
    assert dict(compiled["programs"]) == merged["programs"]
    assert list(compiled["entries"]) == merged["entries"]
    rest = {key: value for key, value in merged.items() if key not in ("programs", "entries")}
    assert json.dumps({key: compiled[key] for key in rest}) == json.dumps(rest), "the order counts, too"
    assert merged["digest"] == tables_digest()


def test_a_compiled_file_of_other_sources_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "tables.compiled"
    stale.write_bytes(tables.pack({"digest": "0" * 64, "programs": {"x": 0}, "entries": [{}]}))
    monkeypatch.setattr(tables, "COMPILED", str(stale.relative_to("/")).join(("../" * 20, "")))
    fresh = tables.load.__wrapped__()
    assert fresh["programs"]["ls"] is not None


def test_two_files_cannot_define_one_program() -> None:
    with pytest.raises(ValueError, match="twice is already defined"):
        tables.compile_tables([("a", b"[twice]\n"), ("b", b'["other twice"]\n')])
