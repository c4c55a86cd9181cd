"""An auditor learns whether the record can be trusted, and if not, where it stops being one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.record import event
from broker.record.journal import Journal

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)
    return tmp_path / "state"


@pytest.fixture
def run(state: Path) -> Path:
    """A finished run of eight events, four of them refusals."""
    with Journal.create(state, "20261130-043055-7f3a") as journal:
        journal.append(event.RUN_STARTED, profile="builder", command=["agent"], engine="docker")
        for verdict in ("allow", "allow", "deny", "deny", "deny", "deny"):
            journal.append(event.EXEC_DECIDED, verdict=verdict)
        journal.append(event.RUN_FINISHED, status="exited", exit_code=1)
    return journal.path


def test_an_intact_run_verifies_with_its_head(run: Path, capsys: Captured) -> None:
    assert main(["events", "verify"]) == 0

    out = capsys.readouterr().out
    assert "ok  8 events" in out
    assert event.digest(run.read_bytes().splitlines()[-1]) in out


def test_a_tampered_run_is_exit_1_and_says_where(state: Path, run: Path, capsys: Captured) -> None:
    with Journal.create(state) as other:
        other.append(event.RUN_FINISHED)
    run.write_bytes(run.read_bytes().replace(b'"deny"', b'"allow"', 1))

    assert main(["events", "verify", "--all"]) == 1

    good, bad = sorted(capsys.readouterr().out.splitlines(), reverse=True, key=lambda line: "ok" in line)
    assert "ok" in good
    assert "TAMPERED  line 5: it does not follow from line 4" in bad
    assert main(["events", "verify", other.run]) == 0


def test_a_torn_line_is_told_from_tampering(run: Path, capsys: Captured) -> None:
    lines = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join(lines[:4]) + lines[4][:30])

    assert main(["events", "verify", str(run)]) == 0

    out = capsys.readouterr().out
    assert "a torn last line of 30 bytes" in out
    assert "unfinished: broker died, or lines were cut from the end" in out


def test_verification_as_json(run: Path, capsys: Captured) -> None:
    run.write_bytes(b"".join(run.read_bytes().splitlines(keepends=True)[1:]))

    assert main(["events", "verify", "last", "--json"]) == 1

    row = json.loads(capsys.readouterr().out)
    assert (row["ok"], row["events"], row["problem"]["line"]) == (False, 0, 1)


def test_a_run_in_progress_is_said_to_be_running(state: Path, capsys: Captured) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom broker.record.journal import Journal\n"
        "journal = Journal.create(Path(sys.argv[1])); journal.append('run.started')\n"
        "print(journal.path, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        main(["events", "verify"])
        process.send_signal(signal.SIGKILL)

    assert "still running" in capsys.readouterr().out
    main(["events", "verify"])
    assert "unfinished" in capsys.readouterr().out
