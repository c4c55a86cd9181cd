"""Entries are added to a file and nothing else of it changes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.decide.profile import Profile
from broker.errors import UsageError
from broker.profiles.load import profile_of
from broker.profiles.patch import unified, with_entries
from broker.profiles.schema import Source, decode_file

Load = Callable[..., tuple[Profile, Source]]

HEAD = '# mine\n[profiles.p]  # the profile\nmax_risk = "local_write"\n'
FILES = [
    HEAD,
    HEAD.rstrip("\n"),
    HEAD + "allowlist = []\n",
    HEAD + 'allowlist = ["make"]  # short\n',
    HEAD + 'allowlist = [\n    "make",  # one\n    # end\n]\nrequires = []\n',
    HEAD + 'allowlist = [\n  "make",\n  { command = "x, y", cwd = "a" }  # no comma, "]" here\n]\n[profiles.p.sandbox]\npids = 3\n',
    HEAD + 'allowlist = [\n]\n[profiles.q]\nallowlist = ["ls"]\n',
    HEAD + 'allowlist = ["' + '", "'.join(f"make target-{number}" for number in range(6)) + '"]\n',
    HEAD.replace("\n", "\r\n") + 'allowlist = [\r\n    "make"\r\n]\r\n',
    '[profiles.q]\n[profiles.p.sandbox]\npids = 3\n[profiles.p]\ndescription = "é"\n',
]
JSON_FILES = [
    '{"profiles": {"p": {}}}',
    '{"profiles": {"p": {"max_risk": "safe"}}}\n',
    '{"profiles": {"p": {"allowlist": ["make"]}}}',
    '{"profiles": {"p": {"allowlist": [\n  "make",\n  {"command": "x"}\n]}}}',
]


def added(text: str, suffix: str, *commands: tuple[str, ...]) -> str:
    source, tables = decode_file(Path(f"p{suffix}"), text.encode())
    return with_entries(source, profile_of(source, "p", tables["p"]), commands)


@pytest.mark.parametrize("text", FILES)
@pytest.mark.parametrize("commands", [(("npm", "test"),), (("npm", "test"), ("echo", "a b", 'q"\\', "é", "$x"))])
def test_the_entries_are_there_and_each_old_line_still_is(text: str, commands: tuple[tuple[str, ...], ...]) -> None:
    changed = added(text, ".toml", *commands)
    source, tables = decode_file(Path("p.toml"), changed.encode())
    old_source, old = decode_file(Path("p.toml"), text.encode())
    before = [entry.argv for entry in profile_of(old_source, "p", old["p"]).allowlist]
    assert [entry.argv for entry in profile_of(source, "p", tables["p"]).allowlist] == [*before, *commands]
    for comment in ("# mine", "# the profile", "# one", "# end", "# no comma", "# short"):
        assert (comment in changed) is (comment in text)
    assert ("\r\n" in text) is ("\r\n" in changed) and changed.count("\r\n") in {0, changed.count("\n")}


@pytest.mark.parametrize("text", JSON_FILES)
def test_json_is_changed_as_well(text: str) -> None:
    changed = json.loads(added(text, ".json", ("npm", "test"), ("make", "x y")))
    assert changed["profiles"]["p"]["allowlist"][-2:] == ["npm test", "make 'x y'"]


@pytest.mark.parametrize("text", ['profiles = { p = { max_risk = "safe" } }\n', '[[profiles.p.allowlist]]\ncommand = "x"\n'])
def test_a_form_that_is_not_understood_is_left_alone_with_the_lines_to_add(text: str) -> None:
    with pytest.raises(UsageError, match=r'cannot be changed by machine .* Add to the allowlist of p: "npm test"'):
        added(text, ".toml", ("npm", "test"))


def test_a_list_within_a_line_is_changed_there() -> None:
    text = "profiles.p = { allowlist = [], requires = [] }  # short\n"
    assert added(text, ".toml", ("npm", "test")) == text.replace("allowlist = []", 'allowlist = ["npm test"]')


def test_an_entry_that_the_profiles_examples_forbid_is_not_added() -> None:
    with pytest.raises(UsageError, match="denies says `npm test`"):
        added(HEAD + 'denies = ["npm test"]\n', ".toml", ("npm", "test"))


words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FILES), st.lists(st.lists(words, max_size=3), min_size=1, max_size=3))
def test_whatever_the_words_are_the_profile_has_them_or_the_file_is_not_changed(text: str, rest: list[list[str]]) -> None:
    commands = [("make", *each) for each in rest]
    try:
        changed = added(text, ".toml", *commands)
    except UsageError:
        return
    source, tables = decode_file(Path("p.toml"), changed.encode())
    entries = profile_of(source, "p", tables["p"]).allowlist
    assert [entry.argv for entry in entries[-len(commands) :]] == commands


@pytest.mark.parametrize("text", FILES)
def test_git_apply_takes_the_patch(tmp_path: Path, text: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "p.toml"
    path.write_bytes(text.encode())
    changed = added(text, ".toml", ("npm", "test"))
    patch = unified(text, changed, "sub/p.toml")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    assert path.read_bytes() == changed.encode()
