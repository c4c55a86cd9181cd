"""What the tests of the tools and of MCP share: a task with its tools, and clients of the SDK's on real processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.decide.verdict import Deny
from broker.profiles.load import load_profile
from broker.serve.inside import answer
from broker.serve.tools import Tools
from broker.serve.tools_inside import Call
from broker.supervisor import RunRequest, Session, Watcher, session
from conformance.driver import Broker
from conformance.fixtures import broker, engine, folder, make_broker  # noqa: F401 - fixtures are used by name

ERAS = {"2025-11-25": "legacy", "2026-07-28": "auto"}  # revision: how the SDK's client opens a connection for it
_NUMBER = itertools.count()


class Opened:
    """A session in this process, its tools, and what was denied in it."""

    def __init__(self, owner: Broker, opened: Session, denied: list[tuple[str, str, Deny]]) -> None:
        self.broker, self.session, self.denied = owner, opened, denied
        self.tools = Tools(opened.stage, opened.budget)

    def call(self, name: str, /, call: Call | None = None, **args: Any) -> dict[str, Any]:
        """Call a tool."""
        return self.tools.call(name, args, call or Call())

    def ok(self, name: str, /, **args: Any) -> dict[str, Any]:
        """Call a tool that has to succeed."""
        result = self.call(name, **args)
        assert result["code"] == "ok", result
        return result

    def called(self) -> list[tuple[str, str, str]]:
        """The recorded calls: tool, what, outcome."""
        return [(row["tool"], row["what"], row["outcome"]) for row in self.broker.events() if row["type"] == "tool.called"]


@pytest.fixture
def bubble(make_broker: Callable[..., Broker]) -> Broker:  # noqa: F811
    """A broker on bubblewrap."""
    return make_broker("bubblewrap")


@pytest.fixture
def open_tools(bubble: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    """Open sessions; they are closed at the end, and nothing of them is left."""
    monkeypatch.setenv("BROKER_LAYER_DIR", str(bubble.layers))
    with ExitStack() as stack:

        def make(profile: str = "any", **how: Any) -> Opened:
            denied: list[tuple[str, str, Deny]] = []
            dirs = (str(bubble.profiles),)
            request = RunRequest(
                argv=("test",), profile=load_profile(profile, profile_dirs=dirs), workspace=str(bubble.workspace),
                engine="bubblewrap", state_dir=bubble.state, profile_dirs=dirs, **how,
            )  # fmt: skip
            watcher = Watcher(denied=lambda *row: denied.append(row), called=answer)
            opened = Opened(bubble, stack.enter_context(session(request, watcher)), denied)
            stack.callback(opened.tools.close)
            return opened

        yield make
    assert bubble.nothing_survives()


@pytest.fixture
def opened(open_tools: Callable[..., Opened]) -> Opened:
    """A session under a profile that permits most things."""
    return open_tools()


def server_words(broker: Broker, *options: str, inside: bool = False, profile: str = "any") -> list[str]:  # noqa: F811
    """The command line of a server: `broker mcp` on the host, or one inside a task that is nothing but that."""
    if inside:
        return [os.fsdecode(word) for word in broker.run_words(["broker", "mcp"], [*options], profile=profile)]
    where = ["--engine", broker.engine, "--profile-dir", str(broker.profiles), "-w", str(broker.workspace), "-q"]
    return [os.fsdecode(word) for word in broker.words("mcp", *where, "-p", profile, *options)]


@asynccontextmanager
async def connected(broker: Broker, *options: str, era: str = "2026-07-28", **how: Any) -> AsyncIterator[Any]:  # noqa: F811
    """Connect the SDK's client to a server that it starts, and that ends with it."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command, *words = server_words(broker, *options, **how)
    parameters = StdioServerParameters(command=command, args=words, env=broker.settings(), cwd=broker.folder)
    with log_of(broker).open("w") as log:
        async with Client(stdio_client(parameters, errlog=log), mode=ERAS[era]) as client:
            assert client.protocol_version == era
            yield client


def log_of(broker: Broker) -> Path:  # noqa: F811
    """A new file for what a server writes to stderr."""
    return broker.folder / f"stderr-{next(_NUMBER)}"
