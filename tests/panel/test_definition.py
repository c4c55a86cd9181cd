"""A panel's file: what it may say, who may have written it, and what is said of what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker.decide.trust import Trust
from broker.errors import ProfileError
from broker.panel.definition import load_panel

JUDGE = {"profile": "adversary", "command": "/opt/judge --strict 'two words'"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir(mode=0o755)
    (tmp_path / "panels").mkdir(mode=0o755)
    return tmp_path


def write(folder: Path, table: dict[str, Any], name: str = "panels.json") -> Path:
    path = folder / "panels" / name
    path.write_text(json.dumps(table))
    path.chmod(0o644)
    return path


def load(folder: Path, word: str = "review") -> Any:
    return load_panel(word, profile_dirs=[folder / "profiles"])


def panel(*judges: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"panels": {"review": {"judges": list(judges or (JUDGE,)), **keys}}}


def test_a_panel_lies_beside_the_profiles(folder: Path) -> None:
    write(folder, panel({**JUDGE, "name": "one"}, {**JUDGE, "name": "two", "trust": "untrusted"}, time="5m"))

    found = load(folder)

    assert [judge.name for judge in found.judges] == ["one", "two"]
    assert found.judges[0].argv == ("/opt/judge", "--strict", "two words")
    assert found.judges[1].trust is Trust.UNTRUSTED
    assert (found.quorum, found.time) == (2, 300.0)


def test_toml_is_read_as_well_and_a_path_names_a_file(folder: Path) -> None:
    path = folder / "panels" / "p.toml"
    path.write_text('[panels.review]\nquorum = 1\n[[panels.review.judges]]\nprofile = "adversary"\ncommand = "j"\n[panels.other]\njudges = []\n')
    path.chmod(0o644)

    assert load_panel(f"{path}:review").quorum == 1
    with pytest.raises(ProfileError, match=r"it holds other, review. Say which"):
        load_panel(str(path))


def test_a_prompt_is_a_file_beside_the_panels(folder: Path) -> None:
    (folder / "panels" / "attack.md").write_text("Attack it.\n")
    (folder / "panels" / "attack.md").chmod(0o644)
    write(folder, panel({**JUDGE, "prompt": "attack.md"}))

    assert load(folder).judges[0].prompt == "Attack it.\n"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (panel(), None),
        ({}, "table 'panels'"),
        ({"panels": {"review": {"judges": [JUDGE]}}, "profiles": {}}, "and nothing else"),
        (panel(judges=[]), "one to 16"),
        (panel(quorum=2), "how many of the 1"),
        (panel(quorum=0), "how many of the 1"),
        (panel(quorum=True), "how many of the 1"),
        (panel(quorom="all"), "Did you mean 'quorum'"),
        (panel(time="soon"), "is not a time"),
        (panel(time=[]), "write seconds"),
        (panel(JUDGE, JUDGE), "two have one name"),
        (panel(JUDGE, at_once=0), "at_once"),
        (panel(JUDGE, at_once=True), "at_once"),
        (panel(JUDGE, at_once=17), "from 1 to 16"),
        (panel({**JUDGE, "command": "'"}), "command"),
        (panel({**JUDGE, "command": ["a"]}), "write a text"),
        (panel({"command": "a"}), "profile is missing"),
        (panel({**JUDGE, "profile": "adverserial"}), "there is no profile"),
        (panel({**JUDGE, "trust": "total"}), "trusted or untrusted"),
        (panel({**JUDGE, "prompt": "none.md"}), "there is no file"),
        (panel({**JUDGE, "network": "on"}), "unknown key 'network'"),
    ],
)
def test_what_is_wrong_with_a_panel_is_said(folder: Path, table: dict[str, Any], said: str | None) -> None:
    write(folder, table)
    if said is None:
        load(folder)
        return
    with pytest.raises(ProfileError) as caught:
        load(folder)
    assert said in str(caught.value)


def test_a_panel_that_others_could_have_written_is_none(folder: Path) -> None:
    write(folder, panel()).chmod(0o666)

    with pytest.raises(ProfileError, match="writable by group or others"):
        load(folder)


def test_a_panel_in_the_workspace_is_none(folder: Path) -> None:
    path = write(folder, panel())

    with pytest.raises(ProfileError, match="reached through the workspace"):
        load_panel(str(path), workspace=folder)


def test_a_judge_that_reaches_hosts_is_refused(folder: Path) -> None:
    profile = folder / "profiles" / "open.json"
    profile.write_text(json.dumps({"profiles": {"open": {"max_risk": "network_egress", "network": {"hosts": ["example.com:443"]}}}}))
    profile.chmod(0o644)
    write(folder, panel({**JUDGE, "profile": "open"}))

    with pytest.raises(ProfileError, match="no way out but its gateways"):
        load(folder)


def test_a_name_that_nobody_defined_says_what_there_is(folder: Path) -> None:
    write(folder, panel())

    with pytest.raises(ProfileError, match=r"no panel 'reviw'. Did you mean review\?"):
        load(folder, "reviw")


def test_one_name_in_two_files_is_nobodys(folder: Path) -> None:
    write(folder, panel())
    write(folder, panel(), "z.json")

    with pytest.raises(ProfileError, match="is defined in"):
        load(folder)


def test_the_digest_is_of_what_the_panel_means(folder: Path) -> None:
    write(folder, panel(quorum="all"))
    before = load(folder).digest
    write(folder, panel(quorum=1, description="another text"))
    assert load(folder).digest == before
    write(folder, panel({**JUDGE, "command": "/opt/other"}))
    assert load(folder).digest != before
    assert os.fspath(folder) in load(folder).source
