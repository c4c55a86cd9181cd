"""From an envelope to a container's plan and the guard's setup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.classify.risk import Risk
from broker.decide.envelope import Envelope
from broker.decide.profile import AllowEntry, Environment, Profile, up_to
from broker.decide.trust import Trust
from broker.enforce import wire
from broker.enforce.choose import choose_engine, engine_named
from broker.enforce.confinement import Confinement, confine, environment
from broker.enforce.workspace import Workspace
from broker.errors import HostCannotEnforce, UsageError

SAFE = Profile(name="research", max_risk=Risk.SAFE, effects=up_to(Risk.SAFE))
WRITES = Profile(name="default", max_risk=Risk.LOCAL_WRITE, effects=up_to(Risk.LOCAL_WRITE))
BUILDS = replace(WRITES, name="builder", allowlist=(AllowEntry(argv=("make",)),))


def confined(profile: Profile, *, read_only: bool = False, command: tuple[str, ...] = ("true",)) -> Confinement:
    """What a task under this profile is confined by."""
    space = Workspace(path="/w", uid=1000, gid=1000, read_only=read_only, protected=("/w/.git/hooks",), masked=("/w/.env",))
    return confine(
        Envelope(profile=profile, trust=Trust.TRUSTED), space, task="t", run_dir="/run/x", engine="bubblewrap", command=command
    )


def rights(found: Confinement, path: str) -> str:
    """The Landlock rights at a path."""
    return "".join(sorted({letter for rule in found.setup.landlock if rule.path == path for letter in rule.rights}))


def test_without_code_execution_nothing_that_the_task_wrote_can_start() -> None:
    for profile in (SAFE, WRITES):
        for place in ("/w", "/tmp", "/home/agent", "/dev/shm"):
            assert "x" not in rights(confined(profile), place)
    assert rights(confined(BUILDS), "/tmp") == "crwx"


def test_a_read_only_workspace_is_read_only_in_the_mount_and_in_landlock() -> None:
    found = confined(SAFE, read_only=True)
    assert rights(found, "/w") == ""
    assert [bind.read_only for bind in found.plan.binds if bind.target == "/w"] == [True]
    assert "/w" not in found.setup.writable_roots


def test_protected_paths_lie_read_only_over_a_writable_workspace() -> None:
    binds = [(bind.target, bind.read_only) for bind in confined(WRITES).plan.binds]
    assert binds == [("/w", False), ("/w/.git/hooks", True)]
    assert confined(WRITES).plan.masked == ("/w/.env",)


def test_nothing_may_be_written_below_proc_sys_or_the_system() -> None:
    for rule in confined(BUILDS).setup.landlock:
        if {"w", "c"} & set(rule.rights):
            assert rule.path in ("/w", "/tmp", "/var/tmp", "/dev/shm", "/home/agent", "/dev", "/dev/pts")
    assert "c" not in rights(confined(BUILDS), "/dev")


def test_the_operators_own_program_in_the_workspace_may_start(tmp_path: Path) -> None:
    assert "x" not in rights(confined(WRITES, command=("python3", "agent.py")), "/w")
    assert "x" in rights(confined(WRITES, command=("/w/agent",)), "/w")


def test_landlock_may_be_missing_only_if_the_operator_says_so() -> None:
    assert not confined(WRITES).setup.flags & wire.SetupFlag.NO_LANDLOCK_IS_ACCEPTABLE
    without = replace(WRITES, requires=("network", "seccomp", "exec_gate"))
    assert confined(without).setup.flags & wire.SetupFlag.NO_LANDLOCK_IS_ACCEPTABLE
    assert not confined(without).setup.flags & wire.SetupFlag.ALLOW_EVERY_EXEC


def test_the_environment_is_made_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("EDITOR", "vi")
    profile = replace(WRITES, env=Environment(passed=("EDITOR", "MISSING"), set=(("CI", "1"),)))
    words = environment(profile, read_only=False, terminal=False)
    assert "EDITOR=vi" in words
    assert "CI=1" in words
    assert not any("s3cret" in word or word.startswith("MISSING") for word in words)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown engine podman"):
        engine_named("podman")


def test_a_wanted_docker_that_does_not_answer_is_no_reason_to_do_with_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(HostCannotEnforce):
        choose_engine("docker", WRITES)
    engine, why = choose_engine("auto", WRITES)
    assert engine.name == "bubblewrap"
    assert "auto" in why


def test_a_profile_with_an_image_does_not_run_without_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(HostCannotEnforce, match="image"):
        choose_engine("auto", replace(WRITES, sandbox=replace(WRITES.sandbox, image="go")))
    _, why = choose_engine("bubblewrap", replace(WRITES, sandbox=replace(WRITES.sandbox, image="go")))
    assert "instead of image go" in why
