"""Which agents the suite runs: two of them always, all of them for `make agents` (BROKER_TEST_AGENTS=all, or names)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from inside import QUICK, Inside, cache_is_usable, chosen
from installed import installed, program
from model_server import ModelServer, Turn

from conformance.fits_schema import undescribed, unfit
from conformance.replays import judged_otherwise

WITH_TOOLS = ("claude", "codex", "gemini", "opencode", "mini")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for `agent` each of them; one that asks for `quick`, the quickest."""
    if "agent" in metafunc.fixturenames:
        metafunc.parametrize("agent", [name for name in chosen() if name in WITH_TOOLS])
    if "quick" in metafunc.fixturenames:
        wanted = chosen() if os.environ.get("BROKER_TEST_AGENTS") else QUICK[-1:]
        metafunc.parametrize("quick", [name for name in wanted if name in QUICK])


@pytest.fixture
def start() -> Iterator[Callable[..., Inside]]:
    """Make an agent that is pointed at a model with this script."""
    made: list[Inside] = []
    with ExitStack() as stack:

        def begin(agent: str, script: Sequence[Turn] | Callable[[Inside], Sequence[Turn]], **more: object) -> Inside:
            if "image" not in more:
                if program(agent) is None and not cache_is_usable():
                    pytest.skip(f"{agent} is not installed, and there is no npm to install it with")
                installed(agent)
            model = stack.enter_context(ModelServer())
            inside = Inside(agent, model, **more)  # type: ignore[arg-type]
            made.append(inside)
            model.script = script(inside) if callable(script) else script
            return inside

        yield begin
    for inside in made:
        events = inside.events()
        assert (unfit(events), undescribed(events)) == ([], set())
        assert judged_otherwise(events) == []
        inside.remove()
