"""The real thing against the model: trees of real sandboxes, and what each program start in them comes to.

`tests/property/test_delegation_narrows.py` shows that the model narrows. Here a few hundred starts are tried in real sandboxes at
the end of random chains of delegation: each must be refused by the kernel exactly where the model says so, and none may
be possible that an ancestor's sandbox refuses.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.classify.risk import Risk
from broker.decide.profile import AllowEntry, Profile, SandboxSettings, up_to
from broker.decide.trust import Trust
from broker.decide.verdict import Allow, Layer
from broker.delegation import Assignment, admit, plotted
from broker.enforce.sandbox import Command
from broker.request.delegation import TaskRequest
from broker.request.operation import Exec
from broker.stage import Stage, Watcher, staged
from broker.supervisor import RunRequest, session

pytestmark = pytest.mark.needs_bubblewrap

LAYERS = ("network", "seccomp", "landlock", "exec_gate", "file_labels")
CHAINS = 30
STARTS = (
    "ls", "cat real", "touch x", "rm real", "mkdir d", "python3 -c pass", "curl http://x.example", "git push", "make",
    "tee out", "chmod +x real", "env", "sh -c ls", "rm -rf /usr", "npm install", "crontab -l", "dd if=/dev/zero of=big count=1",
    "git status", "ln -s real link", "no-such-program",
)  # fmt: skip
CEILINGS = (Risk.SAFE, Risk.LOCAL_WRITE, Risk.CODE_EXECUTION, Risk.INSTALL, Risk.NETWORK_EGRESS)
LISTED = (("touch", "x"), ("python3", "-c", "pass"), ("curl", "http://x.example"), ("make",))


def some_profile(draw: random.Random, number: int) -> Profile:
    ceiling = draw.choice(CEILINGS)
    effects = up_to(ceiling) | ({Risk.UNKNOWN} if draw.random() < 0.2 else set())
    return Profile(
        name=f"p{number}", max_risk=ceiling, effects=effects, requires=LAYERS,
        allowlist=tuple(AllowEntry(argv=argv) for argv in draw.sample(LISTED, draw.randrange(3))),
        denylist=(("rm",),) if draw.random() < 0.2 else (),
        disabled_tools=frozenset({"shell"}) if draw.random() < 0.2 else frozenset(),
        sandbox=SandboxSettings(workspace=draw.choice(("overlay", "overlay", "read-only"))),
    )  # fmt: skip


@contextlib.contextmanager
def below(stage: Stage, profiles: list[str], draw: random.Random) -> Iterator[list[Stage]]:
    """Open a chain of sub-tasks below a task, each in its own sandbox; yields all of them, the outermost first."""
    if not profiles:
        yield []
        return
    trust = draw.choice(("trusted", "trusted", "untrusted", ""))
    request = TaskRequest(profile=profiles[0], argv=("true",), trust=trust)
    answer = admit(stage, request)
    assert isinstance(answer, tuple), answer
    node, _ = answer
    with staged(stage.run, plotted(stage, request, Assignment(), node, "")) as child:
        try:
            with below(child, profiles[1:], draw) as rest:
                yield [child, *rest]
        finally:
            stage.run.tree.ended(node, "finished")


def really_starts(stage: Stage, argv: tuple[str, ...]) -> bool:
    """Whether the kernel lets the program start. Spawned past the broker's own first judgement: only the gate is asked."""
    permission = Allow(layer=Layer.OPERATOR, rule="test", effects=frozenset())
    env = ("PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/agent")
    process = stage.sandbox.spawn(permission, Command(argv=argv, cwd=stage.plot.workspace.path, env=env))
    process.wait_started(30)
    if process.failed is not None:
        assert process.failed.error in (13, 2), (argv, process.failed)
        return False
    stage.sandbox.kill_process(process)
    process.wait(30)
    return True


def exists(program: str) -> bool:
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in ("/usr/local/bin", "/usr/bin", "/bin"))


def model(stage: Stage, argv: tuple[str, ...]) -> bool:
    """What the broker would say to this start at the gate."""
    path = next(
        (os.path.join(folder, argv[0]) for folder in ("/usr/local/bin", "/usr/bin", "/bin") if os.path.exists(os.path.join(folder, argv[0]))),
        "",
    )  # fmt: skip
    operation = Exec(argv=argv, path=path, program=os.path.realpath(path) if path else "", cwd=stage.plot.workspace.path)
    return isinstance(stage.task.consider(operation, at_gate=True)[1], Allow)


def test_a_few_hundred_real_starts_in_random_trees_agree_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(20261130)  # the same trees each time
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "real").write_text("real\n")
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    tried = refused = 0
    depths: dict[int, int] = {}
    for chain in range(CHAINS):
        profiles = tuple(some_profile(draw, number) for number in range(4))
        root = some_profile(draw, 9)
        request: dict[str, Any] = {"argv": ("model",), "profile": root, "workspace": str(workspace), "engine": "bubblewrap"}
        trust = draw.choice(list(Trust))
        names = [draw.choice(profiles).name for _ in range(1 + chain % 3)]
        asked = RunRequest(**request, trust=trust, profiles=profiles, land="never")
        with session(asked, Watcher()) as opened, below(opened.stage, names, draw) as children:
            stages = [opened.stage, *children]
            for text in draw.sample(STARTS, 6):
                argv = tuple(text.split())
                started = [really_starts(stage, argv) for stage in stages]
                foreseen = [model(stage, argv) and exists(argv[0]) for stage in stages]
                assert started == foreseen, (argv, root, names, profiles)
                assert started == sorted(started, reverse=True), (argv, root, names, profiles)
                tried += len(stages)
                refused += started.count(False)
            depths[len(children)] = depths.get(len(children), 0) + 1
    assert tried >= 400, tried
    assert refused >= 50, refused
    assert tried - refused >= 50, (tried, refused)
    assert set(depths) == {1, 2, 3}
