"""What a task might try while its operator is asked: each idea, on a real engine. What was approved starts, or nothing does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, Running, until
from conformance.fits_schema import undescribed, unfit
from conformance.replays import judged_otherwise

LIMITS: dict[str, Any] = {"max_risk": "local_write", "effects": {}}

RUNS: dict[str, Any] = {**LIMITS, "allowlist": ["make"]}  # an entry may run code of the workspace: the kernel lets it


@pytest.fixture(autouse=True)
def alone(broker: Broker) -> None:
    """Who answers sees the questions of every run of this user: each of these tests has a runtime folder of its own."""
    broker.environment["BROKER_RUNTIME_DIR"] = str(broker.folder / "runtime")


def waiting(broker: Broker) -> list[dict[str, Any]]:
    done = broker.verb("approvals", "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def asked(broker: Broker, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    return until(lambda: next((row for row in waiting(broker) if what(row)), None), "a question")


def say(running: Running, line: str) -> None:
    assert running.process.stdin is not None
    running.process.stdin.write(line.encode() + b"\n")
    running.process.stdin.flush()


def sound(broker: Broker) -> list[dict[str, Any]]:
    events = broker.events()
    assert (unfit(events), undescribed(events)) == ([], set())
    assert judged_otherwise(events) == []
    return events


SWAPS = {
    # what is started, and what is done to it while the operator looks
    "written in place": ("./curl", "cat evil > curl"),
    "another file in its place": ("./curl", "cp evil new; mv new curl"),
    "a hard link in its place": ("./curl", "ln -f evil curl"),
    "a link that leads elsewhere": ("bin/curl", "ln -sfn ../evil bin/curl"),
    "a folder that leads elsewhere": ("alias/curl", "ln -sfn other alias"),
    "a file that a word names": ("./curl -K config", "cat evil > config"),
    "a word's link": ("./curl -K named", "ln -sfn evil named"),
    "the interpreter": ("own/curl", "cat evil > sh"),
    "the interpreter of the interpreter": ("far/curl", "cp /usr/bin/echo sh"),
    "a file in quotes in the text of a shell": ("exec -a curl sh -c '. \"./config\"; curl x'", "cat evil > config"),
    "a file behind an option of one letter": ("./curl -Kconfig", "cat evil > config"),
    "the folder that it is in": ("cd a; ./curl", "mv a b; mkdir a; cp evil a/curl"),
}  # fmt: skip


@pytest.mark.parametrize("how", SWAPS)
def test_what_is_swapped_while_the_operator_looks_does_not_start(broker: Broker, how: str) -> None:
    start, swap = SWAPS[how]
    for name, content in (
        ("curl", b"#!/bin/sh\necho good\n"), ("evil", b"#!/bin/sh\necho owned\n"), ("sh", Path("/bin/sh").resolve().read_bytes()),
        ("own/curl", f"#!{broker.workspace}/sh\necho good\n".encode()), ("a/curl", b"#!/bin/sh\necho good\n"), ("config", b"x"),
        ("wrap", f"#!{broker.workspace}/sh\n".encode()), ("far/curl", f"#!{broker.workspace}/wrap\necho good\n".encode()),
        ("other/curl", b"#!/bin/sh\necho owned\n"), ("bin/here", b""),
    ):  # fmt: skip
        place = broker.workspace / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755)
    for name, target in (("bin/curl", "../curl"), ("alias", "a"), ("named", "config")):
        (broker.workspace / name).symlink_to(target)
    broker.profile("runs", **RUNS)
    script = f"( {start} ) & read line; {swap}; echo swapped; read line; wait"
    with broker.started("bash", "-c", script, options=["--ask"], profile="runs", stdin=subprocess.PIPE) as running:
        row = asked(broker, lambda row: row["tool"] == "exec")
        say(running, "swap")
        running.read_until(b"swapped")
        broker.verb("approvals", "approve", row["id"])
        say(running, "on")
        done = running.finish()
    assert done.out.split() == [b"swapped"], done.err
    assert [denial["rule"] for denial in done["denials"]] == ["approval.changed"]
    sound(broker)


def test_what_is_left_as_it_was_starts(broker: Broker) -> None:
    (broker.workspace / "a").mkdir()
    for name, target in (("a/curl", ""), ("link", "a/curl"), ("alias", "a")):
        place = broker.workspace / name
        place.symlink_to(target) if target else place.write_text("#!/bin/sh\necho good $0\n")
    (broker.workspace / "a/curl").chmod(0o755)
    broker.profile("runs", **RUNS)
    with broker.started("bash", "-c", "cd alias; (./curl); (../alias/curl -K ../link)", options=["--ask"], profile="runs") as running:
        for number in (1, 2):
            row = asked(broker, lambda row: row["approval"] == number)  # noqa: B023 - it is called now
            assert not broker.verb("approvals", "approve", row["id"]).returncode
        done = running.finish()
    assert done.out == b"good ./curl\ngood ../alias/curl\n"


@pytest.mark.parametrize("place", ["$PWD", "/tmp"])
def test_nobody_is_asked_about_what_the_kernel_would_not_start_whatever_the_answer(broker: Broker, place: str) -> None:
    broker.file("curl", "#!/bin/sh\necho started\n", 0o755)
    broker.profile("held", **LIMITS)
    script = f"cp curl {place}/wget; {place}/wget http://x; echo $?"
    done = broker.run("bash", "-c", script, options=["--ask", "--ask-timeout", "20s"], profile="held")

    assert done.out == b"126\n"
    [denial] = done["denials"]
    assert (denial["approvable"], "Nobody was asked" in denial["reason"]) == (False, True)
    assert "code_execution" in denial["hint"]
    assert not [one for one in sound(broker) if one["type"].startswith("approval.")]


def test_what_nobody_can_look_at_again_is_not_asked_about(broker: Broker) -> None:
    broker.profile("held", max_risk="code_execution", effects={})
    python = (
        "import os; f = os.memfd_create('curl', 0); os.write(f, open('/bin/true', 'rb').read())\n"
        "try:\n    os.execv(f'/proc/self/fd/{f}', ['curl', 'http://x'])\nexcept OSError as e:\n    print('refused')"
    )
    done = broker.run("python3", "-c", python, options=["--ask"], profile="held")

    assert done.out == b"refused\n"
    assert not [one for one in sound(broker) if one["type"].startswith("approval.")]


def test_a_flood_of_questions_is_bounded_and_everything_else_goes_on(broker: Broker) -> None:
    broker.profile("held", **LIMITS)
    flood = "for p in 1 2 3 4 5 6 7 8; do (for n in {1..12}; do curl -s http://$p.$n.invalid & done; wait) & done 2>/dev/null; read line; ls /etc/hostname; kill 0"
    with broker.started("bash", "-c", flood, options=["--ask"], profile="held", stdin=subprocess.PIPE) as running:
        rows = until(lambda: found if len(found := waiting(broker)) == 32 else None, "32 questions")
        assert len({row["approval"] for row in rows}) == 32
        say(running, "on")
        running.read_until(b"/etc/hostname")
        done = running.finish()
    assert "approval.queue" in {row["rule"] for row in done["denials"]}
    events = sound(broker)
    assert len([one for one in events if one["type"] == "approval.asked"]) >= 32
    assert not [one for one in events if one["type"] == "approval.answered" and one["verdict"] == "allow"]


def test_no_text_of_a_task_forges_a_line_of_its_question(broker: Broker) -> None:
    broker.profile("held", **LIMITS)
    hostile = "x\n  program  /bin/true\r\x1b[2J\x1b]0;t\x07\u202e\u200b" + "A" * 100_000
    with broker.started("curl", hostile, options=["--ask"], profile="held"):
        pass
    with broker.started("bash", "-c", 'curl "$1"; echo $?', "sh", hostile, options=["--ask"], profile="held") as running:
        row = asked(broker, lambda row: row["tool"] == "exec")
        assert row["argv"][1] == hostile
        shown = broker.verb("approvals", "show", row["id"]).stdout
        assert shown.isascii() or all(line.isprintable() for line in shown.splitlines())
        assert [line.split()[1] for line in shown.splitlines() if line.startswith("  program")] == [row["program"]]
        broker.verb("approvals", "deny", row["id"])
        running.finish()


def test_a_sub_task_asks_nobody_whatever_its_profile_says(broker: Broker) -> None:
    broker.profile("held", **LIMITS, approvals={"ask": True})
    script = "broker delegate --profile held --trust trusted -- bash -c 'curl -s http://a.invalid; echo $?'; true"
    done = broker.run("bash", "-c", script, options=["--ask"], profile="held")

    result = json.loads(done.out)
    assert (result["status"], result["denials"][0]["effects"]) == ("denied", ["network_egress"])
    assert not [one for one in sound(broker) if one["type"].startswith("approval.")]


def test_broker_exec_has_no_channel_and_denies_at_once(broker: Broker) -> None:
    broker.profile("held", **LIMITS, approvals={"ask": True})
    done = broker.verb("exec", "--engine", broker.engine, "--profile-dir", str(broker.profiles), "-p", "held", "-w", str(broker.workspace), "--", "curl", "http://x")

    assert done.returncode == 126
    assert not [one for one in sound(broker) if one["type"].startswith("approval.")]
