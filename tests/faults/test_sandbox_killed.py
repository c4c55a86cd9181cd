"""The sandbox is ended from outside: the task is over at once, and the result says that it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from conformance.driver import Broker, command_of, docker_client, kill, parent_of, until

RUNNING = ("bash", "-c", "sleep 600 & echo running; setsid sleep 600 & sleep 600")


def guard_of(broker: Broker) -> int:
    """The host's pid of the guard: process 1 of the sandbox, the ancestor of all in it."""
    inside = broker.inside()
    return next(pid for pid in inside if command_of(pid) == b"guard")


def monitor_of(broker: Broker) -> int:
    """The host's pid of bubblewrap itself, which waits outside for the guard."""
    pid = parent_of(guard_of(broker))
    assert command_of(pid) == b"bwrap"
    return pid


def test_when_the_guard_is_killed_everything_ends_and_it_is_70(broker: Broker) -> None:
    with broker.started(*RUNNING) as running:
        running.read_until(b"running")
        begun = time.monotonic()
        kill(guard_of(broker))
        done = running.finish()

    assert time.monotonic() - begun < 15
    assert done.code == 70
    assert broker.nothing_survives()
    assert broker.verified()
    assert any(event["type"] == "guard.lost" for event in broker.events())
    assert broker.events()[-1]["type"] == "run.finished"


def test_a_guard_that_is_stopped_does_not_hold_up_the_timeout(broker: Broker) -> None:
    with broker.started(*RUNNING, options=["--timeout", "3s"]) as running:
        running.read_until(b"running")
        guard = guard_of(broker)
        kill(guard, signal.SIGSTOP)
        done = running.finish()

    assert done.code == 124
    assert broker.nothing_survives()


@pytest.mark.parametrize("engine", [pytest.param("bubblewrap", marks=pytest.mark.needs_bubblewrap)])
def test_when_bubblewraps_monitor_is_killed_nothing_survives_the_run(broker: Broker) -> None:
    with broker.started("sh", "-c", "echo running; read line; exit 4", stdin=-1) as running:
        running.read_until(b"running")
        kill(monitor_of(broker))
        running._stdin = b"go on\n"
        done = running.finish()

    # The monitor only waits: whether the task ends with it or goes on, it ends with broker.
    assert done.code in (4, 70)
    assert broker.nothing_survives()
    assert broker.verified()


@pytest.mark.parametrize("engine", [pytest.param("docker", marks=pytest.mark.needs_docker(image="python"))])
@pytest.mark.parametrize("way", ["kill", "stop", "remove"])
def test_when_the_engine_is_told_to_end_the_container_the_task_is_over(broker: Broker, way: str) -> None:
    client = docker_client()
    ends: dict[str, Callable[[str], object]] = {
        "kill": client.kill,
        "stop": lambda found: client.stop(found, timeout=1),
        "remove": lambda found: client.remove_container(found, force=True),
    }
    with broker.started(*RUNNING) as running:
        running.read_until(b"running")
        [container] = broker.containers()
        ends[way](container)
        done = running.finish()
    client.close()

    assert done.code == 70
    assert broker.nothing_survives()
    assert broker.containers() == []
    assert broker.events()[-1]["type"] == "run.finished"
    assert broker.verified()


def test_a_process_inside_cannot_end_the_guard(broker: Broker) -> None:
    script = "sleep 600 & for n in KILL TERM STOP INT SEGV ABRT; do kill -$n 1; done; kill -KILL -1; wait $!; exit 3"

    done = broker.run("bash", "-c", script)

    # `-1` is everybody but process 1 and the caller (kill(2)): the sleeper is gone, the guard is not.
    assert (done.code, done["status"]) == (3, "finished")


def test_killing_one_process_inside_ends_that_process_only(broker: Broker) -> None:
    with broker.started("bash", "-c", "sleep 600 & echo running; wait $!; echo code $?") as running:
        running.read_until(b"running\n")
        sleeper = until(lambda: next((p for p in broker.inside() if command_of(p) == b"sleep"), 0), "the sleeper")
        kill(sleeper)
        done = running.finish()

    assert (done.code, done.out) == (0, b"running\ncode 137\n")
