"""`broker serve` as a command: what it prints, how it ends, and what it does not do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.classify.risk import Risk
from broker.cli import serve
from broker.cli.main import main
from broker.decide.verdict import Deny, Layer
from broker.record import event
from broker.record.denials import DenialLog
from broker.record.journal import Journal

PATIENCE = 30
Serving = subprocess.Popen[str]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "state").mkdir(mode=0o700)
    mine = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    return mine | {"BROKER_RUNTIME_DIR": str(tmp_path / "runtime"), "BROKER_STATE_DIR": str(tmp_path / "state")}


def started(environment: dict[str, str], *options: str) -> Serving:
    words = [sys.executable, "-m", "broker", "serve", *options]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line_of(serving: Serving) -> str:
    assert serving.stdout is not None
    return serving.stdout.readline().strip()


@pytest.fixture
def serving(environment: dict[str, str]) -> Iterator[Serving]:
    made = started(environment, "--json")
    yield made
    made.kill()
    made.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_a_link_that_works_and_ends_on_ctrl_c(serving: Serving, number: int) -> None:
    url = json.loads(line_of(serving))["url"]
    with urllib.request.urlopen(url, timeout=PATIENCE) as page:
        assert b"Waiting for you" in page.read()
    serving.send_signal(number)
    out, err = serving.communicate(timeout=PATIENCE)
    assert (serving.returncode, out, err) == (0, "", "")


def test_people_are_told_what_the_link_is(environment: dict[str, str]) -> None:
    made = started(environment)
    url = line_of(made)
    made.terminate()
    assert made.stdout is not None
    rest = made.stdout.read()  # communicate() would leave out what readline() has taken already
    made.communicate(timeout=PATIENCE)
    assert url.startswith("http://127.0.0.1:")
    assert "Whoever has this link can answer as you" in rest


def test_nothing_is_stored(serving: Serving, tmp_path: Path) -> None:
    url = json.loads(line_of(serving))["url"]
    urllib.request.urlopen(url, timeout=PATIENCE).close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_browser_is_started_with_a_file_that_only_we_can_read_and_not_with_the_token(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "look").write_text(f'#!/bin/sh\nread_it=$(cat "${{1#file://}}"); stat -c %a "${{1#file://}}" >{tmp_path}/mode\n'
                                   f'printf "%s\\n" "$1" "$read_it" >{tmp_path}/seen.part; mv {tmp_path}/seen.part {tmp_path}/seen\n')  # fmt: skip
    (tmp_path / "look").chmod(0o755)
    made = started({**environment, "BROWSER": str(tmp_path / "look")}, "--json", "--open")
    try:
        url = json.loads(line_of(made))["url"]
        with urllib.request.urlopen(url, timeout=PATIENCE):
            pass  # it serves when the browser was started
        given, content = (tmp_path / "seen").read_text().splitlines()
        file = Path(given.removeprefix("file://"))
        assert url.partition("#")[2] not in given
        assert f"url={url}" in content
        assert (tmp_path / "mode").read_text() == "600\n"
        place, _, token = url.partition("#")
        asked = urllib.request.Request(f"{place}session", json.dumps({"token": token}).encode(), {
            "Content-Type": "application/json", "Origin": place.rpartition("/")[0].rpartition("/")[0],
        })  # fmt: skip
        urllib.request.urlopen(asked, timeout=PATIENCE).close()
        assert not file.exists()
    finally:
        made.kill()
        made.communicate()


def test_where_there_is_no_browser_it_says_so_and_serves(environment: dict[str, str]) -> None:
    made = started(environment, "--json", "--open")
    url = json.loads(line_of(made))["url"]
    urllib.request.urlopen(url, timeout=PATIENCE).close()
    made.terminate()
    assert "this session has no browser" in made.communicate(timeout=PATIENCE)[1]


@pytest.mark.parametrize(("options", "said"), [
    (["--address", "0.0.0.0"], "127.0.0.1 or ::1 only"), (["--address", "\x1b[2J"], "127.0.0.1 or ::1 only"), (["--port", "80x"], "is no port"),
    (["--port", "65536"], "is no port"), (["--port", "-1"], "port"), (["more"], "more"),
])  # fmt: skip
def test_what_it_cannot_do_is_one_clear_sentence(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *options]) == 64
    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err


def test_inside_a_sandbox_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker").touch()
    monkeypatch.setattr(serve, "INSIDE", str(tmp_path / "broker"))
    assert main(["serve"]) == 64
    assert "Run broker serve on the host" in capsys.readouterr().err


# --- how a refusal could be allowed


def deny(what: str) -> Deny:
    return Deny(what=what, effects=frozenset({Risk.NETWORK_EGRESS}), layer=Layer.PROFILE, rule="program.curl", reason="no", hint="do not")


def test_a_denial_is_found_in_the_record_as_events_show_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BROKER_STATE_DIR", str(tmp_path))
    with Journal.create(tmp_path) as journal:
        journal.append(event.RUN_STARTED, profile="builder")
        journal.append(event.TASK_CREATED, profile="builder", trust="trusted")
        log = DenialLog(journal)
        for what in ("curl x", "curl y", f"curl {'z' * 3000}"):
            log.add("exec", deny(what))
        run = journal.path.stem
        found = serve.explained(run, "root", "exec", "program.curl", "curl y")
        assert found["id"] == f"{run}:4"
        assert main(["events", "show", found["id"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["how"] == found["how"]
        assert serve.explained(run, "root", "exec", "program.curl", f"curl {'z' * 100}…")["id"] == f"{run}:5"
        for other in (("root/1", "exec", "curl y"), ("root", "shell", "curl y"), ("root", "exec", "curl")):
            task, tool, what = other
            assert "reason" in serve.explained(run, task, tool, "program.curl", what)
    assert "20000101-000000-0000" in serve.explained("20000101-000000-0000", "root", "exec", "program.curl", "curl y")["reason"]
