"""The host as hostile code sees it: what it reads, writes, connects to and inherits. The kernel refuses, or there
is nothing there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conformance.driver import Broker
from escape.hostile import Attempts


def test_no_file_of_the_host_is_read(attempts: Attempts) -> None:
    assert attempts["read_host_files"] == []


def test_other_folders_of_the_host_are_empty_or_absent(attempts: Attempts) -> None:
    found = attempts["list_host_folders"]
    # The way to the workspace exists, with nothing beside it; /run/broker is the task's own.
    assert found.pop(str(attempts.broker.folder), ["workspace"]) == ["workspace"]
    assert set(found.pop("/run/broker")) <= {"bin", "denials.jsonl", "empty", "group", "guard", "login.sh", "owner", "passwd", "masked"}
    # What an image ships is no secret of the host.
    assert attempts.broker.engine == "docker" or found == {}
    assert not {"/root", str(attempts.broker.state), "/mnt", "/opt", "/srv"} & found.keys()


def test_nothing_is_written_outside(attempts: Attempts) -> None:
    assert attempts["write_outside"] == []
    assert not any(os.path.lexists(path) for path in attempts.facts["outside"])


def test_the_workspaces_parent_is_not_the_hosts(attempts: Attempts) -> None:
    """It may be temporary space of the sandbox, when the workspace lies in /tmp; then nothing of it stays."""
    assert not (attempts.broker.folder / "escaped").exists()


def test_no_alias_leads_out_of_the_workspace(attempts: Attempts) -> None:
    """Symbolic links, linked folders, hard links, /proc/self/root, /proc/1/root."""
    assert attempts.victim.read_text() == "as it was\n"
    assert attempts["hard_link_of_host_file"] == []
    assert not [path for path in attempts["write_by_proc_root"] if path.startswith("/proc/1/")]


def test_links_out_of_the_workspace_are_not_left_behind_in_it(attempts: Attempts) -> None:
    assert not (attempts.broker.workspace / "victim-link").is_symlink()
    assert not (attempts.broker.workspace / "hard").exists()


def test_no_socket_of_the_host_is_reached_by_path(attempts: Attempts) -> None:
    """Not those of the system, and not the one that a program of the host has in the workspace itself."""
    assert str(attempts.broker.workspace / "dev-server.sock") in attempts.facts["host_sockets"]
    assert attempts["connect_host_sockets_by_path"] == []
    assert attempts.answered == []


def test_no_abstract_socket_of_the_host_is_reached(attempts: Attempts) -> None:
    assert attempts["connect_host_abstract_socket"] == "ECONNREFUSED"


def test_nothing_below_proc_and_sys_can_be_written(attempts: Attempts) -> None:
    """core_pattern, for one, names a program that runs as root outside."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    assert attempts["write_proc"] == [] and attempts["write_own_proc"] == [] and attempts["write_sys"] == []
    assert attempts["core_pattern"] in {"EACCES", "EROFS", "EPERM"}
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern


def test_nothing_below_proc_and_sys_can_be_written_by_uid_0(attempts_as_root: Attempts) -> None:
    """To uid 0 the kernel leaves these files' modes; only mounts and Landlock stand before them."""
    found = attempts_as_root
    assert found["write_proc"] == [] and found["write_own_proc"] == [] and found["write_sys"] == []
    assert found["core_pattern"] in {"EACCES", "EROFS", "EPERM"}


def test_uid_0_inside_is_nobody_special(attempts_as_root: Attempts) -> None:
    found = attempts_as_root
    assert found["identity"]["uid"] == 0
    # An image has a shadow file of its own; the host's is not in it.
    own = {"/etc/shadow", "/etc/gshadow"} if found.broker.engine == "docker" else set()
    assert set(found["read_host_files"]) <= own
    assert found["write_outside"] == [] and found["devices"] == []
    assert found["mknod"] == [] and found["mount_tmpfs"] == "EPERM" and found["unshare_user"] == "EPERM"
    assert found["open_guards_folders"] == [] and found["read_guards_secrets"] == []
    assert found["write_run_broker"] == []
    assert found.victim.read_text() == "as it was\n"


def test_only_harmless_devices_can_be_opened_and_none_made(attempts: Attempts) -> None:
    assert attempts["devices"] == []
    assert attempts["mknod"] == []


def test_no_descriptor_of_the_broker_is_inherited(for_somebody: Broker) -> None:
    """Even one that is open for writing, inheritable, and pointing at a file of the host."""
    secret = for_somebody.folder / "secret"
    secret.write_text("secret\n")
    script = "import os; print(*sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')))"
    descriptor = os.open(secret, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    try:
        done = subprocess.run(
            for_somebody.run_words(["python3", "-c", script]), env=for_somebody.settings(), pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60,
        )  # fmt: skip
    finally:
        os.close(descriptor)
    assert done.stdout.split()
    assert all(word.startswith((b"pipe:", b"/proc/")) for word in done.stdout.split()), done.stdout


def test_no_variable_of_the_broker_comes_in(for_somebody: Broker) -> None:
    for_somebody.environment |= {"AWS_SECRET_ACCESS_KEY": "secret-1", "SSH_AUTH_SOCK": "/secret-2", "LD_PRELOAD_": "secret-3"}
    done = for_somebody.run("python3", "-c", "print(open('/proc/self/environ').read())")
    assert done.code == 0
    assert b"secret" not in done.out
    assert b"BROKER_STATE_DIR" not in done.out and b"PYTHONPATH" not in done.out


def test_the_operators_terminal_cannot_be_typed_into(attempts: Attempts) -> None:
    assert attempts["terminal_injection"] == "EPERM"
    assert attempts["operators_terminal"] in {"ENXIO", "ENOENT", "EACCES"}


def test_no_core_file_and_no_higher_limit(attempts: Attempts) -> None:
    assert attempts["raise_limits"]["core"] == [0, 0]
