"""Attacks on landing that were found by reading it as an attacker would: one test for each idea."""

from __future__ import annotations

import subprocess

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
