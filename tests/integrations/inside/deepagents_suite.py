"""LangChain's standard tests of a sandbox backend, unmodified. Run by tests/integrations/test_deepagents.py, in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from broker.integrations.deepagents import BrokerBackend

# deepagents 0.7 replaces a file on `write`, and returns absolute paths from `glob`; the newest tests still ask for the opposite.
CHANGED = {
    "test_glob", "test_glob_basic_pattern", "test_glob_with_directories", "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class", "test_glob_with_question_mark", "test_write_existing_file_fails",
}  # fmt: skip


class TestBrokerBackend(SandboxIntegrationTests):
    """Nothing is overridden but what has to be."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        with BrokerBackend(os.environ["PROFILE"], engine="docker") as backend:
            yield backend

    @pytest.fixture(autouse=True)
    def changed_since(self, request: pytest.FixtureRequest) -> None:
        if version("deepagents") >= "0.7" and request.node.originalname in CHANGED:
            request.applymarker(pytest.mark.xfail(reason="deepagents itself has changed this", strict=True))
