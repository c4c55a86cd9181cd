"""What a task may use: the limit holds, the result says which, and the host does not notice."""

from __future__ import annotations

import pytest

from conformance.driver import Broker

# Touches every page, so that the memory is really used.
HUNGRY = "block = bytearray(512 << 20)\nfor at in range(0, len(block), 4096): block[at] = 1\nprint('survived')"
# Tries 300 children that stay. One that lives says so; one that the guard ended has only a status.
MANY = """
import os, select, signal
reader, writer = os.pipe()
children, refused, said = set(), 0, 0
for _ in range(300):
    try:
        pid = os.fork()
    except BlockingIOError:
        refused += 1
        continue
    if pid == 0:
        os.write(writer, b'x')
        while True: signal.pause()
    children.add(pid)
ended = 0
while said + ended < len(children):
    if select.select([reader], [], [], 0.05)[0]:
        said += len(os.read(reader, 512))
    while (gone := os.waitpid(-1, os.WNOHANG)[0] if ended < len(children) else 0):
        ended += 1
print(said, refused + ended)
for pid in children:
    try: os.kill(pid, 9)
    except ProcessLookupError: pass
"""


def test_over_the_memory_limit_is_told_as_such(broker: Broker) -> None:
    small = broker.profile("small", {"memory": "128M"})

    done = broker.run("python3", "-c", HUNGRY, profile=small)

    assert (done.code, done["status"], done["oom"], done["signal"]) == (137, "memory", True, "SIGKILL")
    assert b"survived" not in done.out
    assert "memory" in done["reason"]
    assert any(event["type"] == "limits.exceeded" and event["limit"] == "memory" for event in broker.events())


def test_a_child_over_the_memory_limit_is_told_although_the_command_itself_goes_on(broker: Broker) -> None:
    small = broker.profile("small", {"memory": "128M"})

    done = broker.run("bash", "-c", f'python3 -c "{HUNGRY}"; echo child $?; exit 3', profile=small)

    assert done["oom"]
    assert b"survived" not in done.out


def test_below_the_memory_limit_nothing_is_said(broker: Broker) -> None:
    ample = broker.profile("ample", {"memory": "1G"})

    done = broker.run("python3", "-c", HUNGRY, profile=ample)

    assert (done.code, done["oom"], done.out) == (0, False, b"survived\n")
    assert done["usage"]["peak_memory"] > 500 << 20


def test_three_hundred_forks_under_a_limit_of_sixty_four_stay_under_it(broker: Broker) -> None:
    few = broker.profile("few", {"pids": 64})

    done = broker.run("python3", "-c", MANY, profile=few)

    assert done.code == 0, done.err
    alive, _refused = map(int, done.out.split())
    assert 55 <= alive < 64  # python3 itself is one of the 64
    assert broker.run("true", profile=few).code == 0


def test_a_fork_bomb_is_held_and_ends_with_the_task(broker: Broker) -> None:
    few = broker.profile("few", {"pids": 64})

    done = broker.run("bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 600", options=["--timeout", "2s"], profile=few)

    assert done.code in (124, 137, 1, 254)
    assert broker.nothing_survives()


def test_temporary_space_is_sized(broker: Broker) -> None:
    tight = broker.profile("tight", {"tmp_size": "8M", "shm_size": "4M"})

    done = broker.run(
        "bash", "-c",
        "for place in /tmp $HOME /dev/shm; do head -c 16M /dev/zero >$place/big 2>/dev/null; stat -c %s $place/big; rm -f $place/big; done",
        profile=tight,
    )  # fmt: skip

    assert [int(size) for size in done.out.split()] == [8 << 20, 8 << 20, 4 << 20]


def test_usage_is_accounted_from_outside(broker: Broker) -> None:
    work = "import time\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass\nprint('x' * 1000)"

    done = broker.run("python3", "-c", work)

    assert 0.7 <= done["usage"]["cpu_seconds"] < 5
    assert done["usage"]["wall_seconds"] >= 0.7
    assert done["usage"]["output_bytes"] == 1001
    assert done["usage"]["peak_memory"] > 4 << 20
    assert done["usage"]["peak_processes"] >= 1
    measured = [event for event in broker.events() if event["type"] == "usage.measured"]
    assert measured and measured[0]["cpu_seconds"] == done["usage"]["cpu_seconds"]


DAEMON = """
import os, sys, time
for _ in range(2):
    if os.fork(): os._exit(0)
    os.setsid()
open('/tmp/alive', 'w').close()
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["setsid sleep 600 >/dev/null 2>&1 </dev/null &", "nohup sleep 600 >/dev/null 2>&1 &", "(sleep 600 &)"])
def test_nothing_that_the_command_left_running_survives_it(broker: Broker, way: str) -> None:
    done = broker.run("bash", "-c", f"{way}\nexit 3")

    assert done.code == 3
    assert broker.inside() == []


def test_a_daemon_that_left_its_session_twice_does_not_survive(broker: Broker) -> None:
    broker.file("daemon.py", DAEMON)

    done = broker.run("bash", "-c", "python3 daemon.py; until [ -e /tmp/alive ]; do read -t 0.01 _ <> <(:); done; exit 0")

    assert done.code == 0
    assert broker.inside() == []


def test_the_limits_hold_for_an_ordinary_user(by_somebody: Broker) -> None:
    small = by_somebody.profile("small", {"memory": "128M", "pids": 64})

    hungry = by_somebody.run("python3", "-c", HUNGRY + "\nimport time; time.sleep(600)", profile=small)
    many = by_somebody.run("python3", "-c", MANY, profile=small)

    assert (hungry.code, hungry["status"], hungry["oom"]) == (137, "memory", True)
    assert many.code in (0, 137)
    assert not many.out or int(many.out.split()[0]) < 64
