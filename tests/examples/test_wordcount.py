"""The example that `make demo` works on: one bug, one failing test, and an agent whose edit mends it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def agent() -> ModuleType:
    """The scripted agent, as a module."""
    loader = SourceFileLoader("example_agent", str(EXAMPLES / "agent"))
    spec = spec_from_loader("example_agent", loader)
    assert spec is not None
    module = module_from_spec(spec)
    write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = write_bytecode
    return module


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, with the current directory in it."""
    copy = tmp_path / "wordcount"
    shutil.copytree(EXAMPLES / "wordcount", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(copy)
    return copy


def run_tests(agent: ModuleType) -> subprocess.CompletedProcess[str]:
    """Run what the agent runs."""
    words = [sys.executable, *agent.TESTS.split()[1:]]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_exactly_one_test_fails_until_the_agent_has_mended_the_code(project: Path, agent: ModuleType) -> None:
    before = run_tests(agent)
    assert "FAILED (failures=1)" in before.stderr
    assert "FAIL: test_upper_and_lower_case_are_the_same_word" in before.stderr

    code, said = agent.edit()
    assert code == 0, said
    after = run_tests(agent)
    assert after.returncode == 0, after.stderr
    assert after.stderr.rstrip().endswith("OK")

    assert agent.edit()[0] == 1  # there is nothing left to mend


def test_the_agent_runs_the_very_command_that_the_builder_profile_lists(agent: ModuleType) -> None:
    profile = (EXAMPLES.parent / "profiles" / "builder.toml").read_text(encoding="utf-8")
    assert f'"{agent.TESTS}"' in profile


@pytest.mark.parametrize(
    "tried",
    [
        "curl",
        "| sh",
        "sh -c 'curl",
        "env -i",
        "pip install",
        "~/.bashrc",
        ".git/hooks/",
        "/etc/cron.d",
        "~/.ssh",
    ],
)
def test_the_agent_tries_what_agents_must_not(tried: str, agent: ModuleType) -> None:
    assert any(tried in text for _, text in agent.STEPS)
