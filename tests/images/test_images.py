"""Images: recipes named by content, and a real engine that has them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.enforce import debian_root, docker_api, images
from broker.errors import HostCannotEnforce, UsageError


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped recipes that a test may change."""
    assert images.RECIPES is not None
    copy = tmp_path / "recipes"
    shutil.copytree(images.RECIPES, copy)
    monkeypatch.setattr(images, "RECIPES", copy)
    return copy


def test_the_shipped_images_are_these() -> None:
    assert images.shipped() == ("base", "compat", "go", "node", "python")


def test_everything_builds_on_base_and_base_on_debian() -> None:
    assert images.recipe("base").parent is None
    assert {images.recipe(name).parent for name in images.shipped() if name != "base"} == {"base"}


def test_a_tag_changes_with_the_recipe_and_with_what_it_builds_on(recipes: Path) -> None:
    before = {name: images.recipe(name).tag for name in images.shipped()}
    with (recipes / "python" / "Dockerfile").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    after = {name: images.recipe(name).tag for name in images.shipped()}
    assert {name for name in before if before[name] != after[name]} == {"python"}

    (recipes / "base" / "extra").touch()
    changed = {name for name in after if images.recipe(name).tag != after[name]}
    assert changed == set(images.shipped())


def test_an_unknown_image_is_a_usage_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no image 'pyhton'.*base.*python"):
        images.recipe("pyhton")


@pytest.mark.needs_docker
def test_an_image_whose_recipe_changed_is_not_taken_for_it(recipes: Path) -> None:
    assert images.image_for("base") == images.recipe("base").tag
    (recipes / "base" / "extra").touch()
    assert images.image_for("base") is None
    assert "broker image build base" in images.missing("base")
    (state,) = (state for state in images.states() if state.name == "base")
    assert (state.built, state.outdated) == (False, True)


@pytest.mark.needs_docker
def test_building_what_is_there_says_nothing_and_returns_its_tag() -> None:
    said: list[str] = []
    assert images.build("base", said.append) == images.recipe("base").tag
    assert said == []


@pytest.mark.needs_docker
def test_an_operators_own_image_is_taken_as_named_and_never_fetched() -> None:
    client = docker_api.connect(docker_api.engine_address())
    client.tag(images.recipe("base").tag, "broker-test/own", "v1")
    try:
        assert images.image_for("broker-test/own:v1") == "broker-test/own:v1"
    finally:
        client.remove_image("broker-test/own:v1")
    assert images.image_for("broker-test/own:v1") is None
    assert "docker pull broker-test/own:v1" in images.missing("broker-test/own:v1")


@pytest.mark.needs_docker
def test_a_recipe_builds_on_its_parent_and_a_failing_one_says_what_went_wrong(recipes: Path) -> None:
    small = recipes / "small"
    small.mkdir()
    (small / "Dockerfile").write_text(
        "ARG BASE=broker/base\nFROM ${BASE}\nRUN echo made > /made\n", encoding="ascii"
    )
    client = docker_api.connect(docker_api.engine_address())
    said: list[str] = []
    tag = images.build("small", said.append)
    try:
        facts = client.inspect_image(tag)
        assert facts["Config"]["Labels"]["broker.image"] == "small"
        assert any("Step" in line for line in said)
    finally:
        client.remove_image(tag)
        client.remove_image("broker/small:latest")

    (small / "Dockerfile").write_text(
        "ARG BASE=broker/base\nFROM ${BASE}\nRUN echo no && exit 7\n", encoding="ascii"
    )
    with pytest.raises(images.ImageBuildFailed, match="returned a non-zero code: 7") as failure:
        images.build("small", said.append)
    assert "no" in failure.value.lines
    assert images.image_for("small") is None


def test_a_root_is_planned_from_apts_own_sources() -> None:
    sources = debian_root.apt_sources()
    if not any(source.suite == "bookworm" and source.component == "main" for source in sources):
        pytest.skip("apt here has no mirror of Debian bookworm")
    root = debian_root.DebianRoot.plan("bookworm")
    assert root.mirror in {source.uri for source in sources}
    assert all(source.component == "main" and source.suite.startswith("bookworm") for source in root.sources)


def test_a_suite_that_apt_does_not_know_is_told_with_the_remedy() -> None:
    with pytest.raises(HostCannotEnforce, match="no mirror of Debian potato"):
        debian_root.DebianRoot.plan("potato")


def test_only_root_can_make_a_root_and_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    root = debian_root.DebianRoot(suite="bookworm", mirror="http://mirror.invalid/debian", sources=())
    with pytest.raises(HostCannotEnforce, match="only root"), root.made(lambda line: None):
        pass
