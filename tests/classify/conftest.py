"""The context that the classifier's tests share."""

from __future__ import annotations

import pytest

from broker.classify.context import Context


@pytest.fixture(scope="session")
def context() -> Context:
    """A task whose workspace is /work/project and whose home is /home/dev."""
    return Context(cwd="/work/project", home="/home/dev", workspace="/work/project")
