"""A real terminal at both ends: sizes, keys, job control, and a shell that is whole again afterwards."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conformance.driver import Broker, command_of, state_of, until
from conformance.terminal import CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, Terminal, terminal


@contextmanager
def on_terminal(broker: Broker, *command: str, **how: object) -> Iterator[Terminal]:
    """Run a command on a terminal that is broker's own."""
    with terminal(broker.run_words(command, **how), broker.settings(), broker.folder) as made:  # type: ignore[arg-type]
        yield made


@contextmanager
def at_a_shell(broker: Broker) -> Iterator[Terminal]:
    """An interactive bash with job control, as a user has it."""
    settings = {**broker.settings(), "PS1": "prompt% ", "HISTFILE": ""}
    with terminal(["bash", "--norc", "--noprofile", "-i"], settings, broker.folder) as made:
        made.expect("prompt% ")
        made.type("bind 'set enable-bracketed-paste off'\n")
        made.expect("prompt% ")
        yield made


def run_line(broker: Broker, *command: str) -> str:
    return shlex.join(str(word) if isinstance(word, str) else word.decode() for word in broker.run_words(command)) + "\n"


def test_on_a_terminal_the_command_gets_one_of_its_own(broker: Broker) -> None:
    with on_terminal(broker, "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && tty && stty size") as screen:
        screen.expect(r"/dev/(pts/\d+|console)")
        screen.expect("24 80")
        assert screen.wait() == 0


def test_the_terminal_is_the_controlling_one_and_job_control_works_in_it(broker: Broker) -> None:
    with on_terminal(broker, "bash", "--norc", "--noprofile", "-i") as screen:
        screen.expect(r"[#$] $")
        assert b"no job control" not in screen.seen
        screen.type("sleep 600\n")
        until(lambda: b"sleep" in map(command_of, broker.inside()), "the sleeper")
        screen.type(CTRL_Z)
        screen.expect(r"Stopped\s+sleep 600")
        screen.type("kill -KILL %1\n")
        until(lambda: b"sleep" not in map(command_of, broker.inside()), "the sleeper's end")
        screen.type("jobs; echo don''e\n")  # the shell looks at its jobs before each prompt
        screen.expect("done\r\n")
        screen.type("exit 5\n")
        assert screen.wait() == 5


SIZES = """
import os, signal, time
show = lambda *_: os.write(1, b'%d %d\\n' % os.get_terminal_size()[::-1])
signal.signal(signal.SIGWINCH, show)
show()
os.write(1, b'ready\\n')
while True: time.sleep(0.05)
"""


def test_a_resize_reaches_the_command(broker: Broker) -> None:
    with on_terminal(broker, "python3", "-c", SIZES) as screen:
        screen.expect("24 80\r\nready")
        screen.resize(31, 97)
        screen.expect("31 97")
        screen.type(CTRL_C)
        assert screen.wait() == 130


def test_ctrl_c_interrupts_the_command_and_is_130(broker: Broker) -> None:
    with on_terminal(broker, "sh", "-c", "echo ready; exec sleep 600") as screen:
        screen.expect("ready")
        until(screen.is_raw, "broker to take the keys")
        screen.type(CTRL_C)
        assert screen.wait() == 130


def test_ctrl_c_can_be_caught_by_the_command(broker: Broker) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with on_terminal(broker, "bash", "-c", script) as screen:
        screen.expect("ready")
        screen.type(CTRL_C)
        screen.expect("caught")
        assert screen.wait() == 9


def test_ctrl_backslash_is_131_and_ctrl_d_is_the_end_of_input(broker: Broker) -> None:
    with on_terminal(broker, "sh", "-c", "echo ready; exec sleep 600") as screen:
        screen.expect("ready")
        screen.type(CTRL_BACKSLASH)
        assert screen.wait() == 131
    with on_terminal(broker, "sh", "-c", "echo ready; cat; echo ended") as screen:
        screen.expect("ready")
        screen.type("line\n")
        screen.expect("line\r\nline\r\n")
        screen.type(CTRL_D)
        screen.expect("ended")
        assert screen.wait() == 0


def test_ctrl_z_stops_broker_and_fg_goes_on_where_it_was(broker: Broker) -> None:
    with at_a_shell(broker) as screen:
        screen.type(run_line(broker, "sh", "-c", "echo ready; exec cat"))
        screen.expect("ready\r\n")
        screen.type("before\n")
        screen.expect("before\r\nbefore\r\n")
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        screen.expect("prompt% ")
        screen.resize(40, 120)
        screen.type("jobs; stty size\n")
        screen.expect("40 120")
        screen.expect("prompt% ")
        screen.type("fg\n")
        screen.expect("broker")
        until(screen.is_raw, "broker to take the keys again")
        screen.type("after\n")
        screen.expect("after\r\nafter\r\n")
        screen.type(CTRL_D)
        screen.expect("prompt% ")
        screen.type("echo code $?\n")
        screen.expect("code 0")


