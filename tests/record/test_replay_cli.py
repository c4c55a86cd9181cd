"""`broker replay` and `broker export` as people run them: exit codes, what is printed, and what a wrong word gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from exported import write_run

from broker.cli.main import main
from broker.decide.envelope import Envelope
from broker.decide.trust import Trust
from broker.record import event

from test_replay import Recording, asked, profile  # isort: skip


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    recording = Recording(tmp_path)
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    for text in ("touch a", "curl x", "cat b", "cat c"):
        asked(task, *text.split())
    recording.journal.append(event.RUN_FINISHED, status="finished", exit_code=0)
    recording.journal.close()
    return tmp_path / "state"


def policy(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(f"[profiles.{name}]\n{text}\n")
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('max_risk = "local_write"', 0, "4 the same"),
        ('max_risk = "safe"', 1, "1 narrower"),
        ('max_risk = "network_egress"', 2, "1 wider"),
        ('max_risk = "local_write"\ndenylist = ["curl"]', 1, "1 relabelled"),
    ],
)
def test_the_exit_code_says_same_different_or_wider(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    assert main(["replay", "last", "--profile", policy(tmp_path, "mine", text)]) == code
    assert said in capsys.readouterr().out


def test_only_verdicts_may_count(state: Path, tmp_path: Path) -> None:
    assert main(["replay", "last", "--verdicts", "--profile", policy(tmp_path, "mine", 'max_risk = "local_write"\ndenylist = ["curl"]')]) == 0


def test_without_a_profile_the_installed_classifier_is_asked(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--all", "--classifier"]) == 0
    assert main(["replay", "last"]) == 0
    assert "by the installed classifier" in capsys.readouterr().out


def test_json_says_what_was_and_what_would_be(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "last", "--json", "--profile", policy(tmp_path, "mine", 'max_risk = "network_egress"')]) == 2
    told = json.loads(capsys.readouterr().out)
    [one] = told["differences"]
    assert (one["kind"], one["what"], one["class"], one["cause"]) == ("wider", "curl x", "network_egress", "profile")
    assert (one["was"]["verdict"], one["would_be"]["verdict"]) == ("deny", "allow")
    assert (told["judged"], told["same"], told["wider"]) == (4, 3, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay"], "name runs"),
        (["replay", "last", "--all"], "--all takes no run"),
        (["replay", "last", "--classifier", "--profile", "builder"], "--classifier keeps the profiles"),
        (["replay", "last", "--for", "x"], "name a profile"),
        (["export", "last"], "--format"),
        (["export", "--format", "cef"], "name runs, or say --all"),
        (["export", "last", "--all", "--format", "cef"], "--all takes no run"),
        (["export", "last", "--format", "cef", "--json"], "--to FILE"),
        (["export", "last", "--format", "cef", "--to", "ftp://x"], "not ftp://"),
        (["export", "last", "--format", "cef", "--to", "nats://x"], "name a server and a stream"),
        (["export", "last", "--format", "cef", "--to", "http://127.0.0.1:9", "--header", "nonsense"], "NAME: VALUE"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(state: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) == 64
    assert said in capsys.readouterr().err


def test_an_old_record_says_that_it_cannot_be_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path))
    write_run(tmp_path)
    assert main(["replay", "last"]) == 64
    assert "nothing can be judged again" in capsys.readouterr().err


def test_later_segments_among_the_files_are_read_once_with_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path / "state"))
    recording = Recording(tmp_path, segment=2_000)
    task = recording.task(Envelope(profile=profile(), trust=Trust.TRUSTED))
    for number in range(9):
        asked(task, "cat", f"file-{number}")
    recording.journal.close()
    files = sorted(map(str, recording.journal.path.parent.glob("*.jsonl")))
    assert len(files) > 1

    assert main(["replay", *files]) == 0
    assert "9 decisions judged again" in capsys.readouterr().out


def test_what_is_exported_to_stdout_is_the_events_and_nothing_else(state: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broker", "export", "last", "--format", "cloudevents"],
        env={**os.environ, "BROKER_STATE_DIR": str(state)}, capture_output=True, check=True,
    )  # fmt: skip
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()][-1] == "broker.run.finished"
    assert done.stderr == b""


def test_a_named_cursor_remembers_for_stdout_and_restart_forgets(state: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    counts = []
    for more in ([], [], ["--restart"]):
        assert main(["export", "--all", "--format", "cef", "--cursor", "mine", *more]) == 0
        counts.append(len(capfdbinary.readouterr().out.splitlines()))
    assert counts == [8, 0, 8]


def test_a_sink_that_is_not_there_ends_with_its_own_code(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "last", "--format", "ocsf", "--to", "http://127.0.0.1:9/x", "--patience", "0"]) == 69
    assert "http://127.0.0.1:9/x does not answer" in capsys.readouterr().err
