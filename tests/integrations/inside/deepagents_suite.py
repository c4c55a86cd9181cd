"""LangChain's standard tests of a sandbox backend, unmodified. Run by tests/integrations/test_deepagents.py, in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from broker.integrations.deepagents import BrokerBackend


class TestBrokerBackend(SandboxIntegrationTests):
    """Nothing is overridden but what has to be."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        with BrokerBackend(os.environ["PROFILE"], engine="docker") as backend:
            yield backend
