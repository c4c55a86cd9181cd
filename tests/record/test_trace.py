"""Which trace a run belongs to: what W3C's Trace Context calls well-formed is taken up, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.record.trace import parent

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "bad",
    [
        "", "00", GOOD.upper(), GOOD + "-", GOOD + "-x", "ff" + GOOD[2:], f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", GOOD[:-1], GOOD.replace("-", "_"), GOOD + "\n" + GOOD,
    ],
)  # fmt: skip
def test_what_is_malformed_is_none(bad: str) -> None:
    assert parent({"TRACEPARENT": bad, "TRACESTATE": "a=1"}) == {}


def test_what_is_well_formed_is_taken_up_with_its_state() -> None:
    assert parent({"TRACEPARENT": f" {GOOD} ", "TRACESTATE": "a=1"}) == {"traceparent": GOOD, "tracestate": "a=1"}
    assert parent({"TRACEPARENT": GOOD, "TRACESTATE": "x" * 513}) == {"traceparent": GOOD}
    assert parent({"TRACEPARENT": GOOD, "TRACESTATE": "a=\x1b"}) == {"traceparent": GOOD}
    assert parent({"TRACEPARENT": "01" + GOOD[2:] + "-later"}) == {"traceparent": "01" + GOOD[2:]}
    assert parent({}) == {}


@pytest.mark.needs_bubblewrap
def test_a_run_says_which_trace_it_is_a_part_of_and_its_task_does_not_see_it(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "broker", "run", "--engine", "bubblewrap", "--profile", "builder", "--workspace", str(tmp_path / "w"), "--", "env"],
        env={**os.environ, "BROKER_STATE_DIR": str(tmp_path / "state"), "TRACEPARENT": GOOD}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "TRACEPARENT" not in done.stdout
    [journal] = (tmp_path / "state" / "runs").glob("*.jsonl")
    assert json.loads(journal.read_bytes().splitlines()[0])["traceparent"] == GOOD
