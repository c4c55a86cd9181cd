"""Judges, on each engine: what a panel may see and do, what it decides, and what becomes of the changes.

The judges are small programs that the operator keeps where no task can write. Each is what a model would have been.
"""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, Done

PASS = """#!/usr/bin/python3
import json, os
print(json.dumps({"verdict": "pass", "ticket": os.environ["BROKER_TICKET"], "findings": []}))
"""
# Blocks as long as a file holds the word, and shows it.
FINDS = """#!/usr/bin/python3
import json, os
with open("code.txt") as file: text = file.read()
found = [{"file": "code.txt", "line": 1, "severity": "high", "claim": "the word is there", "evidence": ["grep", "-qv", "WORD", "code.txt"]}]
bad = "WORD" in text
print(json.dumps({"verdict": "block" if bad else "pass", "ticket": os.environ["BROKER_TICKET"], "findings": found if bad else []}))
"""


class Court:
    """A broker with judges and panels."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.judges = broker.folder / "judges"
        self.panels = broker.folder / "panels"
        for folder in (self.judges, self.panels):
            folder.mkdir()
            folder.chmod(0o755)
        broker.profile("judge", {"workspace": "read-only", "read_only": [str(self.judges)]})
        broker.profile("worker", {"read_only": [str(self.judges)]}, max_risk="code_execution")

    def program(self, name: str, text: str) -> str:
        path = self.judges / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def panel(self, *programs: str, name: str = "review", **keys: Any) -> str:
        judges = [{"name": f"j{number}", "profile": "judge", "command": shlex.quote(program)} for number, program in enumerate(programs, 1)]
        path = self.panels / f"{name}.json"
        path.write_text(json.dumps({"panels": {name: {"judges": judges, **keys}}}))
        path.chmod(0o644)
        return name

    def work(self, script: str, panel: str = "review", *options: str, profile: str = "worker") -> Done:
        return self.broker.run("/bin/sh", "-c", script, options=["--land", "on-panel", panel, *options], profile=profile)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.broker.events() if event["type"] == kind]


@pytest.fixture
def court(broker: Broker) -> Court:
    return Court(broker)


def test_a_change_lands_when_the_panel_passes_it(court: Court) -> None:
    court.panel(court.program("pass", PASS))

    done = court.work("echo new > code.txt")

    assert done.code == 0, done.err
    assert (court.broker.workspace / "code.txt").read_text() == "new\n"
    assert done["panel"]["verdict"] == "pass"
    convened, verdict, decided = (court.events(kind)[0] for kind in ("panel.convened", "judge.verdict", "panel.decided"))
    assert convened["change"] == verdict["change"] == decided["change"] == done["panel"]["change"]
    assert court.broker.verified()


def test_a_blocked_change_does_not_land_by_itself_or_by_asking(court: Court) -> None:
    court.panel(court.program("finds", FINDS))

    done = court.work("echo WORD > code.txt")

    assert done.code == 76, done.err
    assert "blocked" in done["reason"]
    assert not (court.broker.workspace / "code.txt").exists()
    run = done["changes"]["kept"]
    finding = done["panel"]["judges"][0]["findings"][0]
    assert (finding["file"], finding["line"], finding["shown"]) == ("code.txt", 1, "reproduced")
    assert done["panel"]["plan"]["steps"][0]["checks"] == [{"argv": ["grep", "-qv", "WORD", "code.txt"], "owner": "judge"}]
    asked = court.broker.verb("land", run)
    assert asked.returncode == 64 and "panel review blocked it" in asked.stderr
    assert not (court.broker.workspace / "code.txt").exists()


def test_the_operators_own_word_lands_it_and_is_recorded_as_against_the_panel(court: Court) -> None:
    court.panel(court.program("finds", FINDS))
    run = court.work("echo WORD > code.txt")["changes"]["kept"]

    assert court.broker.verb("land", run, "--all").returncode == 0

    assert (court.broker.workspace / "code.txt").read_text() == "WORD\n"
    landed = court.events("landing.intended")[0]
    assert landed["decided_by"] == "operator" and "panel review blocked it" in landed["against"]


def test_findings_go_back_to_the_worker_until_the_panel_passes(court: Court) -> None:
    court.panel(court.program("finds", FINDS))
    script = 'if grep -q "the word is there" "$BROKER_TASK"; then sed -i s/WORD/word/ code.txt; else echo WORD > code.txt; echo kept > other; fi'

    done = court.work(script, "review", "--rounds", "3", "--goal", "write it")

    assert done.code == 0, done.err
    assert (court.broker.workspace / "code.txt").read_text() == "word\n"
    assert (court.broker.workspace / "other").read_text() == "kept\n", "the second round goes on with what the first one left"
    assert done["panel"]["round"] == 2
    assert court.events("run.started")[0]["continues"] == json.loads(court.broker.journals()[0].read_text().splitlines()[0])["run"]
    assert court.broker.kept() == []


def test_rounds_end_at_their_limit_and_the_change_stays_kept(court: Court) -> None:
    court.panel(court.program("finds", FINDS))

    done = court.work("echo WORD >> code.txt", "review", "--rounds", "2")

    assert (done.code, done["panel"]["round"], len(court.broker.journals())) == (76, 2, 2)
    assert not (court.broker.workspace / "code.txt").exists()
    assert len(court.broker.kept()) == 1
