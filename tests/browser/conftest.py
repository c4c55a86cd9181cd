"""One browser for all tests of the page; each has a `broker serve` and folders of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from chromium import Browser, browser
from shown_page import Page, serving

from conformance.driver import Broker
from conformance.fixtures import folder, make_broker  # noqa: F401 - fixtures are used by name


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def bubble(make_broker: Callable[..., Broker]) -> Broker:  # noqa: F811
    """A broker on bubblewrap, whose runs nobody else sees."""
    made = make_broker("bubblewrap")
    made.environment["BROKER_RUNTIME_DIR"] = str(made.folder / "runtime")
    made.profile("held", max_risk="local_write", effects={})
    return made


@pytest.fixture
def page(bubble: Broker, chromium: Browser) -> Iterator[Page]:
    with serving(bubble) as (url, process):
        tab = chromium.open(url)
        tab.until("document.getElementById('state').dataset.state === 'live'")
        made = Page(bubble, tab, url, process)
        yield made
        tab.close()
        assert made.may_complain or tab.complaints == []
    assert bubble.nothing_survives()
