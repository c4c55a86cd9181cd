"""The fixtures of the escape suite: a broker on each engine, and a hostile program in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conformance.driver import Broker
from conformance.fixtures import (  # noqa: F401 - fixtures are used by name
    ENGINES,
    SOMEBODY,
    broker,
    engine,
    folder,
    for_somebody,
    make_broker,
)
from escape.hostile import Attempts, attempted, probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one engine on one worker: they share the run of all attempts."""
    for item in items:
        if "escape" in item.path.parts and (call := getattr(item, "callspec", None)):
            engine = call.params.get("engine") or call.params.get("attempts") or call.params.get("attempts_as_root")
            item.add_marker(pytest.mark.xdist_group(f"escape-{engine}"))


@pytest.fixture(scope="session", params=ENGINES)
def attempts(request: pytest.FixtureRequest) -> Iterator[Attempts]:
    """Every attempt of probes/attempts.py, made by an ordinary user's hostile code, once per engine."""
    with attempted(str(request.param), SOMEBODY) as made:
        yield made


@pytest.fixture(scope="session", params=ENGINES)
def attempts_as_root(request: pytest.FixtureRequest) -> Iterator[Attempts]:
    """The same, in a workspace of root: then the code inside has uid 0, which the kernel trusts with much."""
    with attempted(str(request.param), None) as made:
        yield made


@pytest.fixture
def with_probe(for_somebody: Broker) -> Callable[[str], str]:  # noqa: F811
    """Put a compiled probe into the workspace; returns how it is called there."""

    def put(name: str) -> str:
        for_somebody.file(f"probe-{name}", probe(name).read_bytes(), 0o755)
        return f"./probe-{name}"

    return put
