"""Attacks on landing that were found by reading it as an attacker would: one test for each idea."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conformance.driver import Broker, until

# The folder of a label cannot be made in a race, so what a race would have planted is put into the layer by hand.
WAITS = "echo mine >mine; echo ready; read _"


def plant(broker: Broker, run: str) -> None:
    """Put into the layer of a running task what no label let it make."""
    hooks = broker.layers / run / "0" / "upper" / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text("planted\n")
    subprocess.run(["chown", "-R", "1000:1000", str(hooks.parent)], check=True)


# What nobody judged is not what the profile permits


def test_when_landing_fails_broker_land_still_lands_only_what_the_profile_permits(for_somebody: Broker) -> None:
    """A task can make landing fail: it fills the disk. What is then kept must not land as if it were permitted."""
    with for_somebody.started("bash", "-c", WAITS, stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        [run] = until(for_somebody.kept, "the layer")
        plant(for_somebody, run)
        (for_somebody.workspace / f".broker-landing-{run}").mkdir()
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        done = running.finish()
    assert "could not land" in done["changes"]["error"]
    assert not (for_somebody.workspace / "mine").exists()

    assert for_somebody.verb("land", run).returncode == 0
    assert (for_somebody.workspace / "mine").read_text() == "mine\n"
    assert not (for_somebody.workspace / ".git/hooks/post-checkout").exists()
    assert for_somebody.kept() == [run]


@pytest.mark.parametrize("engine", ["bubblewrap"])
def test_of_a_task_that_was_never_judged_nothing_lands_without_being_named(for_somebody: Broker) -> None:
    """Its broker was ended: nobody looked at what it changed."""
    with for_somebody.started("bash", "-c", WAITS, stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        [run] = until(for_somebody.kept, "the layer")
        plant(for_somebody, run)
        running.process.kill()
        running.process.wait()
    assert for_somebody.nothing_survives()
    # As a broker leaves it that ends between the task and the verdict: the state alone says nothing of a verdict.
    manifest = for_somebody.layers / run / "layer.json"
    manifest.write_text(manifest.read_text().replace('"state": "running"', '"state": "kept"'))
    refused = for_somebody.verb("land", run)
    assert (refused.returncode, "nobody judged" in refused.stderr) == (64, True)
    assert not (for_somebody.workspace / ".git/hooks").exists()
    assert for_somebody.verb("land", run, "mine").returncode == 0
    assert (for_somebody.workspace / "mine").read_text() == "mine\n"


def test_when_the_guard_is_killed_nothing_lands_of_what_was_begun(for_somebody: Broker) -> None:
    with for_somebody.started("bash", "-c", WAITS, stdin=subprocess.PIPE) as running:
        running.read_until(b"ready")
        [run] = until(for_somebody.kept, "the layer")
        guards = [pid for pid in for_somebody.inside() if b"guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert guards
        subprocess.run(["kill", "-9", str(guards[0])], check=True)
        done = running.finish()
    assert done.code == 70
    assert not (for_somebody.workspace / "mine").exists()
    assert for_somebody.verb("land", run).returncode == 0
    assert (for_somebody.workspace / "mine").read_text() == "mine\n"


# A plain name for what runs


def held(broker: Broker, script: str) -> list[str]:
    """Run a script inside; the paths that were withheld."""
    done = broker.run("bash", "-c", script, stdin=b"")
    assert done.result["exit_code"] == 0, done
    return sorted(row["path"] for row in done["changes"]["withheld"])


def test_what_the_users_own_links_and_settings_make_a_hook_of_is_one(for_somebody: Broker) -> None:
    for name in ("check", "tools/hooks/pre-push", "code/settings.json", "chain/last"):
        for_somebody.file(name, "as it was\n", 0o755)
    for_somebody.file(".git/config", "[core]\n\thooksPath = tools/hooks\n")
    for_somebody.file(".git/hooks/.keep", "")
    work = for_somebody.workspace
    (work / ".git/hooks/pre-commit").symlink_to("../../check")
    (work / ".vscode").symlink_to("code")
    (work / "middle").symlink_to("chain")
    (work / ".envrc").symlink_to("middle/last")
    (work / "docs").symlink_to("plain")
    script = (
        "for f in check tools/hooks/pre-push chain/last; do echo planted >>$f; done; echo planted >tools/hooks/post-merge; "
        "echo '{\"python.defaultInterpreterPath\": \"./x\"}' >code/settings.json; mkdir plain; echo fine >plain/file"
    )
    expected = ["chain/last", "check", "code/settings.json", "tools/hooks/post-merge", "tools/hooks/pre-push"]
    assert held(for_somebody, script) == expected
    assert (work / "check").read_text() == "as it was\n"
    assert (work / "docs/file").read_text() == "fine\n"


def test_a_link_in_the_place_of_a_file_whose_content_decides_does_not_land(for_somebody: Broker) -> None:
    script = (
        "echo '{\"scripts\": {\"postinstall\": \"./x\"}}' >data.json; ln -s data.json package.json; "
        "echo '[options.entry_points]' >data.cfg; ln -s data.cfg setup.cfg; ln -s data.json other.json"
    )
    assert held(for_somebody, script) == ["package.json", "setup.cfg"]
    assert (for_somebody.workspace / "other.json").is_symlink()


@pytest.mark.parametrize("last", ["refs", "objects", "commondir", "HEAD"])
def test_whatever_comes_last_makes_no_repository_of_a_folder(for_somebody: Broker, last: str) -> None:
    """A folder with HEAD and commondir is a repository, too: its configuration is where commondir says."""
    parts = {
        "refs": "mkdir x/refs", "objects": "mkdir x/objects", "commondir": "echo ../e >x/commondir",
        "HEAD": "echo 'ref: refs/heads/main' >x/HEAD",
    }  # fmt: skip
    needed = ("HEAD", "commondir") if last == "commondir" else ("HEAD", "refs", "objects")
    first = "; ".join(parts[name] for name in needed if name != last)
    config = "printf '[alias]\\n\\tst = !touch /tmp/owned\\n'"
    prepare = f"mkdir -p x e/objects e/refs; {config} >x/config; {config} >e/config; {first}"
    assert held(for_somebody, prepare) == []
    assert held(for_somebody, parts[last]) == [f"x/{last}"]
    found = subprocess.run(["git", "-C", str(for_somebody.workspace / "x"), "rev-parse", "--git-dir"], capture_output=True, check=False)
    assert found.returncode, found
