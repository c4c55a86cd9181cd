"""The broker ends by force at any moment: nothing that it started survives, and its record stands."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress

import pytest

from conformance.driver import Broker, kill, until

# Daemons, an orphan that holds stdout, a shell that ignores what it can: what would survive if anything did.
STUBBORN = (
    "trap '' TERM HUP INT; setsid sleep 600 >/dev/null 2>&1 & sleep 600 & echo running;"
    "while :; do /bin/true; done"
)


@pytest.mark.parametrize("moment", ["run.started", "task.created", "layers.proven", "spawn.started", "exec.decided"])
def test_killed_right_after_it_recorded_something(broker: Broker, moment: str) -> None:
    with broker.started("bash", "-c", STUBBORN) as running:
        broker.wait_for_event(moment)
        kill(running.pid)
        running.process.wait(30)

        assert broker.nothing_survives()
        assert broker.verified()


@pytest.mark.parametrize("milliseconds", [50, 120, 190, 260, 330, 450, 600, 900])
def test_killed_at_a_moment_of_chance(broker: Broker, milliseconds: int) -> None:
    with broker.started("bash", "-c", STUBBORN) as running:
        with suppress(TimeoutError):
            # Not a hope: the moment is the point, whatever broker is doing in it.
            time.sleep(milliseconds / 1000)
        kill(running.pid)
        running.process.wait(30)

        assert broker.nothing_survives()
        if broker.journals() and broker.journals()[-1].stat().st_size:
            assert broker.verified()


def test_killed_while_everything_runs(broker: Broker) -> None:
    with broker.started("bash", "-c", STUBBORN) as running:
        running.read_until(b"running")
        until(lambda: len(broker.inside()) >= 4, "the daemons")
        kill(running.pid)

        assert broker.nothing_survives()
        assert broker.verified()
        assert broker.events()[-1]["type"] != "run.finished"


def test_killed_while_output_flows(broker: Broker) -> None:
    with broker.started("bash", "-c", "while :; do echo x; /bin/echo y; done") as running:
        running.read_until(b"x\ny\n" * 100)
        kill(running.pid)

        assert broker.nothing_survives()
        assert broker.verified()


def test_killed_while_it_is_stopped(broker: Broker) -> None:
    with broker.started("bash", "-c", STUBBORN) as running:
        running.read_until(b"running")
        kill(running.pid, signal.SIGSTOP)
        kill(running.pid)

        assert broker.nothing_survives()


def test_a_broker_that_is_stopped_decides_nothing(broker: Broker) -> None:
    with broker.started("python3", "-c", "import os\nprint('ready', flush=True)\ninput()\nos.system('echo started')",
                        stdin=-1) as running:  # fmt: skip
        running.read_until(b"ready\n")
        kill(running.pid, signal.SIGSTOP)
        assert running.process.stdin is not None
        running.process.stdin.write(b"go\n")
        running.process.stdin.flush()
        time.sleep(0.3)  # long enough for a shell to start, if it could
        assert b"started" not in running.seen
        kill(running.pid, signal.SIGCONT)
        done = running.finish()

    assert done.code == 0
    assert done.out == b"ready\nstarted\n"


def test_the_parent_of_broker_ends_and_broker_goes_on_to_its_own_end(broker: Broker) -> None:
    import subprocess

    words = broker.run_words(["sh", "-c", "sleep 1; echo x >file"])
    shell = subprocess.Popen(["sh", "-c", '"$@" & exit 0', "sh", *words], env=broker.settings(), cwd=broker.folder,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    assert shell.wait(30) == 0

    until(lambda: [event for event in broker.events() if event["type"] == "run.finished"], "the end of the run")
    assert (broker.workspace / "file").exists()


def test_what_a_dead_broker_left_is_swept_by_gc(broker: Broker) -> None:
    leave_something(broker)

    done = broker.verb("gc", "--json")

    assert done.returncode == 0, done.stderr
    assert broker.task_folders() == []
    assert broker.containers() == []
    run = broker.journals()[-1].stem
    assert not [line for line in json.loads(broker.verb("gc", "--json").stdout)["removed"] if run in line]


def test_what_a_dead_broker_left_is_swept_by_the_next_start(broker: Broker) -> None:
    leave_something(broker)

    assert broker.run("true").code == 0

    assert broker.task_folders() == []
    assert broker.containers() == []


def leave_something(broker: Broker) -> None:
    """Kill a broker in the middle, and make sure that there is something to sweep.

    Each start of any broker sweeps, those of tests beside this one as well: then it is done again.
    """
    for _ in range(10):
        with broker.started("sh", "-c", "echo running; sleep 600") as running:
            running.read_until(b"running")
            kill(running.pid)
            running.process.wait(30)
        left = bool(broker.task_folders()) and (broker.engine != "docker" or bool(broker.containers()))
        assert broker.nothing_survives()
        if left:
            return
    raise AssertionError("a killed broker leaves nothing behind, ten times")


def test_gc_leaves_a_living_brokers_things_alone(broker: Broker) -> None:
    with broker.started("sh", "-c", "echo running; read line; echo $line", stdin=-1) as running:
        running.read_until(b"running")
        assert broker.verb("gc").returncode == 0
        assert broker.task_folders()
        running._stdin = b"still here\n"
        done = running.finish()

    assert (done.code, done.out) == (0, b"running\nstill here\n")


def test_descriptors_of_the_host_do_not_go_inside(broker: Broker) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    try:
        done = broker.run("python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))")
    finally:
        os.close(reader)
        os.close(writer)

    assert done.out == b"['0', '1', '2', '3']\n"  # 3 is the listing itself
