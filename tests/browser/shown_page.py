"""The page of a real `broker serve` in a tab of a real browser, and what tests wait for in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from chromium import Tab

from conformance.driver import Broker


class Page:
    """A tab that shows the page of a `broker serve`."""

    def __init__(self, broker: Broker, tab: Tab, url: str, process: subprocess.Popen[bytes]) -> None:
        self.broker, self.tab, self.url, self.process = broker, tab, url, process
        self.may_complain = False  # of what a test does to it

    def question(self, text: str) -> None:
        """Wait until a question about this is on screen, and can be answered."""
        self.tab.until(
            f"document.getElementById('question-title').textContent.includes({json.dumps(text)}) && "
            "document.getElementById('once').getAttribute('aria-disabled') === 'false'",
            f"a question about {text}",
        )

    def nothing_waits(self) -> None:
        self.tab.until("document.getElementById('question').hidden && !document.getElementById('nothing').hidden")

    def answers(self) -> list[tuple[str, str]]:
        """What was answered by now: channel, answer."""
        return [(row["channel"], row["answer"]) for row in self.broker.events() if row["type"] == "approval.answered"]


@contextmanager
def serving(broker: Broker, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `broker serve`, and end it with the block. Yields its link."""
    process = subprocess.Popen(
        broker.words("serve", "--json", *options), env=broker.settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=broker.folder,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"]), process
    finally:
        process.terminate()
        process.communicate(timeout=20)
