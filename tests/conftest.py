"""What every test may ask for: a real engine, or a skip with its reason.

On a user's machine a test that needs an engine which is not there is skipped. Where everything is meant to be
there (BROKER_REQUIRE_ENGINES=1, as `make test` sets it, or CI=true) it fails instead: a skip would be silence.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "needs_docker(image='base'): a Docker engine with this image")
    config.addinivalue_line("markers", "needs_bubblewrap: bubblewrap, allowed to make its namespaces")
    config.addinivalue_line("markers", "needs_root: the right to do anything on this machine")
    config.addinivalue_line("markers", "needs_strace: strace, which makes system calls fail")
    config.addinivalue_line("markers", "needs_nats: nats-server, to export to")
    config.addinivalue_line("markers", "needs_chromium: a browser, to look at the pages that we write")
    config.addinivalue_line("markers", "thorough: takes long; run by `make thorough`")
    config.addinivalue_line("markers", "compat: large tool chains; run by `make compat`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the large tool chains to `make compat`, and what only takes long to `make thorough`, which ask for them."""
    for item in items:
        if _takes_long(item):
            item.add_marker("thorough")
    if config.getoption("-m"):
        return
    left = [item for item in items if item.get_closest_marker("compat") or item.get_closest_marker("thorough")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


# What is on Docker as it is on bubblewrap, because the broker does it and not the engine: there it runs in each `make test`,
# here in `make thorough` only. The suites of policy, endings, limits, delegation, and every attack run on both each time.
_ALIKE = (
    "conformance/test_panel.py", "conformance/test_plan.py", "conformance/test_failure_modes.py",
    "conformance/test_gateway.py", "conformance/test_approvals.py", "conformance/test_approvals_terminal.py",
    "conformance/test_streams.py", "conformance/test_terminal.py", "conformance/test_files.py", "escape/test_protected_paths.py",
    "/api/", "/cli/",
)  # fmt: skip
# Whole suites of others, with environments of their own, and what people run, which `make compat` compares.
_OF_OTHERS = ("integrations/test_deepagents.py", "serve/test_mcp_conformance.py", "/compat/")


def _takes_long(item: pytest.Item) -> bool:
    place, name = item.path.as_posix(), item.name
    if any(one in place for one in _OF_OTHERS) or "portable_checks_pass_unmodified" in name:
        return True
    # Two of the agents are asked each time; the others take minutes to start up.
    if "hooks/test_real_agents.py" in place and name.rpartition("[")[2].startswith(("gemini", "opencode")):
        return True
    return "[docker" in name and any(one in place for one in _ALIKE)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or fail, a test whose engine is not there."""
    for name, missing in NEEDS.items():
        if (marker := item.get_closest_marker(name)) and (reason := missing(*marker.args, **marker.kwargs)):
            if engines_required():
                pytest.fail(f"{reason} (engines are required here)", pytrace=False)
            pytest.skip(reason)


def engines_required() -> bool:
    """Whether a missing engine is a failure."""
    return os.environ.get("BROKER_REQUIRE_ENGINES") == "1" or os.environ.get("CI") == "true"


@functools.cache
def docker_missing(image: str = "base") -> str | None:
    """Say why no container of this image can be made, or None."""
    from broker.enforce.docker_engine import DockerEngine

    return DockerEngine().unavailable(image)


@functools.cache
def bubblewrap_missing() -> str | None:
    """Say why bubblewrap cannot be used, or None. Asks it, because a host may have it and forbid it."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is missing. Run: scripts/need-bubblewrap"
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False
    )
    return f"bubblewrap cannot work here: {tried.stderr.strip()}" if tried.returncode else None


@functools.cache
def root_missing() -> str | None:
    """Say that we are not root, or None."""
    return None if os.geteuid() == 0 else "only root can do this"


@functools.cache
def strace_missing() -> str | None:
    """Say that there is no strace, or None."""
    return None if shutil.which("strace") else "strace is missing. Run: apt-get install strace"


@functools.cache
def nats_missing() -> str | None:
    """Say that there is no nats-server, or None."""
    return None if shutil.which("nats-server") else "nats-server is missing. Run: apt-get install nats-server"


@functools.cache
def chromium_missing() -> str | None:
    """Say that there is no browser, or None."""
    return None if shutil.which("chromium") else "chromium is missing. Run: apt-get install chromium"


NEEDS: dict[str, Callable[..., str | None]] = {
    "needs_docker": docker_missing,
    "needs_bubblewrap": bubblewrap_missing,
    "needs_root": root_missing,
    "needs_strace": strace_missing,
    "needs_nats": nats_missing,
    "needs_chromium": chromium_missing,
}
