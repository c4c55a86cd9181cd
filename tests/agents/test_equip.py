"""What `--agent` makes of a profile: found programs, gateways, homes; and each thing that is missing is one clear sentence."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from broker.agents.adapter import AdapterError, load_adapter
from broker.agents.equip import Equipped, equip
from broker.agents.program import find
from broker.decide.gateway import Gateway
from broker.decide.profile import Profile
from broker.errors import UsageError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace beside an installation of `claude` as npm makes it, on PATH, and a key."""
    package = tmp_path / "prefix" / "lib" / "node_modules" / "@anthropic-ai" / "claude-code"
    package.mkdir(parents=True)
    (package / "cli.js").write_text("#!/usr/bin/env node\n")
    (package / "cli.js").chmod(0o755)
    (tmp_path / "prefix" / "bin").mkdir()
    (tmp_path / "prefix" / "bin" / "claude").symlink_to(package / "cli.js")
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/prefix/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-the-real-one")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def ready(place: Path, profile: Profile | None = None, **more: str) -> Equipped:
    return equip(profile or Profile(name="t"), load_adapter("claude"), ("-p", "x"), workspace=str(place / "work"), **more)


def test_the_package_is_shown_and_the_key_stays_outside(place: Path) -> None:
    found = ready(place)
    modules = str(place / "prefix" / "lib" / "node_modules")
    assert found.argv[0] == f"{modules}/@anthropic-ai/claude-code/cli.js"
    assert found.argv[-2:] == ("-p", "x")
    assert "--dangerously-skip-permissions" in found.argv
    assert modules in found.profile.sandbox.read_only
    assert found.engine == "bubblewrap"
    assert "sk-the-real-one" not in str(found)
    assert dict(found.profile.env.set)["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:47100"
    gateway = found.profile.gateways[0]
    assert (gateway.scheme, gateway.host, gateway.port) == ("https", "api.anthropic.com", 443)
    assert gateway.headers[0][1].source == ("ANTHROPIC_API_KEY",)


def test_the_profiles_own_gateway_is_used_and_needs_no_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    other = Gateway(name="other", scheme="https", host="x.example", port=443)
    own = Gateway(name="anthropic", scheme="http", host="127.0.0.1", port=8080, inside=47101)
    found = ready(place, Profile(name="t", gateways=(other, own)))
    assert found.profile.gateways == (other, own)
    assert dict(found.profile.env.set)["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:47101"


def test_what_the_profile_sets_is_not_overwritten(place: Path) -> None:
    profile = Profile(name="t")
    profile = replace(profile, env=replace(profile.env, set=(("IS_SANDBOX", "0"),)))
    assert dict(ready(place, profile).profile.env.set)["IS_SANDBOX"] == "0"


def test_a_missing_key_is_one_sentence_with_both_remedies(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(UsageError, match=r"ANTHROPIC_API_KEY is not set.*profiles\.t\.gateways\.anthropic"):
        ready(place)


def test_a_missing_agent_is_one_sentence_with_the_line_that_installs_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(UsageError, match="npm install -g @anthropic-ai/claude-code"):
        ready(place)


def test_in_docker_the_agent_is_the_images_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = ready(place, engine="docker")
    assert found.argv[0] == "claude"
    assert found.engine == "docker"
    assert found.profile.sandbox.read_only == ()


def test_a_home_is_made_for_whoever_owns_the_workspace(place: Path) -> None:
    found = ready(place, home=str(place / "home"))
    assert found.profile.agent is not None
    assert found.profile.agent.home == str(place / "home")
    assert os.stat(place / "home").st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("home", "why"), [("work", "the workspace"), ("work/inside", "lies in the workspace"), (".", "around it"), ("operator", "your own home"), ("ssh", r"\.ssh"), ("open", "writable by others")]
)
def test_a_home_that_would_show_or_spread_too_much_is_refused(home: str, why: str, place: Path) -> None:
    (place / "operator").mkdir()
    (place / "ssh" / ".ssh").mkdir(parents=True)
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    with pytest.raises(UsageError, match=why):
        ready(place, home=str(place / home))


def test_a_link_to_the_own_home_is_seen_through(place: Path) -> None:
    (place / "operator").mkdir()
    (place / "link").symlink_to(place / "operator")
    with pytest.raises(UsageError, match="your own home"):
        ready(place, home=str(place / "link"))


def test_an_agent_of_a_virtual_environment_brings_its_python(tmp_path: Path) -> None:
    root = tmp_path / "venv"
    (root / "bin").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /somewhere/bin\n")
    (root / "bin" / "mini").write_text(f"#!{root}/bin/python\n")
    (root / "bin" / "mini").chmod(0o755)
    (tmp_path / "python" / "bin").mkdir(parents=True)
    (tmp_path / "python" / "bin" / "python3").touch()
    (root / "bin" / "python").symlink_to(tmp_path / "python" / "bin" / "python3")
    found = find("mini", str(root / "bin"))
    assert found is not None
    assert (found.program, found.package) == (f"{root}/bin/mini", str(root))
    assert found.shown == (str(root), str(tmp_path / "python"))


GOOD = 'title = "T"\nprogram = "t"\ninstall = "pip install t"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + "wrapper = []", "unknown key 'wrapper'"),
        ('title = "T"\nprogram = "t"', "install is missing"),
        (GOOD + 'state = "x"', "state must be a list"),
        (GOOD + "state = [1]", "list of texts"),
        (GOOD + 'helpers = [{program = "git"}]', "a helper is"),
        (GOOD + 'helpers = [{program = "git", effects = ["everything"]}]', "everything"),
        (GOOD + 'wrappers = [["bash", "-c", "%word%"]]', "%shell%"),
        (GOOD + '[model]\ngateway = "x"', "model.upstream is missing"),
        (GOOD + 'session = ["*"]', "below the workspace"),
        (GOOD + 'session = ["../x/"]', "below the workspace"),
        (GOOD + 'session = ["/tmp/x"]', "below the workspace"),
        ("title = ", "no TOML"),
    ],
)
def test_an_adapter_that_is_wrong_says_what_is(text: str, problem: str, place: Path) -> None:
    folder = place / "operator" / ".config" / "broker" / "agents"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(text)
    with pytest.raises(AdapterError, match=problem):
        load_adapter("mine")


