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

    good, bad, whole = capsys.readouterr().out.splitlines()
    assert "ok" in good
    assert whole.startswith("chain file  ok  3 entries, head ")
    assert "TAMPERED  line 5: it does not follow from line 4" in bad
    assert main(["events", "verify", other.run]) == 0


def test_a_torn_line_is_told_from_tampering(state: Path, capsys: Captured) -> None:
    with Journal.create(state) as dead:
        dead.append(event.RUN_STARTED)
    with dead.path.open("ab") as file:
        file.write(b'{"argv":["c')

    assert main(["events", "verify", str(dead.path)]) == 0

    out = capsys.readouterr().out
    assert "a torn last line of 11 bytes: broker died while writing it" in out
    assert "unfinished: broker died" in out


def test_a_run_that_vanished_is_exit_1_and_named(state: Path, run: Path, capsys: Captured) -> None:
    run.unlink()

    assert main(["events", "verify"]) == 1

    assert f"{run.stem}  VANISHED  the run is gone: entry 2" in capsys.readouterr().out
    assert main(["events", "verify", "7f3a"]) == 1
    assert "VANISHED" in capsys.readouterr().out
    assert main(["events", "verify", "abcd"]) == 64


def test_an_edited_chain_file_is_exit_1_even_if_only_a_run_was_asked_for(state: Path, run: Path, capsys: Captured) -> None:
    path = state / "chain.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"count":1', b'"count":2'))

    assert main(["events", "verify", run.stem]) == 1
    assert "chain file  TAMPERED  chain.jsonl, line 2: it does not follow from line 1" in capsys.readouterr().out


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
    assert "unfinished: broker died" in capsys.readouterr().out


# --- keys and checkpoints


@pytest.fixture
def key(tmp_path: Path, state: Path, capsys: Captured) -> str:
    """The private key's file; the public one is beside it."""
    assert main(["events", "key", "new", str(tmp_path / "audit.key")]) == 0
    assert str(tmp_path / "audit.key.pub") in capsys.readouterr().out
    return str(tmp_path / "audit.key")


def test_a_checkpoint_is_made_verified_and_kept(state: Path, run: Path, key: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["events", "checkpoint", "--key", key]) == 0
    kept = tmp_path / "kept"
    kept.write_text(capsys.readouterr().out)

    assert main(["events", "verify", "--key", f"{key}.pub", "--checkpoint", str(kept)]) == 0
    assert "signed up to entry 3 at 20" in capsys.readouterr().out

    (state / "chain.jsonl").write_bytes(b"".join((state / "chain.jsonl").read_bytes().splitlines(keepends=True)[:2]))
    assert main(["events", "verify", "--checkpoint", str(kept), "--json"]) == 1
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["ok"], row["entries"]) == (False, 2)
    assert "has 2 entries, and the kept checkpoint is entry 3" in row["problems"][0]


def test_the_key_is_shown_by_either_of_its_files(key: str, capsys: Captured) -> None:
    assert main(["events", "key", "show", key]) == 0
    private = capsys.readouterr().out
    assert main(["events", "key", "show", f"{key}.pub"]) == 0

    assert capsys.readouterr().out == private
    assert private.startswith("-----BEGIN PUBLIC KEY-----")
    assert "PRIVATE" not in private


def test_a_key_that_others_can_read_signs_nothing(run: Path, key: str, capsys: Captured) -> None:
    Path(key).chmod(0o640)

    assert main(["events", "checkpoint", "--key", key]) == 64
    assert f"chmod 600 {key}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["key"], "key new [FILE]"),
        (["key", "lose"], "key new [FILE]"),
        (["checkpoint", "now"], "takes no 'now'"),
        (["schema", "x"], "takes no 'x'"),
        (["checkpoint", "--key", "/nowhere"], "broker events key new"),
        (["verify", "--key", "/nowhere"], "broker events key new"),
        (["verify", "--checkpoint", "/nowhere"], "cannot read /nowhere"),
        (["verify", "--checkpoint", "/etc/passwd"], "is no checkpoint"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(words: list[str], sentence: str, run: Path, capsys: Captured) -> None:
    assert main(["events", *words]) == 64

    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
