"""Hostile code in a sandbox, and the host that it is tried on.

Most attempts are made in one run per engine: a sandbox for each of them would cost minutes. A test then reads the
line of its own attempt, and looks at the host itself.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, remove_folder

PROBES = Path(__file__).parent / "probes"
ATTEMPTS = PROBES / "attempts.py"


@functools.cache
def probe(name: str) -> Path:
    """Compile a probe on the host, static, and return the program."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler, and the attack needs one")
    made = Path(tempfile.mkdtemp(prefix="broker-probe-", dir="/tmp")) / Path(name).name
    atexit.register(shutil.rmtree, made.parent, ignore_errors=True)
    made.parent.chmod(0o755)
    subprocess.run(
        [compiler, "-static", "-O1", "-pthread", "-o", str(made), str(PROBES / f"{name}.c")],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


@dataclass(frozen=True, slots=True)
class Attempts:
    """What hostile code in a sandbox tried, how it went, and the host that it was tried on."""

    results: dict[str, Any]
    broker: Broker
    victim: Path
    facts: dict[str, Any]
    answered: list[str]

    def __getitem__(self, name: str) -> Any:
        return self.results[name]


class attempted:  # noqa: N801 - a context manager, used like a function
    """Run all attempts in one sandbox."""

    def __init__(self, engine: str, owner: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="broker-escape-", dir="/tmp"))
        self.broker = Broker(engine, self.folder, owner=owner).prepare()
        self.listeners: list[socket.socket] = []

    def __enter__(self) -> Attempts:
        try:
            return self._attempt()
        except BaseException:
            self.__exit__()
            raise

    def _attempt(self) -> Attempts:
        victim = self.folder / "victim"
        victim.write_text("as it was\n")
        victim.chmod(0o666)
        work = self.broker.workspace
        self.broker.file("attempts.py", ATTEMPTS.read_text())
        self.broker.file(".git/hooks/pre-commit", "#!/bin/sh\n", 0o755)
        self.broker.file(".git/config", "[core]\n")
        self.broker.file(".git/HEAD", "ref: refs/heads/main\n")
        facts = self._facts(victim, work)
        done = self.broker.run("python3", "attempts.py", json.dumps(facts), stdin=b"", patience=120)
        text = done.out.decode(errors="replace").strip().splitlines()
        assert text, f"the attempts did not report: {done.err.decode(errors='replace')[-2000:]}"
        return Attempts(json.loads(text[-1]), self.broker, victim, facts, self._answered())

    def __exit__(self, *_: object) -> None:
        for listener in self.listeners:
            listener.close()
        remove_folder(self.folder)

    def _listen(self, address: object, family: int = socket.AF_UNIX) -> socket.socket:
        listener = socket.socket(family)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen(8)
        listener.setblocking(False)
        self.listeners.append(listener)
        return listener

    def _answered(self) -> list[str]:
        """Which of our own listeners somebody connected to."""
        found = []
        for listener in self.listeners:
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                continue
            found.append(repr(listener.getsockname()))
        return found

    def _facts(self, victim: Path, work: Path) -> dict[str, Any]:
        tcp = self._listen(("127.0.0.1", 0), socket.AF_INET)
        abstract = f"broker-escape-{os.getpid()}-{self.broker.engine}-{self.broker.owner}"
        self._listen("\0" + abstract)
        self._listen(str(self.folder / "outside.sock"))
        self._listen(str(work / "dev-server.sock"))
        os.chmod(work / "dev-server.sock", 0o777)
        inside = subprocess.run(["find", "/run", "/var/run", "/tmp", "-type", "s"], capture_output=True, text=True, check=False)
        return {
            "workspace": str(work), "victim": str(victim), "port": tcp.getsockname()[1], "abstract": abstract,
            "host_sockets": sorted({*inside.stdout.split("\n"), str(work / "dev-server.sock")} - {""})[:200],
            "host_files": [
                "/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_ed25519_key", "/root/.bashrc", "/root/.ssh/id_rsa",
                str(self.broker.profiles / "any.json"), str(victim), *map(str, self.broker.journals()),
                f"/proc/{os.getpid()}/environ", str(Path(__file__)),
            ],
            "host_folders": ["/root", str(self.folder), str(self.broker.state), "/run/broker", "/var/lib", "/var/log",
                             "/mnt", "/opt", "/srv", "/boot", "/sys/kernel/debug"],
            "outside": ["/etc/broker-escape", "/usr/bin/broker-escape", "/usr/local/bin/broker-escape",
                        "/etc/cron.d/broker-escape", "/broker-escape", "/run/broker-escape", "/var/broker-escape",
                        "/opt/broker-escape", "/lib/broker-escape", "/dev/broker-escape", "/boot/broker-escape",
                        "/srv/broker-escape", "/mnt/broker-escape", "/root/broker-escape"],
        }  # fmt: skip


class Attacked:
    """A broker with a workspace of an ordinary user, for several attacks in one run."""

    def __init__(self, engine: str, owner: int | None = 1000) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="broker-escape-", dir="/tmp"))
        self.broker = Broker(engine, self.folder, owner=owner)

    def __enter__(self) -> Broker:
        return self.broker.prepare()

    def __exit__(self, *_: object) -> None:
        remove_folder(self.folder)
