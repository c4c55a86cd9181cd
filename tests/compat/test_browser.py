"""A headless browser: many processes, shared memory, sockets between them, a page's script."""

from __future__ import annotations

import pytest
from side_by_side import SideBySide

pytestmark = [pytest.mark.toolchain("compat", "chromium"), pytest.mark.compat, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def a_browser_may_start(both: SideBySide) -> None:
    """A browser is a program that reaches the network, whatever it is given; there is none to reach."""
    both.effects = (*both.effects, "network_egress")


# Refused, and nobody misses it: how likely the kernel ends which process for want of memory, counting touched
# pages, a cache of fonts for the whole system, extensions, for everybody and where browsers keep secrets.
HARMLESS = (
    r"write /proc/\d+/(oom_score_adj|clear_refs)"
    r"|\w+ /var/cache(/fontconfig.*)?"
    r"|mkdir (/home/agent/\.config|/usr/lib)/chromium(/.*)?"
)


def browse(both: SideBySide, *options: str) -> list[str]:
    """Return the command that shows the page. Its profile is not in ~/.config: browsers keep secrets there."""
    page = (both.workspace / "page.html").as_uri()
    return ["sh", "-c", 'exec chromium --headless --user-data-dir="$TMPDIR/chromium" "$@"', "sh", *options, page]


def test_a_page_after_its_script(both: SideBySide) -> None:
    command = browse(both, "--no-sandbox", "--dump-dom")
    ran = both.same(command, project="browser", stderr=False, refused=HARMLESS)
    assert '<p id="result">MADE BY A SCRIPT</p>' in ran.stdout


def test_a_screenshot(both: SideBySide) -> None:
    command = browse(both, "--no-sandbox", "--screenshot=page.png")
    both.same(command, project="browser", stderr=False, refused=HARMLESS)
    assert (both.workspace / "page.png").read_bytes().startswith(b"\x89PNG")


def test_the_browsers_own_sandbox_needs_namespaces_and_fails(both: SideBySide) -> None:
    both.fresh("browser")
    ran = both.inside(browse(both, "--dump-dom"))
    assert ran.exit_code != 0
    assert "sandbox" in ran.stderr.lower()
