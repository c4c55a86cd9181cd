"""The guard as hostile code of its own uid sees it: process 1, which must neither be stopped, read nor starved into
letting something through."""

from __future__ import annotations

import json

from conformance.driver import Broker
from escape.hostile import ATTEMPTS, Attempts


def test_no_signal_ends_or_stops_the_guard(attempts: Attempts) -> None:
    """Process 1 of a pid namespace gets no signal from inside that it does not handle (pid_namespaces(7))."""
    assert attempts["signal_guard"] == "there"
    assert isinstance(attempts["pidfd_signal_guard"], list)


def test_the_guards_memory_and_descriptors_are_closed(attempts: Attempts) -> None:
    assert attempts["read_guards_secrets"] == []
    assert attempts["open_guards_folders"] == []


def test_the_broker_listens_to_nobody_else_inside(attempts: Attempts) -> None:
    assert attempts["connect_broker"] == []
    assert "link.sock" not in attempts["run_broker_holds"]


def test_the_tasks_runtime_folder_is_read_only_inside(attempts: Attempts) -> None:
    assert attempts["write_run_broker"] == []


def _alone(broker: Broker, name: str) -> dict[str, object]:
    broker.file("attempts.py", ATTEMPTS.read_text())
    done = broker.run("python3", "attempts.py", json.dumps({"workspace": str(broker.workspace)}), name)
    lines = done.out.splitlines()
    return json.loads(lines[-1]) if lines else {name: f"the task ended: {done.code}"}


def test_a_guard_without_a_descriptor_to_spare_lets_nothing_through(for_somebody: Broker) -> None:
    """prlimit(2) asks for the same uid only: what the guard cannot look at for want of a descriptor is refused."""
    _alone(for_somebody, "limit_guards_descriptors")
    assert not (for_somebody.workspace / ".envrc").exists()
    assert not (for_somebody.workspace / ".bashrc").exists()


def test_the_guards_limits_are_not_the_workloads_to_set(for_somebody: Broker) -> None:
    found = _alone(for_somebody, "starve_guard")["starve_guard"]
    assert found == {"time": "EPERM", "memory": "EPERM"}
