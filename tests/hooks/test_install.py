"""What `broker install` writes into an agent's settings, and that `broker uninstall` leaves no trace of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hooked_host import Host
from hypothesis import given
from hypothesis import strategies as st

from broker.serve.hook_agents import AGENTS, MARK, CannotBeChanged, has_ours, with_ours, without_ours

FILES = {
    "claude": ".claude/settings.json", "codex": ".codex/hooks.json", "gemini": ".gemini/settings.json",
    "opencode": ".config/opencode/plugin/broker.js",
}  # fmt: skip
MINE = {"matcher": "Bash", "hooks": [{"type": "command", "command": "mine"}]}
HOOK = ("/opt/broker", "hook", "--profile", "builder")


def install(host: Host, agent: str, *words: str, verb: str = "install") -> subprocess.CompletedProcess[bytes]:
    """Install, or uninstall."""
    return host.broker(verb, "--agent", agent, *words)


@pytest.mark.parametrize("agent", FILES)
def test_a_file_that_was_not_there_is_gone_again_afterwards(host: Host, agent: str) -> None:
    done = install(host, agent, "--profile", "builder")
    path = host.home / FILES[agent]
    assert done.returncode == 0, done.stderr
    assert b"+++ " + str(path).encode() in done.stdout
    assert b"What is left to do" in done.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    assert install(host, agent, verb="uninstall").returncode == 0
    assert [found for found in host.home.rglob("*") if found.is_file()] == []


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
def test_settings_of_others_stay_and_come_back_to_the_byte(host: Host, agent: str) -> None:
    path = host.home / FILES[agent]
    path.parent.mkdir(parents=True)
    event = AGENTS[agent].event
    text = json.dumps({"model": "é", "hooks": {event: [MINE], "enabled": True}}, indent="\t", ensure_ascii=False) + "\n\n"
    path.write_text(text)
    path.chmod(0o640)
    for profile in ("default", "builder", "builder"):  # again, and again with other words: there is one of ours at a time
        assert install(host, agent, "--profile", profile).returncode == 0
        settings = json.loads(path.read_text())
        assert settings["model"] == "é"
        assert settings["hooks"][event][1:] == [MINE]
        (ours,) = settings["hooks"][event][0]["hooks"]
        assert f"--profile {profile} || " in ours["command"]
        assert "\n\t" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    assert install(host, agent, verb="uninstall").returncode == 0
    assert path.read_text() == text
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_what_somebody_changed_since_is_kept(host: Host) -> None:
    path = host.home / FILES["claude"]
    path.parent.mkdir()
    path.write_text('{"model": "a"}')
    install(host, "claude")
    settings = json.loads(path.read_text())
    settings["model"] = "b"
    settings["hooks"]["PreToolUse"].append(MINE)
    path.write_text(json.dumps(settings))
    install(host, "claude", verb="uninstall")
    assert json.loads(path.read_text()) == {"model": "b", "hooks": {"PreToolUse": [MINE]}}


def test_a_hook_that_somebody_put_among_ours_is_not_taken_away(host: Host) -> None:
    path = host.home / FILES["claude"]
    install(host, "claude")
    settings = json.loads(path.read_text())
    settings["hooks"]["PreToolUse"][0]["hooks"].append({"type": "command", "command": "mine"})
    path.write_text(json.dumps(settings))
    install(host, "claude", verb="uninstall")
    left = json.loads(path.read_text())["hooks"]
    assert list(left) == ["PreToolUse"]
    assert left["PreToolUse"][0]["hooks"][-1]["command"] == "mine"


@pytest.mark.parametrize(
    "text", ['{"a": 1,}', '{// a comment\n"a": 1}', "[]", '{"a": 1, "a": 2}', '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}', "\xff"]
)
def test_a_file_that_cannot_be_read_is_not_touched(host: Host, text: str) -> None:
    path = host.home / FILES["claude"]
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    done = install(host, "claude")
    assert done.returncode == 64
    assert str(path).encode() in done.stderr
    assert path.read_bytes() == text.encode("latin-1")
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_plugin_of_somebody_else_is_not_overwritten(host: Host) -> None:
    path = host.home / FILES["opencode"]
    path.parent.mkdir(parents=True)
    path.write_text("export const Broker = 1\n")
    assert install(host, "opencode").returncode == 64
    assert install(host, "opencode", verb="uninstall").returncode == 64
    assert path.read_text() == "export const Broker = 1\n"


def test_a_dry_run_writes_nothing_and_shows_all(host: Host) -> None:
    done = install(host, "gemini", "--dry-run")
    assert done.returncode == 0
    assert MARK.encode() in done.stdout
    assert b"Nothing was changed" in done.stdout
    assert not (host.home / ".gemini").exists()


def test_a_link_stays_one_and_what_it_leads_to_is_changed(host: Host, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.json"
    kept.write_text("{}")
    path = host.home / FILES["claude"]
    path.parent.mkdir()
    path.symlink_to(kept)
    install(host, "claude")
    assert path.is_symlink()
    assert has_ours(AGENTS["claude"], kept.read_text(), "")
    install(host, "claude", verb="uninstall")
    assert kept.read_text() == "{}"


def test_a_profile_that_cannot_be_used_is_said_before_anything_is_written(host: Host) -> None:
    done = install(host, "claude", "--profile", "nobody")
    assert done.returncode == 65
    assert not (host.home / ".claude").exists()


def test_in_a_project_the_hook_is_told_which_one(host: Host) -> None:
    done = install(host, "codex", "--scope", "project", "--json", "--mode", "verdict", "--pass", "a b*")
    told = json.loads(done.stdout)
    assert told["file"] == str(host.workspace / ".codex" / "hooks.json")
    command = json.loads((host.workspace / ".codex/hooks.json").read_text())["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert f"--workspace {host.workspace} --pass 'a b*' --mode verdict || " in command


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
groups = st.lists(st.dictionaries(st.text(), values, max_size=2) | st.just(MINE), max_size=3)


@given(
    st.sampled_from(["claude", "codex", "gemini"]), st.dictionaries(st.text().filter(lambda key: key != "hooks"), values, max_size=3),
    st.dictionaries(st.sampled_from(["PreToolUse", "BeforeTool", "SessionStart", "SessionEnd", "Stop"]), groups, max_size=5), st.booleans(),
)  # fmt: skip
def test_whatever_was_in_the_settings_is_in_them_afterwards(name: str, rest: dict[str, Any], hooks: dict[str, Any], lost: bool) -> None:
    agent = AGENTS[name]
    text = json.dumps({**rest, "hooks": hooks})
    new = with_ours(agent, text, HOOK, "f")
    assert has_ours(agent, new, "f")
    assert with_ours(agent, new, HOOK, "f") == new
    back = without_ours(agent, new, "f", None if lost else text)
    if lost:  # the copy of what was before is gone: the same settings, however they were written
        expected = json.loads(text)
        found = json.loads(back) if back else {}
        assert found.get("hooks", {}) == {event: kept for event, kept in expected.pop("hooks").items() if kept or event in found.get("hooks", {})}
        assert {key: value for key, value in found.items() if key != "hooks"} == expected
    else:
        assert back == text


def test_what_is_not_ours_is_not_ours() -> None:
    for group in (MINE, {"hooks": []}, {"hooks": [{}]}, "x", {"hooks": [{"command": f"x {MARK} y"}]}):
        text = json.dumps({"hooks": {"PreToolUse": [group]}})
        assert not has_ours(AGENTS["claude"], text, "f")
        assert without_ours(AGENTS["claude"], text, "f", None) == text
    with pytest.raises(CannotBeChanged):
        without_ours(AGENTS["opencode"], "mine", "f", None)
