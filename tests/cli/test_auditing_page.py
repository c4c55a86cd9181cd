"""What docs/auditing.md tells an auditor to type is what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from broker.cli.events import add_arguments
from broker.cli.main import main
from broker.cli.parser import Parser
from broker.record import event
from broker.record.journal import Journal

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ broker ")]
    return [re.split(r"\s+#|\s+\|", line)[0] for line in lines]


@pytest.mark.parametrize("command", [each for each in commands() if "--follow" not in each])
def test_a_command_of_the_page_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with Journal.create(tmp_path / "state", "20261130-043055-7f3a") as journal:
        journal.append(event.RUN_STARTED, profile="team", command=["agent"])
        for _ in range(10):
            journal.append(event.EXEC_DECIDED, verdict="deny", rule="interpreter.script", operation={"kind": "exec", "argv": ["x"]})
        journal.append(event.RUN_FINISHED, exit_code=0)
    assert main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("command", [each for each in commands() if "--follow" in each])
def test_a_command_that_goes_on_for_ever_is_understood(command: str) -> None:
    parser = Parser(prog="broker events")
    add_arguments(parser)
    assert parser.parse_args(shlex.split(command)[2:]).follow


def test_the_page_names_every_option_that_chooses_events() -> None:
    parser = Parser(prog="broker events")
    add_arguments(parser)
    choosing = next(group for group in parser._action_groups if group.title and group.title.startswith("which events"))
    options = {option for action in choosing._group_actions for option in action.option_strings if option.startswith("--")}
    missing = {option for option in options if f"`{option}" not in PAGE.read_text(encoding="utf-8")}
    assert not missing