def test_an_operators_adapter_comes_before_ours_and_an_unknown_name_suggests_one(place: Path) -> None:
    folder = place / "operator" / ".config" / "broker" / "agents"
    folder.mkdir(parents=True)
    (folder / "claude.toml").write_text(GOOD)
    assert load_adapter("claude").title == "T"
    with pytest.raises(AdapterError, match=r"codex.*docs/agents\.md"):
        load_adapter("codxe")


def test_an_adapter_that_others_can_write_is_refused(place: Path) -> None:
    folder = place / "operator" / ".config" / "broker" / "agents"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(GOOD)
    (folder / "mine.toml").chmod(0o666)
    with pytest.raises(Exception, match="writable by group or others"):
        load_adapter("mine")


def test_a_profile_can_name_its_agent(place: Path) -> None:
    from broker.profiles.load import load_profile

    folder = place / "profiles"
    folder.mkdir()
    (folder / "p.toml").write_text('[profiles.mine]\nagent = "claude"\n[profiles.wrong]\nagent = "../x"\n')
    with pytest.raises(Exception, match="no name of an agent"):
        load_profile("wrong", profile_dirs=[folder])
    (folder / "p.toml").write_text('[profiles.mine]\nagent = "claude"\n')
    profile = load_profile("mine", profile_dirs=[folder])
    assert profile.agent is not None
    assert (profile.agent.name, profile.agent.helpers, profile.agent.programs) == ("claude", (), ())
    assert profile.digest != Profile(name="mine").digest


def test_only_a_home_that_is_made_is_seeded(place: Path) -> None:
    ready(place, home=str(place / "new"))
    assert str(place / "work") in (place / "new" / ".claude.json").read_text()
    (place / "old").mkdir(mode=0o700)
    (place / "old" / ".claude.json").symlink_to(place / "operator")  # as a task could have left it
    ready(place, home=str(place / "old"))
    assert not (place / "operator").exists()
