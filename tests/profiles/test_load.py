"""Where profiles are found, what hides what, and what stops the search."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.classify.risk import Risk
from broker.decide.profile import Profile
from broker.profiles import BrokenProfile, list_profiles, load, load_profile
from broker.profiles.check import findings
from broker.profiles.errors import (
    ProfileDuplicate,
    ProfileInvalid,
    ProfileInWorkspace,
    ProfileNameInvalid,
    ProfileNotFound,
    ProfileUnreadable,
    ProfileWritableByOthers,
)

SHIPPED = ("adversary", "builder", "default", "research")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own places to search, and none of this machine's."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(load, "SYSTEM_FOLDER", tmp_path / "etc")
    return tmp_path


def put(folder: Path, name: str, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(content)
    for each in (path, folder, folder.parent):
        each.chmod(0o644 if each is path else 0o755)
    return path


def profile_file(name: str, description: str) -> str:
    return f'[profiles.{name}]\ndescription = "{description}"\n'


def test_earlier_folders_hide_later_ones(home: Path) -> None:
    assert load_profile("default").source == str(load.shipped_folder() / "default.toml")
    put(home / "config" / "broker" / "profiles", "p.toml", profile_file("default", "the user's"))
    assert load_profile("default").description == "the user's"
    put(home / "etc", "p.toml", profile_file("default", "the system's"))
    assert load_profile("default").description == "the system's"
    put(home / "given", "p.toml", profile_file("default", "given"))
    assert load_profile("default", profile_dirs=[home / "given"]).description == "given"


def test_profile_dirs_are_searched_in_the_order_given(home: Path) -> None:
    for name in ("one", "two"):
        put(home / name, "p.toml", profile_file("x", name))
    assert load_profile("x", profile_dirs=[home / "one", home / "two"]).description == "one"
    assert load_profile("x", profile_dirs=[home / "two", home / "one"]).description == "two"


def test_a_relative_profile_dir_is_taken_from_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "mine", "p.json", '{"profiles": {"x": {}}}')
    monkeypatch.chdir(home)
    assert load_profile("x", profile_dirs=["mine"]).source == str(home / "mine" / "p.json")


def test_a_relative_xdg_config_home_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(home / "me"))
    assert load.user_folder() == home / "me" / ".config" / "broker" / "profiles"


def test_a_name_that_nobody_knows_is_answered_with_what_there_is() -> None:
    with pytest.raises(ProfileNotFound, match="Did you mean builder") as refusal:
        load_profile("bulider")
    assert refusal.value.known == SHIPPED
    assert refusal.value.exit_code == 65


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "", ".", "..", "A", "a/b", "a\n", "-x", "a b", "é"]
)
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(ProfileNameInvalid):
        load_profile(name)


def test_one_name_in_two_files_of_one_folder_is_an_error_that_names_both(home: Path) -> None:
    first = put(home / "d", "a.toml", profile_file("x", "a"))
    second = put(home / "d", "b.json", '{"profiles": {"x": {}, "y": {}}}')
    with pytest.raises(ProfileDuplicate) as refusal:
        load_profile("x", profile_dirs=[home / "d"])
    assert str(first) in str(refusal.value) and str(second) in str(refusal.value)


def test_a_profile_dir_that_is_not_there_is_an_error_and_the_usual_places_need_not_exist(home: Path) -> None:
    with pytest.raises(ProfileUnreadable, match="no such folder"):
        load_profile("default", profile_dirs=[home / "none"])
    assert load_profile("default").name == "default"


def test_a_broken_file_stops_the_search_because_nobody_knows_what_it_was_to_hide(home: Path) -> None:
    put(home / "etc", "broken.toml", "[profiles.builder\n")
    with pytest.raises(ProfileInvalid, match="not TOML"):
        load_profile("builder")


def test_a_broken_file_behind_the_one_that_is_found_does_not_matter(home: Path) -> None:
    put(home / "config" / "broker" / "profiles", "broken.toml", "[")
    put(home / "etc", "good.toml", profile_file("builder", "the system's"))
    assert load_profile("builder").description == "the system's"


def test_a_broken_profile_does_not_stop_another_of_the_same_file(home: Path) -> None:
    put(home / "d", "p.toml", profile_file("good", "g") + "[profiles.bad]\nx = 1\n")
    assert load_profile("good", profile_dirs=[home / "d"]).name == "good"
    with pytest.raises(ProfileInvalid, match="unknown key 'x'"):
        load_profile("bad", profile_dirs=[home / "d"])


def test_a_broken_profile_is_not_replaced_by_a_later_one_of_its_name(home: Path) -> None:
    put(home / "etc", "p.toml", "[profiles.builder]\nmax_risk = 'saf'\n")
    with pytest.raises(ProfileInvalid, match="Did you mean 'safe'"):
        load_profile("builder")


def test_other_files_of_the_folder_are_left_alone(home: Path) -> None:
    put(home / "d", "README.md", "x")
    put(home / "d", "p.toml~", "[")
    put(home / "d", ".p.toml", "[")
    put(home / "d", "p.toml", profile_file("x", "x"))
    assert load_profile("x", profile_dirs=[home / "d"]).name == "x"


def test_a_folder_of_profiles_in_the_workspace_is_refused(home: Path) -> None:
    put(home / "w" / "profiles", "p.toml", profile_file("x", "x"))
    with pytest.raises(ProfileInWorkspace, match="mkdir -p"):
        load_profile("x", profile_dirs=[home / "w" / "profiles"], workspace=home / "w")
    with pytest.raises(ProfileInWorkspace):
        load_profile("x", profile_dirs=[home / "w" / "profiles"], workspace=home)


def test_the_users_own_profiles_are_refused_too_where_the_home_is_the_workspace(home: Path) -> None:
    put(home / "config" / "broker" / "profiles", "p.toml", profile_file("x", "x"))
    with pytest.raises(ProfileInWorkspace) as refusal:
        load_profile("default", workspace=home)
    assert "cp " not in str(refusal.value)  # nothing is gained by a copy onto itself
    assert "Give the task another folder" in str(refusal.value)


def test_a_home_as_workspace_is_what_is_wrong_where_another_folder_for_profiles_lies_outside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's profiles may move to /etc: a workspace that is a home stays the mistake all the same."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    refusal = ProfileInWorkspace(tmp_path / "home" / ".config", tmp_path / "home", tmp_path / "etc")

    assert "Give the task another folder" in str(refusal)


def test_shipped_profiles_are_refused_where_the_broker_itself_is_the_workspace() -> None:
    with pytest.raises(ProfileInWorkspace, match="another folder.* --workspace DIR"):
        load_profile("default", workspace=load.shipped_folder().parent)


def test_a_file_that_others_can_write_stops_the_search(home: Path) -> None:
    put(home / "etc", "p.toml", profile_file("other", "x")).chmod(0o666)
    with pytest.raises(ProfileWritableByOthers):
        load_profile("builder")


def test_listing_shows_what_each_name_leads_to_and_everything_broken(home: Path) -> None:
    put(home / "etc", "a.toml", profile_file("builder", "mine") + "[profiles.bad]\nx = 1\n")
    put(home / "etc", "b.toml", "[")
    put(home / "config" / "broker" / "profiles", "c.toml", profile_file("builder", "hidden"))
    put(home / "open", "d.toml", profile_file("y", "y")).parent.chmod(0o777)
    found = list_profiles(profile_dirs=[home / "open"])
    good = {each.name: each for each in found if isinstance(each, Profile)}
    broken = [(each.name, type(each.error)) for each in found if isinstance(each, BrokenProfile)]
    assert sorted(good) == sorted(SHIPPED)
    assert good["builder"].description == "mine"
    assert broken == [("bad", ProfileInvalid), ("", ProfileWritableByOthers), ("", ProfileInvalid)]


def test_listing_shows_a_duplicate_as_broken(home: Path) -> None:
    put(home / "etc", "a.toml", profile_file("x", "a"))
    put(home / "etc", "b.toml", profile_file("x", "b"))
    (twice,) = [each for each in list_profiles() if each.name == "x"]
    assert isinstance(twice, BrokenProfile)
    assert isinstance(twice.error, ProfileDuplicate)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_load_and_leave_a_careful_reader_nothing_to_remark(name: str) -> None:
    profile = load_profile(name)
    assert profile.description
    assert findings(profile) == ()
    assert not profile.effects & {Risk.UNKNOWN, Risk.BLOCKED, Risk.CODE_EXECUTION}


def test_shipped_profiles_that_must_not_write_have_a_workspace_that_cannot_be_written() -> None:
    for name in ("research", "adversary"):
        profile = load_profile(name)
        assert profile.sandbox.workspace == "read-only"
        assert profile.effects == {Risk.SAFE}
