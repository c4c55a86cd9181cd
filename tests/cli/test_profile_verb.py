"""`broker profile`, as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def put(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    path.chmod(0o644)
    return path


def profile(*words: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker", "profile", *words],
        env={**os.environ, "XDG_CONFIG_HOME": str(home / "none"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_list_shows_names_ceilings_and_descriptions_in_columns(folder: Path) -> None:
    put(folder, "x.toml", '[profiles.a-long-name]\nmax_risk = "install"\ndescription = "says\\u001b[2J"\n')
    put(folder, "y.toml", "[")
    result = profile("list", "--profile-dir", folder, home=folder)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert "a-long-name  install      says\\x1b[2J" in lines
    assert (
        "builder      local_write  Edit files in the workspace, and run the listed build and test commands"
        in lines
    )
    assert any(line.startswith("(file)  cannot be used: ") and "y.toml" in line for line in lines)


def test_show_says_in_words_what_is_permitted(folder: Path) -> None:
    result = profile("show", "builder", home=folder)
    assert result.returncode == 0
    shown = result.stdout
    assert shown.index("\npermits\n") < shown.index("\nruns exactly\n") < shown.index("\nalways refuses\n")
    assert "  go test ./...\n" in shown
    assert "\x1b" not in shown


def test_show_as_json_holds_the_whole_profile(folder: Path) -> None:
    shown = json.loads(profile("show", "builder", "--json", home=folder).stdout)
    assert shown["name"] == "builder"
    assert shown["effects"] == ["safe", "local_write"]
    assert ["go", "test", "./..."] in [entry["argv"] for entry in shown["allowlist"]]
    assert len(shown["digest"]) == 64


def test_show_of_an_unknown_name_fails_with_65_and_a_suggestion(folder: Path) -> None:
    result = profile("show", "bilder", home=folder)
    assert (result.returncode, result.stdout) == (65, "")
    assert "Did you mean builder?" in result.stderr


def test_check_finds_errors_and_remarks_and_ends_with_65_only_for_errors(folder: Path) -> None:
    good = put(
        folder,
        "good.toml",
        '[profiles.g]\nmax_risk = "code_execution"\nallowlist = ["make", "make", "bash"]\n'
        'denylist = ["git push"]\nenv.pass = ["API_TOKEN", "PYTHONPATH"]\nrequires = []\n',
    )
    bad = put(folder, "bad.toml", "[profiles.b]\nmax_risc = 1\n")
    result = profile("check", "--programs=no", good, home=folder)
    assert result.returncode == 0
    for said in [
        "allowlist narrows nothing",
        "`make` stands there twice",
        "`bash` is a shell that runs whatever it reads",
        "`git -x push` is not covered",
        "hands API_TOKEN to the task",
        "hands in PYTHONPATH",
        "no description",
        "no effect: network, seccomp",
        "memory is not limited",
    ]:
        assert said in result.stdout, said
    result = profile("check", good, bad, folder / "missing.toml", home=folder)
    assert result.returncode == 65
    assert "bad.toml:2:1: error: unknown key 'max_risc'" in result.stdout
    assert "missing.toml: error: there is no such file" in result.stdout


def test_check_as_json_is_one_report(folder: Path) -> None:
    bad = put(folder, "bad.toml", "[profiles.b]\nmax_risc = 1\n[profiles.c]\ndescription = 'c'\n")
    result = profile("check", "--json", bad, home=folder)
    report = json.loads(result.stdout)
    assert result.returncode == 65
    assert [each["name"] for each in report] == ["b", "c"]
    assert "max_risk" in report[0]["error"]
    assert report[1]["error"] is None


def test_shipped_profiles_check_clean(folder: Path) -> None:
    shipped = sorted((Path(__file__).parents[2] / "profiles").glob("*.toml"))
    assert len(shipped) == 4
    for each in shipped:  # in a place of our own: a source tree may be anybody's
        put(folder, each.name, each.read_text())
    result = profile("check", "--programs=no", *sorted(folder.glob("*.toml")), home=folder)
    assert (result.returncode, result.stdout.count("note")) == (0, 0)
