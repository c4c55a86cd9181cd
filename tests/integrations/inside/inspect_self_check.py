"""inspect_ai's own portable checks of a sandbox provider, unmodified. Run by tests/integrations/test_inspect.py, in its environment."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.environment import SandboxEnvironmentSpec
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

# What the product does not give, and says so (docs/integrations.md). `strict`: if it did one day, this would fail.
CANNOT = {
    "test_exec_as_user": "there is one user, without privileges",
    "test_exec_large_command": "a command of more than 128 KiB cannot be judged",
}


@pytest.fixture(scope="module")
async def opened() -> AsyncIterator[SandboxEnvironment]:
    """One sandbox for all, found by its name as an eval finds it."""
    provider = registry_find_sandboxenv("broker")
    config = SandboxEnvironmentSpec.model_validate(
        {"type": "broker", "config": {"profile": os.environ["PROFILE"], "engine": os.environ["ENGINE"]}}
    ).config
    await provider.task_init("check", config)
    environments = await provider.sample_init("check", config, {})
    yield environments["default"]
    await provider.sample_cleanup("check", config, environments, False)


@pytest.fixture
async def sandbox_env(opened: SandboxEnvironment, request: pytest.FixtureRequest) -> SandboxEnvironment:
    """What the checks ask for."""
    if reason := CANNOT.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return opened
