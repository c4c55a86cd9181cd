"""The protocol's own judges: its conformance suite, and its inspector. Both are programs of npm, installed when missing.

The suite speaks HTTP only, and broker stdio: http_front.py is a pipe between them. So what it proves is the messages, not how
they travel. It is made for servers that exist for it; what it asks of those alone is listed below, with the reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_front import Front
from tool_clients import server_words

from conformance.driver import Broker

pytestmark = [pytest.mark.needs_bubblewrap, pytest.mark.timeout(600)]
PACKAGES = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/inspector": "2.12.0",
    f"node-linux-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }": "22.23.5",
}  # fmt: skip

# What is run, and which of its checks ask for something that only a server made for the suite has.
_TOOLS_OF_THE_SUITE = {
    "sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream", "sep-2575-server-no-log-without-loglevel",
}  # fmt: skip
_OF_HTTP = {"sep-2575-http-server-header-mismatch-400", "sep-2575-http-server-method-not-found-404-initialize"}
SCENARIOS: dict[tuple[str, str], set[str]] = {
    ("server-initialize", "2025-11-25"): set(),
    ("ping", "2025-11-25"): set(),
    ("tools-list", "2025-11-25"): set(),
    ("resources-list", "2025-11-25"): set(),
    ("server-stateless", "2026-07-28"): _TOOLS_OF_THE_SUITE | _OF_HTTP,
    ("tools-list", "2026-07-28"): set(),
    ("resources-list", "2026-07-28"): set(),
    ("caching", "2026-07-28"): {"sep-2549-prompts-list-caching-hints"},  # there are no prompts
    ("sep-2164-resource-not-found", "2026-07-28"): set(),
    ("input-required-result-unsupported-methods", "2026-07-28"): set(),
}  # fmt: skip
# Scenarios that need tools, prompts or resources by names of the suite's own, or that ask HTTP (docs/mcp.md).
NOT_FOR_US = {
    "tools-call-", "json-schema-2020-12", "resources-read-", "resources-templates-read", "resources-subscribe", "resources-unsubscribe",
    "prompts-", "completion-complete", "logging-set-level", "elicitation-", "input-required-result-", "tasks-", "sep-2640-",
    "server-session-lifecycle", "server-sse-", "dns-rebinding-protection", "http-",
}  # fmt: skip


@pytest.fixture(scope="session")
def node() -> list[str]:
    """The programs of npm, in the user's cache: a node that is new enough, and where the packages are."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "broker-tests" / "mcp"
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    marker = place / "installed"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:  # the tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(place, marker, wanted)
    found = next(place.glob("node_modules/node-linux-*/bin/node"))
    return [str(found), str(place / "node_modules" / ".bin")]


def _install(place: Path, marker: Path, wanted: list[str]) -> None:
    if not marker.exists() or marker.read_text().split() != wanted:
        npm = shutil.which("npm")
        why = "npm is missing. Run: scripts/need-toolchains"
        if npm is not None:
            words = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(place), *wanted]
            done = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False, cwd=place)
            why = "" if done.returncode == 0 else f"npm cannot install {' '.join(wanted)}: {done.stderr.strip()[-500:]}"
        if why:
            if os.environ.get("BROKER_REQUIRE_ENGINES") == "1" or os.environ.get("CI") == "true":
                pytest.fail(why, pytrace=False)
            pytest.skip(why)
        marker.write_text("\n".join(wanted))


@pytest.fixture
def front(bubble: Broker) -> Iterator[Front]:
    """`broker mcp` behind HTTP."""
    front = Front(server_words(bubble), bubble.settings())
    yield front
    assert set(front.close()) <= {0}


@pytest.mark.parametrize(("scenario", "revision"), SCENARIOS, ids=str)
def test_the_conformance_suite_finds_nothing(node: list[str], front: Front, tmp_path: Path, scenario: str, revision: str) -> None:
    program, folder = node
    words = [program, f"{folder}/conformance", "server", "--url", front.url, "--scenario", scenario, "--spec-version", revision]
    done = subprocess.run([*words, "--output-dir", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    checks: list[dict[str, Any]] = [check for path in tmp_path.rglob("checks.json") for check in json.loads(path.read_text())]

    failed = {check["id"]: check.get("errorMessage") for check in checks if check["status"] == "FAILURE"}
    assert failed.keys() == SCENARIOS[scenario, revision], (failed, done.stderr[-2000:])
    assert any(check["status"] == "SUCCESS" for check in checks)


def test_every_scenario_of_the_suite_is_run_or_has_a_reason(node: list[str]) -> None:
    program, folder = node
    done = subprocess.run([program, f"{folder}/conformance", "list", "--server"], capture_output=True, text=True, timeout=60, check=True)
    known = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  - ")}
    run = {scenario for scenario, _ in SCENARIOS}
    assert run <= known
    assert not {name for name in known - run if not name.startswith(tuple(NOT_FOR_US))}


def inspect(node: list[str], broker: Broker, *words: str) -> subprocess.CompletedProcess[str]:
    program, folder = node
    command, *arguments = server_words(broker)
    config = broker.folder / "mcp.json"
    entry = {"command": command, "args": arguments, "env": broker.settings()}
    config.write_text(json.dumps({"mcpServers": {"broker": entry}}))
    return subprocess.run(
        [program, f"{folder}/mcp-inspector", "--cli", "--config", str(config), "--server", "broker", *words],
        capture_output=True, text=True, timeout=120, check=False, cwd=broker.folder,
        env={**broker.settings(), "MCP_INSPECTOR_SECRET_STORE": "memory", "HOME": str(broker.folder)},
    )  # fmt: skip


def test_the_inspector_finds_no_fault_with_the_tools_not_even_a_warning(node: list[str], bubble: Broker) -> None:
    done = inspect(node, bubble, "--method", "tools/list", "--strict")
    assert done.returncode == 0, done.stderr
    assert [tool["name"] for tool in json.loads(done.stdout)["tools"]][:2] == ["shell", "read_file"]
    assert "Warning" not in done.stderr


def test_the_inspector_calls_a_tool_and_reads_a_resource(node: list[str], bubble: Broker) -> None:
    done = inspect(node, bubble, "--method", "tools/call", "--tool-name", "shell", "--tool-arg", "command=echo hi")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["structuredContent"]["stdout"] == "hi\n"
    done = inspect(node, bubble, "--method", "resources/read", "--uri", "broker://events/root?limit=1")
    assert json.loads(json.loads(done.stdout)["contents"][0]["text"])["type"] == "task.created"
