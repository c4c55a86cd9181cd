"""Real agents as people use them: a full screen on a real terminal, typed to, and left as it was found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from inside import QUICK, Inside
from model_server import Shell
from screen import Screen

from conformance.terminal import CTRL_C

pytestmark = [pytest.mark.needs_bubblewrap, pytest.mark.timeout(240)]

READY = {"claude": "bypass permissions on", "codex": "permissions: YOLO mode"}


def leave(screen: Screen, name: str) -> None:
    """Press Ctrl-C, as often as the agent wants it to be pressed, and not once more: that would be for the broker."""
    if name == "claude":
        screen.type(CTRL_C)
        screen.sees("again to")
        screen.type(CTRL_C)
    else:  # the first may still be for its work
        screen.types_until(CTRL_C, lambda: b"Shuttingdown" in screen.drawn())
    assert screen.wait() == 0


@pytest.mark.parametrize("name", QUICK)
def test_with_nothing_after_its_name_an_agent_starts_as_it_does_alone(name: str, start: Callable[..., Inside]) -> None:
    inside = start(name, [Shell("echo fixed > code.txt && make test"), "My work is done."])
    words = inside.words("")
    words = words[: words.index("--")]
    if name == "claude":  # in a home that it does not know, it asks the network first
        words += ["--agent-home", str(inside.folder / "home")]
    with Screen(words, inside.environment(), inside.workspace) as screen:
        screen.sees(READY[name])
        assert screen.is_raw()
        screen.type("Please fix code.txt")
        screen.types_until("\r", lambda: inside.model.results() != [])
        screen.sees("My work is done.")
        leave(screen, name)
        assert screen.is_as_before()
    assert any("all tests passed" in sent.text for sent in inside.model.sent)
    assert (inside.workspace / "code.txt").read_text() == "fixed\n"
    drawn = screen.drawn().decode(errors="replace").partition(READY[name].replace(" ", ""))[2]
    assert "finished:exit0" in drawn
    assert "broker:denied" not in drawn.partition("finished:exit0")[0]  # nothing was written into its picture


def test_a_profile_that_names_its_agent_needs_nothing_more(start: Callable[..., Inside]) -> None:
    inside = start("codex", ["My work is done."])
    words = [word for word in inside.words("") if word not in ("--agent", "codex")]
    path = inside.folder / "profiles" / "t.json"
    table = json.loads(path.read_text())
    table["profiles"]["t"]["agent"] = "codex"
    path.write_text(json.dumps(table))
    with Screen(words[: words.index("--")], inside.environment(), inside.workspace) as screen:
        screen.sees(READY["codex"])
        leave(screen, "codex")
    assert re.search(rb"finished: exit 0", screen.seen)
