"""What belongs to the whole host, seen from a sandbox that root runs in a workspace of root's."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROFILES = '[profiles.hostile]\nmax_risk = "code_execution"\n[profiles.hostile.effects]\nadd = ["unknown", "system_write"]\n'
ATTACK = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for name in ("null", "zero", "full", "random", "urandom", "tty"):
    path = f"/dev/{name}"
    for attempt in (lambda: os.chmod(path, 0o622), lambda: os.utime(path, (1, 1)), lambda: os.chown(path, 0, 0),
                    lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o622)):
        try:
            attempt()
        except OSError as error:
            print(name, errno.errorcode[error.errno])
        else:
            print(name, "CHANGED")
open("/dev/null", "w").write("still writable")
print(len(open("/dev/urandom", "rb").read(8)))
"""


@pytest.mark.needs_root
@pytest.mark.needs_bubblewrap
def test_a_root_owned_task_cannot_change_the_hosts_device_files(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir(0o755)
    (tmp_path / "profiles" / "p.toml").write_text(PROFILES)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "attack.py").write_text(ATTACK)
    before = {name: os.stat(f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")}
    done = subprocess.run(
        [sys.executable, "-m", "broker", "run", "--engine", "bubblewrap", "--profile-dir", str(tmp_path / "profiles"),
         "-p", "hostile", "-w", str(workspace), "--result", str(tmp_path / "result.json"), "--",
         "/usr/bin/python3", "attack.py"],
        capture_output=True, text=True, env={**os.environ, "BROKER_STATE_DIR": str(tmp_path / "state")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["exit_code"] == 0
    lines = done.stdout.split("\n")
    assert "CHANGED" not in done.stdout
    # The descriptor of the terminal cannot even be opened without one (ENXIO); every other refusal is the mount's.
    kernel = [line for line in lines if line.endswith(("EROFS", "ENXIO", "EACCES"))]
    assert len(kernel) == 24
    assert sum(line.endswith("EROFS") for line in kernel) >= 5  # fchmod on a descriptor passes every label
    assert lines[-2] == "8"
    for name, facts in before.items():
        now = os.stat(f"/dev/{name}")
        assert stat.S_IMODE(now.st_mode) == stat.S_IMODE(facts.st_mode)
        assert now.st_uid == facts.st_uid


PROC_ATTACK = """
import errno, os
for path in ("/proc/vmstat", "/proc/self/status", "/proc/uptime"):
    for attempt in (lambda: os.chmod(path, 0o640), lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o640)):
        try:
            attempt()
        except OSError as error:
            print(path, errno.errorcode[error.errno])
        else:
            print(path, "CHANGED")
"""


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("bubblewrap", marks=pytest.mark.needs_bubblewrap),
        pytest.param("docker", marks=pytest.mark.needs_docker(image="python")),
    ],
)
def test_a_root_owned_task_cannot_change_the_modes_of_proc(tmp_path: Path, engine: str) -> None:
    (tmp_path / "profiles").mkdir(0o755)
    (tmp_path / "profiles" / "p.toml").write_text(PROFILES)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "attack.py").write_text(PROC_ATTACK)
    image = ["--image", "python"] if engine == "docker" else []
    done = subprocess.run(
        [sys.executable, "-m", "broker", "run", "-q", "--engine", engine, *image, "--profile-dir", str(tmp_path / "profiles"),
         "-p", "hostile", "-w", str(workspace), "--", "/usr/bin/python3", "attack.py"],
        capture_output=True, text=True, env={**os.environ, "BROKER_STATE_DIR": str(tmp_path / "state")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.endswith("EROFS")] == []
    assert sum(line.endswith("EROFS") for line in lines) == 6
    assert stat.S_IMODE(os.stat("/proc/vmstat").st_mode) == 0o444
