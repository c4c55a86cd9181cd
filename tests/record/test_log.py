"""Diagnostics go to stderr, in the form that was asked for, and never as raw escape sequences."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from broker.record.log import get_log
assert "structlog" not in sys.modules
get_log().info("looking", path="a\\x1b[2J")
get_log().warning("engine gone", path="a\\x1b[2J")
print("out")
"""


def _say(choice: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "BROKER_LOG": choice},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "out\n"
    return done.stderr


def test_warnings_are_shown_by_default_with_control_characters_written_out() -> None:
    told = _say("")

    assert "engine gone" in told
    assert "looking" not in told
    assert "\x1b" not in told
    assert "\\x1b[2J" in told


def test_json_is_one_object_a_line() -> None:
    lines = [json.loads(line) for line in _say("json:debug").splitlines()]

    assert [line["event"] for line in lines] == ["looking", "engine gone"]
    assert [line["level"] for line in lines] == ["info", "warning"]


@pytest.mark.parametrize(("choice", "count"), [("off", 0), ("debug", 2), ("console:error", 0)])
def test_the_level_is_chosen_by_the_environment(choice: str, count: int) -> None:
    assert len(_say(choice).splitlines()) == count


def test_nothing_is_loaded_to_say_nothing() -> None:
    script = "import sys; from broker.record.log import diagnose; diagnose('x', a=1); print('structlog' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "BROKER_LOG"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
    told = subprocess.run(
        [sys.executable, "-c", script], env={**environment, "BROKER_LOG": "json:info"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert '"event": "x"' in told.stderr
