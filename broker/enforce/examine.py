"""Step 4: what this host can enforce, found out by doing it: a sandbox is started, attacked and removed."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from broker.decide.envelope import Envelope
from broker.decide.profile import Profile
from broker.decide.trust import Trust
from broker.enforce import confinement, network, network_cross_check, status, wire
from broker.enforce.calls import CallLine
from broker.enforce.choose import engine_named
from broker.enforce.runtime import make_task_folder, remove_task_folder, runtime_base
from broker.enforce.sandbox import Sandbox
from broker.enforce.workspace import Workspace
from broker.errors import BrokerError, HostCannotEnforce
from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    effective: bool
    evidence: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"name": self.name, "effective": self.effective, "evidence": self.evidence, "remedy": self.remedy}


class _NobodyAsks:
    """The judge of a sandbox in which nothing is started."""

    def exec_asked(self, asked: wire.ExecAsked) -> wire.Answer:
        return wire.Answer(request=asked.request, allow=False)

    def file_asked(self, asked: wire.FileAsked) -> wire.Answer:
        return wire.Answer(request=asked.request, allow=False)

    def withdrawn(self, request: int) -> None:
        return

    def call_came(self, line: CallLine) -> None:
        line.hang_up()

    def connection_came(self, port: int, connection: socket.socket) -> None:
        connection.close()

    def noted(self, message: wire.Note | wire.Executed) -> None:
        return


def host_findings() -> list[Finding]:
    """Look at what decides over all engines: the kernel, Yama, who we are."""
    release, machine = platform.release(), platform.machine()
    tested = machine == "x86_64"
    found = [
        Finding(
            name="kernel", effective=tested, evidence=f"Linux {release} on {machine}",
            remedy="" if tested else "The guard was only tested on x86_64: run the tests before you rely on it",
        )
    ]  # fmt: skip
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    blocked = scope in ("2", "3")
    found.append(
        Finding(
            name="ptrace", effective=not blocked, evidence=f"Yama scope {scope}" if scope else "no Yama",
            remedy="Run: sysctl -w kernel.yama.ptrace_scope=1 (scope 3 needs a reboot)" if blocked else "",
        )
    )  # fmt: skip
    lsm = _read("/sys/kernel/security/lsm")
    if "selinux" in lsm.split(","):
        enforcing = _read("/sys/fs/selinux/enforce") == "1"
        found.append(
            Finding(
                name="selinux", effective=True,
                evidence="enforcing: workspaces of Docker tasks need a label" if enforcing else "permissive",
                remedy="Run: chcon -Rt container_file_t WORKSPACE" if enforcing else "",
            )
        )  # fmt: skip
    who = "root: limits by control groups" if os.geteuid() == 0 else "an ordinary user: memory is watched, not held"
    found.append(Finding(name="rights", effective=True, evidence=who))
    return found


def examine(name: str, image: str = "") -> list[Finding]:
    """Start a sandbox on an engine, let the guard attack it, look at its network twice, and say what held."""
    engine = engine_named(name)
    problem = engine.unavailable(image)
    if problem:
        why, _, remedy = problem.partition(". ")
        return [Finding(name="container", effective=False, evidence=why, remedy=remedy)]
    place = tempfile.mkdtemp(prefix="broker-doctor-")
    folder = make_task_folder(runtime_base(), f"doctor-{os.getpid()}", os.geteuid(), os.getegid())
    try:
        return _attack(name, image, place, folder)
    except HostCannotEnforce as error:
        return [Finding(name=error.layer, effective=False, evidence=error.why, remedy=error.remedy)]
    except BrokerError as error:
        return [Finding(name="container", effective=False, evidence=str(error), remedy="Run with BROKER_DEBUG=1")]
    finally:
        remove_task_folder(folder)
        shutil.rmtree(place, ignore_errors=True)


def _attack(name: str, image: str, place: str, folder: Path) -> list[Finding]:
    from dataclasses import replace

    profile = Profile(name="doctor", requires=())
    profile = replace(profile, sandbox=replace(profile.sandbox, image=image, pids=64))
    space = Workspace(
        path=place, uid=os.geteuid(), gid=os.getegid(), read_only=False, protected=(), masked=()
    )
    confined = confinement.confine(
        Envelope(profile=profile, trust=Trust.TRUSTED), space, task=folder.name, run_dir=str(folder), engine=name,
        command=(),
    )  # fmt: skip
    engine = engine_named(name)
    sandbox = Sandbox.start(engine, confined.plan, confined.setup, _NobodyAsks())
    try:
        facts = network.inspect_network(sandbox.container.init_pid, sandbox.route_socket)
        again = _cross_check(facts, sandbox.container.init_pid, sandbox.route_socket)
        layers = status.judge_layers(
            profile, sandbox.hello, sandbox.proofs, facts, getattr(sandbox.container, "limits_by", "docker")
        )
    finally:
        sandbox.close()
    return [
        Finding(name="container", effective=True, evidence=f"{name} started it, the guard is process 1"),
        *(
            Finding(name=layer.name, effective=layer.effective, evidence=layer.evidence, remedy=layer.remedy)
            for layer in layers
        ),
        again,
    ]


def _cross_check(facts: network.NetworkFacts, init_pid: int, route_socket: socket.socket) -> Finding:
    """Have pyroute2 read the same network: whatever only one of two readers sees, the proof of no network is not one."""
    try:
        again = network_cross_check.read_with_pyroute2(init_pid, route_socket)
        difference = network_cross_check.differences(facts, again)
    except OSError as error:
        difference = f"pyroute2 got no answer: {error}"
    return Finding(
        name="cross_check", effective=not difference, evidence=difference or "pyroute2 reads the same links and routes",
        remedy="Do not rely on the network's proof on this host, and report this" if difference else "",
    )  # fmt: skip


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
