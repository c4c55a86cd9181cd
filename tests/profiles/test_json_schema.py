"""The JSON Schema says what the loader says, as far as a schema can."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from broker.errors import ProfileError
from broker.profiles import schema as loader
from broker.profiles.json_schema import json_schema
from broker.profiles.load import profile_of

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(json_schema())


def loads(text: str) -> bool:
    try:
        source, tables = loader.decode_file(Path("p.toml"), text.encode())
        for name, table in tables.items():
            profile_of(source, name, table)
    except ProfileError:
        return False
    return True


def validates(text: str) -> bool:
    return VALIDATOR.is_valid(tomllib.loads(text))


def test_it_is_a_schema_of_2020_12() -> None:
    Draft202012Validator.check_schema(json_schema())
    json.dumps(json_schema())


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.toml")), ids=lambda path: path.name)
def test_shipped_profiles_validate(path: Path) -> None:
    VALIDATOR.validate(tomllib.loads(path.read_text()))


def properties(*keys: str) -> dict[str, Any]:
    found = json_schema()["$defs"]["profile"]["properties"]
    for key in keys:
        found = found[key]["properties"]
    return dict(found)


def test_it_has_each_key_of_the_loader_and_no_other() -> None:
    assert properties().keys() == loader._PROFILE.keys()
    for key, inner in loader._INNER.items():
        assert properties(key).keys() == inner.keys(), key
    assert json_schema()["$defs"]["entry"]["properties"].keys() == loader._ENTRY.keys()


def test_each_key_is_described_and_the_page_on_profiles_has_it() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text()
    for section in ((), *((key,) for key in loader._INNER)):
        for key, inner in properties(*section).items():
            assert inner.get("description"), key
            full = ".".join((*section, key))
            known = f"`{full}`" in page or f"`{key}`" in page or (full == key and f"`{key}." in page)
            assert known, f"docs/profiles.md says nothing of {full}"


BODIES = [
    ('max_risk = "local_write"', True),
    ('max_risk = "unknown"', False),
    ('max_risk = "lots"', False),
    ("max_risc = 1", False),
    ('allowlist = ["make", { command = "x", cwd = "a", effects = ["install"] }]', True),
    ('allowlist = [{ cwd = "a" }]', False),
    ('allowlist = [{ command = "x", effects = ["persistence"] }]', False),
    ('allowlist = [{ command = "x", sha256 = "12" }]', False),
    ("allowlist = [3]", False),
    ('permits = ["ls"]\ndenies = ["make"]', True),
    ("permits = [1]", False),
    ('effects = { add = ["unknown"], remove = ["install"] }', True),
    ('effects.add = ["blocked"]', False),
    ('effects.remove = ["safe"]', False),
    ('land.allow = ["contents.package-script"]', True),
    ('land.allow = ["contents.package-scripts"]', False),
    ('env = { pass = ["LANG"], set = { A = "x" } }', True),
    ('env.pass = ["A*"]', False),
    ("env.set = { A = 1 }", False),
    ('env.set = { "A B" = "x" }', False),
    ('tools.disabled = ["shell"]', True),
    ('tools.disabled = ["shel"]', False),
    ('requires = ["network"]', True),
    ('requires = ["net"]', False),
    ('sandbox = { memory = "1.5GiB", time = "1h30m", cpus = 0.5, pids = 1, output = 3, image = "a/b:1" }', True),
    ('sandbox.memory = "lots"', False),
    ("sandbox.memory = 0", False),
    ('sandbox.time = "30 m"', False),
    ("sandbox.time = 0", False),
    ("sandbox.cpus = 0", False),
    ("sandbox.pids = 0", False),
    ("sandbox.pids = true", False),
    ('sandbox.engine = "dockr"', False),
    ('sandbox.workspace = "overlaid"', False),
    ('sandbox.image = "--privileged"', False),
    ('sandbox.read_only = ["opt"]', False),
    ('sandbox.show = ["/etc/x"]', False),
    ('delegate = { profiles = ["a"], depth = 0, time = "1h", memory = "1G" }', True),
    ('approvals = { ask = true, timeout = "2m", approver = "client" }', True),
    ("approvals.timeout = 0", False),
    ('approvals.approver = "anybody"', False),
    ("approvals.ask = 1", False),
    ("delegate.depth = -1", False),
    ('delegate.profiles = ["A"]', False),
]


@pytest.mark.parametrize(("body", "good"), BODIES)
def test_it_and_the_loader_agree(body: str, good: bool) -> None:
    text = f"[profiles.p]\n{body}\n"
    assert (loads(text), validates(text)) == (good, good)


@pytest.mark.parametrize("text", ["x = 1\n", "[profiles]\n", "[profiles.X]\n", "profiles.p = 1\n"])
def test_it_and_the_loader_agree_on_the_file_as_a_whole(text: str) -> None:
    assert (loads(text), validates(text)) == (False, False)
