"""How a command ends, and that broker says which of the ways it was."""

from __future__ import annotations

import signal
import time

import pytest

from conformance.driver import Broker, kill


@pytest.mark.parametrize("code", [0, 1, 42, 126, 127, 137, 255])
def test_the_commands_own_exit_code_is_brokers(broker: Broker, code: int) -> None:
    done = broker.run("sh", "-c", f"exit {code}")

    assert done.code == code
    assert (done["status"], done["exit_code"], done["signal"]) == ("finished", code, None)


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "ABRT", "USR1", "PIPE"])
def test_a_signal_that_ends_the_command_is_told_apart_from_an_exit_code(broker: Broker, name: str) -> None:
    done = broker.run("sh", "-c", f"kill -{name} $$")

    number = getattr(signal, f"SIG{name}")
    assert done.code == 128 + number
    assert (done["status"], done["signal"]) == ("signalled", f"SIG{name}")
    assert not done["timed_out"] and not done["oom"]


def test_a_program_that_is_not_there_is_127(broker: Broker) -> None:
    done = broker.run("no-such-program", "--help")

    assert (done.code, done["status"]) == (127, "not_found")
    assert "not found" in done["reason"]


def test_a_path_that_is_not_there_is_127(broker: Broker) -> None:
    assert broker.run("./no-such-program").code == 127


def test_a_file_that_is_not_executable_is_126(broker: Broker) -> None:
    broker.file("notes.txt", "hello\n")

    done = broker.run("./notes.txt")

    assert done.code == 126
    assert done["status"] == "failed"


def test_a_script_whose_interpreter_is_missing_is_not_taken_for_success(broker: Broker) -> None:
    broker.file("script", "#!/no/such/interpreter\n", 0o755)

    assert broker.run("./script").code in (126, 127)


def test_a_program_of_the_workspace_runs_by_its_relative_path(broker: Broker) -> None:
    broker.file("tools/hello", "#!/bin/sh\necho hello $1\n", 0o755)

    done = broker.run("tools/hello", "you")

    assert (done.code, done.out) == (0, b"hello you\n")


def test_what_the_command_started_is_reaped_and_only_the_commands_own_code_counts(broker: Broker) -> None:
    done = broker.run("sh", "-c", "(exit 9) & (kill -9 $$) & sleep 0.2; exit 3")

    # `$$` in a subshell is the main shell's pid: the kill ends the command itself.
    assert (done.code, done["signal"]) == (137, "SIGKILL")


def test_a_timeout_ends_everything_and_is_124(broker: Broker) -> None:
    begun = time.monotonic()
    done = broker.run("sh", "-c", "echo begun; sleep 600 & setsid sleep 600 & sleep 600", options=["--timeout", "1s"])

    assert (done.code, done["status"], done["timed_out"]) == (124, "timeout", True)
    assert done.out == b"begun\n"
    assert time.monotonic() - begun < 20


def test_a_timeout_of_the_profile_counts_and_the_command_line_cannot_raise_it(broker: Broker) -> None:
    brief = broker.profile("brief", {"time": "1s"})

    done = broker.run("sleep", "600", options=["--timeout", "10m"], profile=brief)

    assert (done.code, done["timed_out"]) == (124, True)


def test_a_command_that_ignores_every_signal_ends_at_its_timeout(broker: Broker) -> None:
    ignore = "import signal, time\nfor n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)"

    done = broker.run("python3", "-c", ignore, options=["--timeout", "1s"])

    assert (done.code, done["timed_out"]) == (124, True)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1"])
def test_a_signal_to_broker_reaches_the_command(broker: Broker, name: str) -> None:
    number = getattr(signal, name)
    caught = f"import signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(7))\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"
    with broker.started("python3", "-c", caught) as running:
        running.read_until(b"ready")
        kill(running.pid, number)
        done = running.finish()

    assert (done.code, done["status"]) == (7, "finished")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_command_ended_by_a_forwarded_signal_is_told_as_that_signal(broker: Broker, name: str) -> None:
    number = getattr(signal, name)
    with broker.started("sh", "-c", "echo ready; exec sleep 600") as running:
        running.read_until(b"ready")
        kill(running.pid, number)
        done = running.finish()

    assert (done.code, done["signal"]) == (128 + number, name)


def test_a_command_that_ignores_sigterm_is_ended_all_the_same(broker: Broker) -> None:
    with broker.started("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done") as running:
        running.read_until(b"ready")
        kill(running.pid, signal.SIGTERM)
        done = running.finish(30)

    assert done.code == 143
    assert done["status"] == "signalled"


def test_each_run_has_a_journal_that_verifies_and_tells_the_result(broker: Broker) -> None:
    done = broker.run("sh", "-c", "exit 5")

    assert broker.verified()
    events = broker.events()
    kinds = [event["type"] for event in events if event["type"] != "sandbox.swept"]  # another's leftovers
    assert kinds[:4] == ["run.started", "task.created", "network.inspected", "layers.proven"]
    assert "spawn.exited" in kinds
    assert events[-1]["type"] == "run.finished"
    assert events[-1]["exit_code"] == 5
    assert done["journal"] == str(broker.journals()[-1])
    survivors = [event for event in events if event["type"] == "survivors.killed"]
    assert survivors and survivors[0]["survivors"] == []


def test_the_header_tells_the_engine_and_the_layers_and_the_summary_the_journal(broker: Broker) -> None:
    done = broker.run("true", quiet=False)

    said = done.err.decode()
    assert f"engine {broker.engine}" in said
    assert "no network" in said and "NOT effective" not in said
    assert done["journal"] in said
    assert {layer["name"]: layer["effective"] for layer in done["layers"]} == dict.fromkeys(
        ("network", "exec_gate", "landlock", "seccomp", "file_labels", "limits"), True
    )
