"""Approvals, end to end on each engine: a program is held until the operator has answered, and nothing else of its task is."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, Running, until
from conformance.fits_schema import undescribed, unfit
from conformance.replays import judged_otherwise


@pytest.fixture(autouse=True)
def alone(broker: Broker) -> None:
    """Who watches sees the questions of every run of this user: each of these tests has a runtime folder of its own."""
    broker.environment["BROKER_RUNTIME_DIR"] = str(broker.folder / "runtime")

ASK = ["--ask"]
LIMITS = {"max_risk": "local_write", "effects": {}}


def waiting(broker: Broker) -> list[dict[str, Any]]:
    done = broker.verb("approvals", "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return [row for row in rows if row["run"] == (broker.journals() or [Path("none")])[-1].stem]


def asked(broker: Broker, what: str) -> str:
    """Wait until this is asked, and return the question's name."""
    row = until(lambda: next((row for row in waiting(broker) if what in row["what"]), None), f"a question about {what}")
    return str(row["id"])


def held(broker: Broker, script: str, *options: str) -> Any:
    broker.profile("held", **LIMITS)
    return broker.started("bash", "-c", script, options=[*ASK, *options], profile="held")


def finished(broker: Broker, running: Running) -> bytes:
    done = running.finish()
    events = broker.events()
    assert (unfit(events), undescribed(events)) == ([], set())
    assert judged_otherwise(events) == []
    return done.out


def test_a_program_is_held_until_it_is_approved_and_the_rest_of_its_task_goes_on(broker: Broker) -> None:
    with held(broker, "curl -s http://a.invalid & ls >/dev/null; touch other; echo free; wait $!; echo $?") as running:
        name = asked(broker, "curl -s http://a.invalid")
        running.read_until(b"free")
        done = broker.verb("approvals", "approve", name)
        assert (done.returncode, done.stdout) == (0, f"{name} approved once\n")
        out = finished(broker, running)
    assert out == b"free\n6\n"  # curl has started, and found no network all the same
    kinds = [one["type"] for one in broker.events() if one["type"].startswith("approval.")]
    assert kinds == ["approval.asked", "approval.answered"]
    assert next(one["channel"] for one in broker.events() if one["type"] == "approval.answered") == "approvals"


def test_what_is_approved_is_named_with_its_run(broker: Broker) -> None:
    with held(broker, "curl -s http://a.invalid; echo $?") as running:
        number = asked(broker, "curl").rpartition(".")[2]
        for name in (number, f"last.{number}"):
            done = broker.verb("approvals", "approve", name)
            assert (done.returncode, "RUN.NUMBER" in done.stderr) == (64, True)
        assert broker.verb("approvals", "deny", number).returncode == 0
        assert finished(broker, running) == b"126\n"


def test_what_is_said_of_a_question_on_stderr_names_it_so_that_it_can_be_approved(broker: Broker) -> None:
    broker.profile("held", **LIMITS)
    with broker.started("bash", "-c", "curl -s http://a.invalid; echo $?", options=ASK, profile="held", quiet=False) as running:
        asked(broker, "curl")
        assert running.process.stderr is not None
        said = b""
        while b"approve " not in said:
            said += running.process.stderr.readline()
        name = said.partition(b"approve ")[2].partition(b",")[0].decode()
        assert broker.verb("approvals", "approve", name).returncode == 0
        assert finished(broker, running) == b"6\n"


def test_what_is_denied_does_not_start_and_its_process_reads_why(broker: Broker) -> None:
    with held(broker, "curl -s http://a.invalid; echo $?; curl -s http://a.invalid; echo $?") as running:
        name = asked(broker, "curl")
        assert broker.verb("approvals", "deny", name, "--why", "use the cache").returncode == 0
        done = running.finish()
    assert done.out == b"126\n126\n"  # asked again at once, it is not asked about
    assert b"said no: use the cache" in done.err
    assert [row["rule"] for row in done["denials"]] == ["approval.denied", "approval.again"]
    assert len([one for one in broker.events() if one["type"] == "approval.asked"]) == 1


def test_nobody_answers_in_time(broker: Broker) -> None:
    with held(broker, "curl -s http://a.invalid; echo $?", "--ask-timeout", "1s") as running:
        out = finished(broker, running)
    assert out == b"126\n"
    assert [one["channel"] for one in broker.events() if one["type"] == "approval.answered"] == ["timeout"]


def test_the_question_of_a_process_that_dies_is_withdrawn(broker: Broker) -> None:
    script = "curl -s http://a.invalid & read line; kill -9 $!; wait; echo gone; read line; echo over"
    broker.profile("held", **LIMITS)
    with broker.started("bash", "-c", script, options=ASK, profile="held", stdin=subprocess.PIPE) as running:
        assert running.process.stdin is not None
        name = asked(broker, "curl")
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        running.read_until(b"gone")
        until(lambda: not waiting(broker), "the end of the question")
        assert broker.verb("approvals", "approve", name).returncode == 1
        out = finished(broker, running)
    assert out == b"gone\nover\n"
    assert [one["reason"] for one in broker.events() if one["type"] == "approval.withdrawn"] == ["the process that asked is gone"]