def test_ctrl_z_works_too_when_the_command_has_no_terminal_of_its_own(broker: Broker) -> None:
    broker.profile("any", sandbox={"workspace": "direct"})  # it sees at once what is made outside
    script = "echo ready; while :; do /bin/true; [ -e stop ] && exit 4; done"
    with at_a_shell(broker) as screen:
        screen.type(run_line(broker, "sh", "-c", script).replace(" run ", " run --no-tty "))
        screen.expect("ready\r\n")
        screen.type(CTRL_Z)
        screen.expect("Stopped")
        screen.expect("prompt% ")
        inside = [pid for pid in broker.inside() if command_of(pid) == b"sh"]
        # D: a shell in vfork(2), which the kernel holds until its stopped child goes on.
        until(lambda: inside and all(state_of(pid) in "TtD" for pid in inside), "the command to stop as well")
        broker.file("stop", "")
        screen.type("fg\n")
        screen.expect("prompt% ")
        screen.type("echo code $?\n")
        screen.expect("code 4")


def test_a_background_job_is_not_stopped_for_input_that_it_does_not_read(broker: Broker) -> None:
    broker.profile("any", sandbox={"workspace": "direct"})  # what it makes is seen at once, and it sees what is made
    with at_a_shell(broker) as screen:
        screen.type(run_line(broker, "sh", "-c", "echo ready >ready; until [ -e go ]; do sleep 0.05; done; exit 6").strip() + " >log &\n")
        screen.expect("prompt% ")
        until((broker.workspace / "ready").exists, "the command")
        broker.file("go", "")
        screen.type("wait %1; echo code $?\n")
        screen.expect("code 6")
        assert b"Stopped" not in screen.seen


def test_a_command_stopped_twice_goes_on_twice(broker: Broker) -> None:
    with at_a_shell(broker) as screen:
        screen.type(run_line(broker, "sh", "-c", "echo ready; exec cat"))
        screen.expect("ready\r\n")
        for word in ("one", "two"):
            screen.type(CTRL_Z)
            screen.expect("Stopped")
            screen.expect("prompt% ")
            screen.type("fg\n")
            screen.expect("broker")
            until(screen.is_raw, "broker to take the keys again")
            screen.type(f"{word}\n")
            screen.expect(f"{word}\r\n{word}\r\n")
        screen.type(CTRL_C)
        screen.expect("prompt% ")
        screen.type("echo code $?\n")
        screen.expect("code 130")


def test_the_shells_terminal_is_as_it_was_even_when_the_command_spoils_its_own(broker: Broker) -> None:
    with at_a_shell(broker) as screen:
        screen.type("stty -a >before\n")
        screen.expect("prompt% ")
        screen.type(run_line(broker, "sh", "-c", "stty raw -echo; kill -9 $$"))
        screen.expect("prompt% ")
        screen.type("echo code $?; stty -a >after; cmp before after && echo sam''e\n")
        screen.expect("code 137")
        screen.expect("same")


def test_everything_that_was_written_before_the_end_appears(broker: Broker) -> None:
    with on_terminal(broker, "seq", "1", "20000") as screen:
        assert screen.wait() == 0
        assert screen.seen.split() == [b"%d" % number for number in range(1, 20001)]


def test_a_timeout_on_a_terminal_gives_the_terminal_back(broker: Broker) -> None:
    with on_terminal(broker, "sh", "-c", "echo ready; sleep 600", options=["--timeout", "1s"]) as screen:
        screen.expect("ready")
        assert screen.wait() == 124
        assert not screen.is_raw()


def test_a_hung_up_terminal_ends_the_task(broker: Broker) -> None:
    with on_terminal(broker, "sh", "-c", "echo ready; exec sleep 600") as screen:
        screen.expect("ready")
        until(screen.is_raw, "broker to take the keys")
        screen.hang_up()
        assert screen.process.wait(30) == 129
    assert broker.nothing_survives()
    assert broker.events()[-1]["signal"] == "SIGHUP"


def test_nohup_outlives_the_terminal(broker: Broker) -> None:
    broker.profile("any", sandbox={"workspace": "direct"})  # it sees what is made meanwhile
    words = ["nohup", *broker.run_words(["sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done; touch went"])]
    with terminal(words, broker.settings(), broker.folder) as screen:
        until(lambda: (broker.folder / "nohup.out").exists() and b"ready" in (broker.folder / "nohup.out").read_bytes(), "the command")
        screen.hang_up()
        broker.file("go", "")
        assert screen.process.wait(30) == 0
    assert (broker.workspace / "went").exists()


def test_without_tty_pipes_are_used_even_on_a_terminal(broker: Broker) -> None:
    with on_terminal(broker, "sh", "-c", "test -t 1 || echo pipes", options=["--no-tty"]) as screen:
        screen.expect("pipes")
        assert screen.wait() == 0


@pytest.mark.parametrize("keys", [CTRL_C, CTRL_BACKSLASH])
def test_keys_reach_the_command_without_a_terminal_of_its_own_too(broker: Broker, keys: bytes) -> None:
    with on_terminal(broker, "sh", "-c", "echo ready; exec sleep 600", options=["--no-tty"]) as screen:
        screen.expect("ready")
        screen.type(keys)
        assert screen.wait() == 128 + (2 if keys == CTRL_C else 3)
