"""docs/hooks.md says what the tables of the code say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.serve.hook_agents import _IN_TIME, _OR_BLOCK, AGENTS, Scope, with_ours
from broker.serve.hook_tools import TOOLS

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("dialect", TOOLS)
def test_the_page_names_each_tool_that_is_known(dialect: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {dialect} |"))
    assert set(re.findall(r"`([^`]+)`", row)) == set(TOOLS[dialect])  # type: ignore[index]


def test_the_page_names_the_files_and_the_command() -> None:
    for agent in AGENTS.values():
        assert f"`~/{agent.home}/{agent.file}`" in PAGE
        assert f"`{agent.project}/{agent.file}`" in PAGE
        assert agent.path(Scope.PROJECT, "/p") == f"/p/{agent.project}/{agent.file}"
    assert f"{_IN_TIME}broker hook --profile builder || {_OR_BLOCK}\n" in PAGE
    assert _OR_BLOCK in with_ours(AGENTS["codex"], None, ("broker", "hook"), "f")
