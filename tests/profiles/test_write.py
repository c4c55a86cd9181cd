"""New files are never written over others, and changed ones are whole or not changed at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.decide.profile import Profile
from broker.errors import UsageError
from broker.profiles.check import check_file
from broker.profiles.detect import Suggestion
from broker.profiles.finding import Severity
from broker.profiles.load import load_any, rules_for
from broker.profiles.write import BY_HAND, create, literal, new_profile, replace_file


def test_a_new_profile_can_be_loaded_and_is_not_remarked_upon(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    text = new_profile(
        "team", description='says "x"\x1b', max_risk="local_write",
        entries=[("npm test", "package.json"), ("make x", BY_HAND)],
        left_out=[Suggestion(command="npm ci", origin="ci\x1b[2J.yml", why_not="it is install")],
    )  # fmt: skip
    assert "\x1b" not in text
    path = tmp_path / "team.toml"
    create(path, text)
    (checked,) = check_file(path, rules_for(None))
    assert checked.findings == ()
    profile = load_any(str(path))
    assert [entry.text for entry in profile.allowlist] == ["npm test", "make x"]
    assert '#   "npm ci"  # ci\\x1b[2J.yml: it is install' in text


def test_what_is_listed_by_hand_does_not_contradict_the_examples(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "p.toml"
    create(path, new_profile("p", description="d", max_risk="local_write", entries=[("git push origin main", BY_HAND)]))
    (checked,) = check_file(path, rules_for(None))
    assert checked.worst is not Severity.ERROR


@pytest.mark.parametrize("text", ["", 'a"b', "a\\b", "\x1b", "é", "\u202e", "😀", "\n"])
def test_a_literal_says_what_it_was_made_of(text: str) -> None:
    import tomllib

    made = literal(text)
    assert tomllib.loads(f"x = {made}")["x"] == text
    assert made.isprintable()


def test_a_new_file_is_private_to_write_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        create(tmp_path / "a.toml", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.toml").stat().st_mode) == 0o644


def test_a_new_file_is_never_written_over_another_or_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("mine")
    (tmp_path / "link.toml").symlink_to(tmp_path / "elsewhere")
    for name in ("a.toml", "link.toml"):
        with pytest.raises(UsageError, match="exists, and is not overwritten"):
            create(tmp_path / name, "x")
    assert (tmp_path / "a.toml").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_a_changed_file_keeps_its_rights_and_a_link_stays_one(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_bytes(b"old\r\n")
    real.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to("real.toml")
    replace_file(link, "new\r\n")
    assert link.is_symlink()
    assert real.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.toml", "real.toml"]


def test_a_file_that_cannot_be_changed_is_a_sentence_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.toml"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        replace_file(path, "new")
    assert [each.name for each in tmp_path.iterdir()] == ["a.toml"]
    assert path.read_text() == "old"


def test_a_path_may_name_one_of_several_profiles(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "p.toml"
    path.write_text('[profiles.a]\n[profiles.b]\nmax_risk = "local_write"\n')
    path.chmod(0o644)
    assert isinstance(load_any(f"{path}:b"), Profile)
    with pytest.raises(Exception, match=r"it holds a, b\. Say which"):
        load_any(str(path))
    with pytest.raises(Exception, match="there is no profile 'c'"):
        load_any(f"{path}:c")