def test_at_the_end_of_the_run_what_still_waits_is_withdrawn(broker: Broker) -> None:
    with held(broker, "curl -s http://a.invalid & echo over") as running:
        finished(broker, running)
    rows = [one for one in broker.events() if one["type"].startswith("approval.")]
    assert [one["type"] for one in rows] in ([], ["approval.asked", "approval.withdrawn"])
    assert broker.verified()


def test_without_the_option_nobody_is_asked(broker: Broker) -> None:
    broker.profile("held", **LIMITS)
    done = broker.run("bash", "-c", "curl -s http://a.invalid; echo $?", profile="held")

    assert done.out == b"126\n"
    assert not any(one["type"].startswith("approval.") for one in broker.events())


def test_nobody_is_asked_for_an_untrusted_task(broker: Broker) -> None:
    done = broker.run("true", options=[*ASK, "--trust", "untrusted"])

    assert done.code == 64
    assert b"an untrusted task" in done.err


def test_no_task_reaches_the_approvals(broker: Broker) -> None:
    with held(broker, "broker approvals; echo $?; ls /run/broker; cat /proc/net/unix | grep -c control; curl -s http://a.invalid; echo $?") as running:
        name = asked(broker, "curl")
        broker.verb("approvals", "deny", name)
        out = finished(broker, running)
    first, *_, sockets, last = out.splitlines()
    assert first != b"0"
    assert (sockets, last) == (b"0", b"126")


def test_the_fourth_approval_takes_a_word_typed_at_a_terminal(broker: Broker) -> None:
    with held(broker, "for n in 1 2 3 4; do curl -s http://a.invalid/$n; echo $? $n; done") as running:
        for number in range(1, 4):
            assert broker.verb("approvals", "approve", asked(broker, f"a.invalid/{number}")).returncode == 0
        name = asked(broker, "a.invalid/4")
        without = subprocess.run(
            broker.words("approvals", "approve", name), env=broker.settings(), capture_output=True, start_new_session=True, timeout=60,
        )  # fmt: skip
        assert without.returncode == 1
        assert b"typed at a terminal" in without.stderr
        assert typed(broker, name, early=b"approve\n", then=b"") != 0
        assert typed(broker, name, early=b"", then=b"approve\n") == 0
        out = finished(broker, running)
    assert out.splitlines()[-1].endswith(b" 4")
    answered = [one for one in broker.events() if one["type"] == "approval.answered"]
    assert [one["word"] for one in answered] == [False, False, False, True]


def test_a_watch_on_a_terminal_shows_the_question_and_takes_the_answer(broker: Broker) -> None:
    pid, terminal = pty.fork()
    if not pid:
        words = [os.fsencode(word) for word in broker.words("approvals", "watch")]
        os.execve(shutil.which(words[0]) or words[0], words, broker.settings())
    try:
        with held(broker, "curl -s $'http://a.invalid/\\e[31m'; echo $?; curl -s http://b.invalid; echo $?") as running:
            seen = prompted(terminal, b"http://a.invalid/")
            os.write(terminal, b"o\n")  # too soon
            prompted(terminal, b"")
            for pasted in (b"o\no\n", b"x" * 64 + b"o\n"):
                answered(terminal, pasted)
                prompted(terminal, b"")
            assert len(waiting(broker)) == 1
            answered(terminal, b"o\n")
            assert b"\x1b[31m" not in seen.partition(b"argv   2")[2]
            assert b"http://a.invalid/\\x1b[31m" in seen
            prompted(terminal, b"http://b.invalid")
            answered(terminal, b"w\n")
            prompted(terminal, b"", b"why: ")
            os.write(terminal, b"not now\n")
            done = running.finish()
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert done.out == b"3\n126\n"  # curl has started, and does not like the address
    assert b"said no: not now" in done.err


UNREAD = 0.7  # seconds in which no line counts


def prompted(terminal: int, question: bytes, prompt: bytes = b"say why, s for the session: ") -> bytes:
    """Wait for the prompt behind a question."""
    seen, end = b"", time.monotonic() + 30
    while question not in seen or seen.rfind(prompt) < max(0, seen.find(question)):
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    return seen


def answered(terminal: int, keys: bytes) -> None:
    """Read what is asked, and type."""
    time.sleep(UNREAD + 0.2)
    os.write(terminal, keys)


def typed(broker: Broker, name: str, *, early: bytes, then: bytes) -> int:
    """Approve on a terminal of our own; `early` is typed before the prompt for the word, `then` after it, and then Ctrl-D."""
    pid, terminal = pty.fork()
    if not pid:
        words = [os.fsencode(word) for word in broker.words("approvals", "approve", name)]
        os.execve(shutil.which(words[0]) or words[0], words, broker.settings())
    try:
        os.write(terminal, early)
        seen, end = b"", time.monotonic() + 30
        while b"type approve: " not in seen:
            assert time.monotonic() < end
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536)
        assert b"argv   2  http://a.invalid/4" in seen
        os.write(terminal, then or b"\x04")
        while True:
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(terminal)
