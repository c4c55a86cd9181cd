"""A headless browser: many processes, shared memory, sockets between them, a page's script."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = [pytest.mark.toolchain("compat", "chromium"), pytest.mark.compat, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def a_browser_may_start(both: SideBySide) -> None:
    """A browser is a program that reaches the network, whatever it is given; there is none to reach."""
    both.effects = (*both.effects, "network_egress")


def dump(both: SideBySide, *options: str) -> list[str]:
    """Return the command that prints the page after its script has run."""
    page = (both.workspace / "page.html").as_uri()
    return ["chromium", "--headless", "--disable-gpu", *options, "--dump-dom", page]


def test_a_page_after_its_script(both: SideBySide) -> None:
    ran = both.same(dump(both, "--no-sandbox"), project="browser", stderr=False)
    assert '<p id="result">MADE BY A SCRIPT</p>' in ran.stdout


def test_a_screenshot(both: SideBySide) -> None:
    page = (both.workspace / "page.html").as_uri()
    command = ["chromium", "--headless", "--disable-gpu", "--no-sandbox", "--screenshot=page.png", page]
    both.same(command, project="browser", stderr=False)
    assert (both.workspace / "page.png").read_bytes().startswith(b"\x89PNG")


def test_the_browsers_own_sandbox_needs_namespaces_and_fails(both: SideBySide) -> None:
    both.fresh("browser")
    ran = both.inside(dump(both))
    assert ran.exit_code != 0
    assert "sandbox" in ran.stderr.lower()
