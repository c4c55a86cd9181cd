"""An agent that the operator listed may lead a sub-task unjudged. Nothing that a task could have written may pass for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker
from conformance.test_delegation import orchestrate

AGENT = "#!/bin/sh\necho led by $0\n"


@pytest.fixture
def boss(for_somebody: Broker) -> Broker:
    made = for_somebody
    tools = made.folder / "tools"
    tools.mkdir()
    tools.chmod(0o755)
    made.profile("worker", max_risk="local_write", effects={})
    return made


def put(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def led(
    made: Broker, agents: list[str], *commands: list[str], before: str = "", shown: list[str] | None = None, **sandbox: Any
) -> list[dict[str, Any]]:
    """Delegate these commands under a profile that lists these agents, and return the outcomes."""
    places = {"read_only": [str(made.folder / "tools")] if shown is None else shown, **sandbox}
    made.profile("boss", sandbox=places, delegate={"agents": agents})
    made.profile("critic", sandbox=places, max_risk="local_write", effects={})
    said, _ = orchestrate(made, f"""
        {before or 'pass'}
        for command in {commands!r}:
            say(delegate("--profile", "critic", "--trust", "trusted", "--", *command))
    """, profile="boss")  # fmt: skip
    return said


def refused(found: dict[str, Any]) -> bool:
    return (found["status"], found["exit_code"], "led by" in found["stdout"]) == ("denied", 126, False)


def test_the_operators_own_agent_leads(boss: Broker) -> None:
    agent = put(boss.folder / "tools" / "reviewer", AGENT)
    [found] = led(boss, [agent], ["reviewer"])
    assert found["stdout"] == f"led by {agent}\n", found


def test_another_spelling_of_an_agents_name_is_no_agent(boss: Broker) -> None:
    agent = put(boss.folder / "tools" / "reviewer", AGENT)
    boss.file("reviewer", AGENT, 0o755)
    called = ["./reviewer", "tools/reviewer", "../tools/reviewer", f"/proc/self/root{agent}", f"{agent}/.", f"/{agent}", "REVIEWER"]
    for found in led(boss, [agent], *([name] for name in called)):
        assert found["exit_code"] in (126, 127), found
        assert "led by" not in found["stdout"]


def test_a_program_of_that_name_in_front_of_the_agent_is_not_taken_for_it(boss: Broker) -> None:
    agent = put(boss.folder / "tools" / "reviewer", AGENT)
    boss.file("reviewer", "#!/bin/sh\necho mine\n", 0o755)
    [found] = led(boss, [agent], ["reviewer"], before="os.environ['PATH'] = os.getcwd() + ':' + os.environ['PATH']")
    assert found["stdout"] == f"led by {agent}\n"


def test_an_agent_in_the_workspace_is_anybodys_program(boss: Broker) -> None:
    agent = str(boss.file("reviewer", AGENT, 0o755))
    [found] = led(boss, [agent], ["reviewer"])
    assert refused(found), found


def test_an_agent_that_is_a_link_into_the_workspace_is_anybodys_program(boss: Broker) -> None:
    real = boss.file("reviewer", AGENT, 0o755)
    link = boss.folder / "tools" / "reviewer"
    link.symlink_to(real)
    [found] = led(boss, [str(link)], ["reviewer"])
    assert refused(found), found


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_an_agent_in_a_folder_that_is_shown_by_a_link_into_the_workspace_is_anybodys_program(boss: Broker, mode: str) -> None:
    boss.file("tools/reviewer", AGENT, 0o755)
    link = boss.folder / "shown"
    link.symlink_to(boss.workspace / "tools")
    [found] = led(boss, [f"{link}/reviewer"], ["reviewer"], shown=[str(link)], workspace=mode)
    assert refused(found), found


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_what_is_shown_read_only_of_the_workspace_itself_cannot_be_written_to_by_its_own_name(boss: Broker, mode: str) -> None:
    boss.file("tools/reviewer", AGENT, 0o755)
    boss.profile("shows", sandbox={"read_only": [str(boss.workspace / "tools")], "workspace": mode})
    said, _ = orchestrate(boss, """
        for act in (lambda: open("tools/reviewer", "a"), lambda: open("tools/new", "w"), lambda: os.rename("tools", "other"),
                    lambda: os.unlink("tools/reviewer"), lambda: os.link("tools/reviewer", "x")):
            try:
                act()
                say("done")
            except OSError as error:
                say("refused")
        open("elsewhere", "w")
    """, profile="shows")  # fmt: skip
    assert said == ["refused"] * 5
    assert (boss.workspace / "tools" / "reviewer").read_text() == AGENT


def test_an_agent_whose_interpreter_is_in_the_workspace_is_anybodys_program(boss: Broker) -> None:
    boss.file("interpreter", "#!/bin/sh\necho led by mine\n", 0o755)
    lines = ["#!{}/interpreter", "#! {}/interpreter -x", "#!{}/../workspace/interpreter", "#!interpreter"]
    agents = [put(boss.folder / "tools" / f"agent-{at}", line.format(boss.workspace) + "\n") for at, line in enumerate(lines)]
    for found in led(boss, agents, *([agent] for agent in agents)):
        assert refused(found), found


def test_what_env_finds_for_an_agents_script_is_judged_when_it_is_the_tasks_own(boss: Broker) -> None:
    boss.file("interpreter", "#!/bin/sh\necho led by mine\n", 0o755)
    lines = ["#!/usr/bin/env interpreter", "#!/usr/bin/env -S interpreter -x", "#!/usr/bin/env -S PATH={} interpreter"]
    agents = [put(boss.folder / "tools" / f"agent-{at}", line.format(boss.workspace) + "\n") for at, line in enumerate(lines)]
    shown = {"read_only": [str(boss.folder / "tools")]}
    path = {"set": {"PATH": f"/run/broker/bin:{boss.workspace}:/usr/bin:/bin"}}
    boss.profile("boss", sandbox=shown, delegate={"agents": agents}, env=path)
    boss.profile("critic", sandbox=shown, max_risk="local_write", effects={}, env=path)
    said, _ = orchestrate(boss, f"""
        for agent in {agents!r}:
            say(delegate("--profile", "critic", "--trust", "trusted", "--", agent))
    """, profile="boss")  # fmt: skip
    for found in said:
        assert "led by mine" not in found["stdout"], found
        assert found["exit_code"] != 0


def test_each_task_on_the_way_must_list_the_agent(boss: Broker) -> None:
    agent = put(boss.folder / "tools" / "reviewer", AGENT)
    shown = {"read_only": [str(boss.folder / "tools")]}
    inner = "broker delegate --profile critic --trust trusted -- reviewer"
    boss.profile("boss", sandbox=shown, delegate={"agents": [agent]})
    boss.profile("critic", sandbox=shown, max_risk="local_write", effects={}, delegate={"agents": [agent]})
    for name, agents in (("lists", [agent]), ("lists-not", [])):
        boss.profile(name, sandbox=shown, max_risk="local_write", effects={}, allowlist=[inner], delegate={"agents": agents})
    said, _ = orchestrate(boss, f"""
        for name in ("lists", "lists-not"):
            say(delegate("--profile", name, "--trust", "trusted", "--", *{inner.split()!r}))
    """, profile="boss")  # fmt: skip

    assert f"led by {agent}" in said[0]["stdout"]
    assert "led by" not in said[1]["stdout"]
    assert said[1]["denied_below"] == 1
