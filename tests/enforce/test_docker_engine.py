"""The Docker engine against a real one: what a container of ours shows, holds and leaves behind.

Process 1 is a probe here, not the guard: what is seen is what the container holds by itself (layer L0), whatever
happens to the layers inside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.enforce import docker_api, docker_engine, wire
from broker.enforce.docker_engine import DockerContainer, DockerEngine
from broker.enforce.engine import Bind, Limits, Plan, Tmpfs
from broker.enforce.masks import Masks
from broker.enforce.runtime import GUARD
from broker.errors import HostCannotEnforce

pytestmark = [pytest.mark.needs_docker, pytest.mark.needs_root]

USER = 1234  # nobody's, in the image and here
EVIL_NAME = "w s'\"\n:,\\$x"


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The probe, compiled."""
    program = tmp_path_factory.mktemp("probe") / "probe"
    source = Path(__file__).with_name("docker_probe.c")
    subprocess.run(["cc", "-static", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


@pytest.fixture
def plan(tmp_path: Path, probe: Path) -> Iterator[Plan]:
    """A plan with a workspace of another user, as the supervisor makes it."""
    # Outside pytest's own folders, which nobody else may enter.
    base = Path(f"/var/tmp/broker-test-{uuid.uuid4().hex[:8]}")
    workspace, run_dir = base / EVIL_NAME, base / "run"
    for folder in (workspace, run_dir):
        folder.mkdir(parents=True)
        os.chown(folder, USER, USER)
    run_dir.chmod(0o500)
    (run_dir / "passwd").write_text(f"agent:x:{USER}:{USER}:agent:/home/agent:/bin/bash\n", encoding="ascii")
    yield Plan(
        task=base.name,
        uid=USER,
        gid=USER,
        workspace=str(workspace),
        home="/home/agent",
        binds=(Bind(source=str(workspace), target=str(workspace), read_only=False),),
        tmpfs=(Tmpfs(target="/tmp", size=1 << 24), Tmpfs(target="/home/agent", size=1 << 20, mode=0o755)),
        limits=Limits(memory=256 << 20, cpus=1.5, pids=32),
        shm_size=32 << 20,
        image="base",
        labels=(("broker.profile", "digest"),),
        guard=str(probe),
        run_dir=str(run_dir),
    )
    shutil.rmtree(base)


class Inside:
    """A started container whose process 1 is the probe."""

    def __init__(self, container: DockerContainer) -> None:
        self.container = container
        self.container.link.settimeout(60)
        assert container.link.recv(16) == b"HELLO"

    def run(self, text: str) -> tuple[int, str]:
        """Run a shell text inside. Return (exit code, all output)."""
        self.container.link.send(f"{{ {text}\n}} 2>&1".encode())
        answer = self.container.link.recv(1 << 16)
        (code,) = struct.unpack("i", answer[:4])
        return code, answer[4:].decode(errors="replace")


Start = Callable[[Plan], Inside]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a container that is gone after the test."""
    with contextlib.ExitStack() as containers:

        def begin(plan: Plan) -> Inside:
            container = DockerEngine().start(plan)
            containers.callback(container.remove)
            return Inside(container)

        yield begin


def leftovers(plan: Plan) -> list[str]:
    """What the engine still has of a plan."""
    client = docker_api.connect(docker_api.engine_address())
    return [c["Id"] for c in client.containers(all=True, filters={"label": f"broker.task={plan.task}"})]


# What the task sees


def test_process_one_is_the_guard_as_the_task_user_without_any_capability(plan: Plan, start: Start) -> None:
    inside = start(plan)
    status = Path(f"/proc/{inside.container.init_pid}/status").read_text(encoding="ascii")
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in status
    assert "CapBnd:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status
    assert "Seccomp:\t2\n" in status
    assert os.readlink(f"/proc/{inside.container.init_pid}/exe") == "/run/broker/guard"


def test_the_only_network_link_is_the_loopback(plan: Plan, start: Start) -> None:
    assert start(plan).run("ls /sys/class/net; cat /proc/net/route | tail -n +2") == (0, "lo\n")


def test_the_root_is_read_only_even_for_its_own_root(plan: Plan, start: Start) -> None:
    os.chown(plan.run_dir, 0, 0)
    root_plan = replace(plan, uid=0, gid=0)
    code, said = start(root_plan).run(
        "for d in / /etc /usr/bin /var /root /home /run; do touch $d/x; done; ls /x"
    )
    assert code == 2
    assert said.count("Read-only file system") == 7


def test_temporary_space_is_owned_sized_and_executable(plan: Plan, start: Start) -> None:
    inside = start(plan)
    assert inside.run("stat -c '%u %g %a' /tmp /home/agent") == (0, "1234 1234 1777\n1234 1234 755\n")
    assert inside.run("cp /bin/true /tmp/t && /tmp/t && cp /bin/true ~agent/t && ~agent/t") == (0, "")
    assert inside.run("echo x > /var/tmp/x && cat /var/tmp/x") == (0, "x\n")
    code, said = inside.run("head -c 20M /dev/zero > /tmp/big")
    assert code == 1
    assert "No space left" in said
    code, said = inside.run("head -c 40M /dev/zero > /dev/shm/big")
    assert code == 1
    assert "No space left" in said


def test_a_workspace_path_may_hold_anything_that_a_path_may_hold(plan: Plan, start: Start) -> None:
    inside = start(plan)
    at = Path(plan.workspace)
    (at / "seen").write_text("seen\n", encoding="ascii")
    parent = at.parent.as_posix()
    assert inside.run(f"cd {parent}/w* && cat seen && umask && echo new > made && stat -c %u made") == (
        0,
        "seen\n0022\n1234\n",
    )
    assert (at / "made").read_text(encoding="ascii") == "new\n"
    assert (at / "made").stat().st_uid == USER
    assert inside.run(f"ls {parent}") == (
        0,
        subprocess.run(["ls", parent], capture_output=True, text=True, check=True).stdout.replace(
            "run\n", ""
        ),
    )


def test_a_read_only_bind_below_the_workspace_stays_read_only(plan: Plan, start: Start) -> None:
    hooks = Path(plan.workspace) / ".git" / "hooks"
    hooks.mkdir(parents=True)
    os.chown(hooks, USER, USER)
    inside = start(replace(plan, binds=(*plan.binds, Bind(source=str(hooks), target=str(hooks)))))
    code, said = inside.run(f"cd {Path(plan.workspace).parent}/w*; echo x > .git/hooks/pre-commit")
    assert code != 0
    assert "Read-only file system" in said


def test_what_is_mounted_below_a_read_only_bind_is_read_only_too(plan: Plan, start: Start) -> None:
    outer = Path(plan.workspace).parent / "outer"
    inner = outer / "in ner"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0777", "tmpfs", inner], check=True)
    try:
        (inner / "file").touch(0o666)
        inside = start(replace(plan, binds=(*plan.binds, Bind(source=str(outer), target="/opt/outer"))))
        code, said = inside.run("ls '/opt/outer/in ner'; echo x > '/opt/outer/in ner/file'")
        assert said.startswith("file\n")
        assert code != 0
        assert "Read-only file system" in said
        inside.container.remove()
    finally:
        subprocess.run(["umount", inner], check=True)


def test_masked_files_and_folders_are_there_and_empty(plan: Plan, start: Start) -> None:
    workspace = Path(plan.workspace)
    (workspace / ".env").write_text("SECRET=1\n", encoding="ascii")
    (workspace / ".aws").mkdir()
    (workspace / ".aws" / "credentials").write_text("SECRET\n", encoding="ascii")
    masked = (str(workspace / ".env"), str(workspace / ".aws"), str(workspace / "id_rsa"))
    Masks(Path(plan.run_dir), masked, lambda path: None)
    inside = start(replace(plan, masked=masked))
    code, said = inside.run(f"cd {workspace.parent}/w*; cat .env; ls -A .aws; echo x > .env; touch .aws/x")
    assert code != 0
    assert "SECRET" not in said
    assert "credentials" not in said
    inside.container.remove()
    assert (workspace / ".env").read_text(encoding="ascii") == "SECRET=1\n"
    # Nothing was made in the user's own tree to mount over.
    assert not (workspace / "id_rsa").exists()


def test_the_user_has_a_name_and_no_other_group(plan: Plan, start: Start) -> None:
    assert start(plan).run("whoami; id -G") == (0, "agent\n1234\n")


def test_the_place_of_the_guard_cannot_be_changed_and_its_socket_is_gone(plan: Plan, start: Start) -> None:
    inside = start(plan)
    code, said = inside.run("ls -A /run/broker; echo x > /run/broker/guard; rm /run/broker/guard")
    assert code != 0
    assert "link.sock" not in said
    assert said.count("Read-only file system") + said.count("Permission denied") == 2
    assert not (Path(plan.run_dir) / "link.sock").exists()


def test_a_volume_of_the_image_gives_no_space_that_can_be_written(plan: Plan, start: Start) -> None:
    client = docker_api.connect(docker_api.engine_address())
    base = docker_engine.images.image_for("base")
    tag = f"broker-test/{plan.task}"
    made = client.create_container_from_config({"Image": base, "Cmd": ["true"]})
    client.commit(made["Id"], tag, changes='VOLUME ["/data"]\nHEALTHCHECK --interval=1s CMD touch /data/x')
    client.remove_container(made["Id"])
    try:
        inside = start(replace(plan, image=tag))
        code, said = inside.run("touch /data/x")
        assert code != 0
        assert "Read-only file system" in said
        facts = client.inspect_container(inside.container.id)
        assert not [m for m in facts["Mounts"] if m["Type"] == "volume"]
        assert "Health" not in facts["State"]
        inside.container.remove()
    finally:
        client.remove_image(tag)


def test_the_real_guard_connects_and_brings_a_socket_of_its_own_network(plan: Plan) -> None:
    assert GUARD.exists(), "Run: python -m broker.guard.build"
    container = DockerEngine().start(replace(plan, guard=str(GUARD)))
    try:
        packet, descriptors, _, _ = socket.recv_fds(container.link, wire.MAX_PACKET, 4)
        hello = wire.decode(packet)
        assert isinstance(hello, wire.Hello)
        assert hello.machine == os.uname().machine
        assert hello.landlock_abi >= 0
        with socket.socket(fileno=descriptors[0]) as netlink:
            assert netlink.family == socket.AF_NETLINK
    finally:
        container.remove()
    assert leftovers(plan) == []


# What the task cannot do


CALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_ulong(a & 2**64 - 1) for a in arguments])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
for line in sys.stdin:
    name, *numbers = line.split()
    print(name, call(*[int(n, 0) for n in numbers]))
"""

# Name, x86-64 number and arguments; what our list makes of it.
EXPECTED_CALLS = [
    ("unknown 999", "ENOSYS"),
    ("setxattrat 463 0 0 0 0 0 0", "ENOSYS"),
    ("clone3 435 0 0", "ENOSYS"),
    ("io_uring_setup 425 1 0", "ENOSYS"),
    ("memfd_secret 447 0", "ENOSYS"),
    ("mount 165 0 0 0 0 0", "EPERM"),
    ("fsopen 430 0 0", "EPERM"),
    ("unshare-user 272 0x10000000", "EPERM"),
    ("clone-user 56 0x10000011 0 0 0 0", "EPERM"),
    ("setns 308 0 0", "EPERM"),
    ("keyctl 250 0 0", "EPERM"),
    ("add_key 248 0 0 0 0 0", "EPERM"),
    ("bpf 321 0 0 0", "EPERM"),
    ("perf_event_open 298 0 0 0 0 0", "EPERM"),
    ("userfaultfd 323 0", "EPERM"),
    ("open_by_handle_at 304 0 0 0", "EPERM"),
    ("process_vm_readv 310 1 0 0 0 0 0", "EPERM"),
    ("init_module 175 0 0 0", "EPERM"),
    ("vsock 41 40 1 0", "EPERM"),
    ("alg 41 38 5 0", "EPERM"),
    ("packet 41 17 3 0", "EPERM"),
    ("raw 41 2 3 1", "EPERM"),
    ("netlink-route 41 16 3 0", "ok"),
    ("netlink-audit 41 16 3 9", "EPERM"),
    ("netlink-audit-high-bits 41 16 3 0x100000009", "EPERM"),
    ("vsock-high-bits 41 0x100000028 1 0", "EPERM"),
    ("unix 41 1 1 0", "ok"),
    ("inet 41 2 1 0", "ok"),
    ("landlock 444 0 0 1", "ok"),
    ("memfd_create 319 0 0", "EFAULT"),
    ("ptrace-traceme 101 0 0 0 0", "ok"),
    ("personality-no-randomize 135 0x40000", "ok"),
    ("personality-read-implies-exec 135 0x400000", "EPERM"),
]


@pytest.mark.needs_docker(image="python")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
def test_our_system_call_list_is_in_force(plan: Plan, start: Start) -> None:
    inside = start(replace(plan, image="python"))
    (Path(plan.workspace) / "calls.py").write_text(CALLS, encoding="ascii")
    lines = "\n".join(line for line, _ in EXPECTED_CALLS)
    _, said = inside.run(f"cd {Path(plan.workspace).parent}/w*; python3 calls.py <<'END'\n{lines}\nEND")
    found = dict(line.split() for line in said.splitlines())
    assert found == {line.split()[0]: result for line, result in EXPECTED_CALLS}


def test_each_system_call_stands_in_one_place_of_the_list() -> None:
    rules = json.loads(docker_engine.seccomp_profile())["syscalls"]
    unconditional = [name for rule in rules if "args" not in rule for name in rule["names"]]
    conditional = {name for rule in rules if "args" in rule for name in rule["names"]}
    assert len(unconditional) == len(set(unconditional))
    assert not conditional & set(unconditional)


def test_more_processes_than_the_limit_cannot_be_made(plan: Plan, start: Start) -> None:
    # A shell that gives up at once: bash tries again for a quarter of a minute.
    _, said = start(plan).run("dash -c 'for i in $(seq 60); do sleep 5 >/dev/null 2>&1 & done'; true")
    assert "Cannot fork" in said


def test_running_out_of_memory_is_told(plan: Plan, start: Start) -> None:
    inside = start(plan)
    assert not inside.container.oom_killed()
    code, _ = inside.run("head -c 400M /dev/zero | tail -n 1 > /dev/null")
    assert code == 137
    assert inside.container.oom_killed()
    inside.container.kill()
    assert inside.container.oom_killed()


def test_a_file_larger_than_the_limit_cannot_be_written(plan: Plan, start: Start) -> None:
    limits = replace(plan.limits, file_size=1 << 20)
    code, _ = start(replace(plan, limits=limits)).run(
        "head -c 2M /dev/zero > /tmp/file; s=$?; stat -c %s /tmp/file; exit $s"
    )
    assert code == 128 + signal.SIGXFSZ


# The end


def test_kill_ends_a_daemon_too_and_remove_leaves_nothing(plan: Plan, start: Start) -> None:
    inside = start(plan)
    assert inside.run("setsid -f sleep 987 </dev/null >/dev/null 2>&1")[0] == 0
    deadline = time.monotonic() + 10
    while not (pids := _sleepers()):  # setsid has forked, but the child may not have got to its program yet
        assert time.monotonic() < deadline
    inside.container.kill()
    assert not _sleepers() & pids
    inside.container.kill()
    inside.container.remove()
    inside.container.remove()
    assert leftovers(plan) == []


def _sleepers() -> set[int]:
    processes = [p for p in Path("/proc").iterdir() if p.name.isdigit()]
    return {int(p.name) for p in processes if _command(p) == b"sleep\x00987\x00"}


def _command(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes()
    return b""


def test_a_guard_that_does_not_listen_is_killed(plan: Plan, start: Start) -> None:
    inside = start(plan)
    inside.container.link.send(b"sleep 600")  # the probe does nothing else meanwhile
    os.kill(inside.container.init_pid, signal.SIGSTOP)
    began = time.monotonic()
    inside.container.kill()
    assert time.monotonic() - began < 10
    assert _command(Path(f"/proc/{inside.container.init_pid}")) == b""


BROKER_THAT_DIES = """
import os, pickle, signal, sys
from broker.enforce.docker_engine import DockerEngine
plan = pickle.load(sys.stdin.buffer)
container = DockerEngine().start(plan)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_survives_a_broker_that_is_killed_and_its_container_is_swept(
    plan: Plan, start: Start
) -> None:
    import pickle

    alive = start(replace(plan, task=f"{plan.task}-alive"))
    other = Path(plan.run_dir).with_name("run2")
    other.mkdir()
    os.chown(other, USER, USER)
    dead = replace(plan, task=f"{plan.task}-dead", run_dir=str(other))
    done = subprocess.run([sys.executable, "-c", BROKER_THAT_DIES], input=pickle.dumps(dead), check=False)
    assert done.returncode == -signal.SIGKILL

    client = docker_api.connect(docker_api.engine_address())
    (left,) = leftovers(dead)
    deadline = time.monotonic() + 10
    while client.inspect_container(left)["State"]["Running"]:  # its link is closed, so process 1 ends
        assert time.monotonic() < deadline
        time.sleep(0.05)
    DockerEngine().sweep()  # what it says is not looked at: any broker that starts sweeps, and another test's may have been the first
    assert leftovers(dead) == []
    assert alive.run("echo here") == (0, "here\n")


# What is refused, with a reason


def test_a_stranger_at_the_socket_is_not_taken_for_the_guard(plan: Plan) -> None:
    (Path(plan.run_dir) / "never-connect").touch()
    address = Path(plan.run_dir) / "link.sock"
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def connect() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                stranger.connect(str(address))
                return
            time.sleep(0.005)

    thread = threading.Thread(target=connect)
    thread.start()
    with stranger, pytest.raises(HostCannotEnforce, match=f"process {os.getpid()} .* in place of the guard"):
        DockerEngine().start(plan)
    thread.join()
    assert leftovers(plan) == []


def test_a_guard_that_ends_at_once_is_told_with_its_exit_code(plan: Plan) -> None:
    (Path(plan.run_dir) / "exit-at-once").touch()
    with pytest.raises(HostCannotEnforce, match=r"the guard ended .*9"):
        DockerEngine().start(plan)
    assert leftovers(plan) == []
    assert not (Path(plan.run_dir) / "link.sock").exists()


def test_an_engine_that_cannot_share_a_socket_is_found_out(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(plan.run_dir) / "never-connect").touch()
    monkeypatch.setattr(docker_engine, "CONNECT_DEADLINE", 0.5)
    with pytest.raises(HostCannotEnforce, match="virtual machine or remote"):
        DockerEngine().start(plan)
    assert leftovers(plan) == []


def test_a_guard_that_is_no_program_is_told(plan: Plan) -> None:
    broken = Path(plan.run_dir).with_name("broken-guard")
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    with pytest.raises(HostCannotEnforce, match=r"did not start|ended at once"):
        DockerEngine().start(replace(plan, guard=str(broken)))
    assert leftovers(plan) == []


def test_a_guard_on_a_file_system_without_programs_is_told(plan: Plan) -> None:
    place = Path(plan.run_dir).with_name("noexec")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", place], check=True)
    try:
        shutil.copy(plan.guard, place / "guard")
        with pytest.raises(HostCannotEnforce, match="mounted noexec"):
            DockerEngine().start(replace(plan, guard=str(place / "guard")))
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_path_that_is_to_be_shown_but_is_not_there_is_told(plan: Plan) -> None:
    gone = Bind(source="/nonexistent/place", target="/opt/place")
    with pytest.raises(HostCannotEnforce, match="does not exist"):
        DockerEngine().start(replace(plan, binds=(*plan.binds, gone)))
    assert leftovers(plan) == []


def test_a_container_whose_process_one_differs_from_the_plan_is_refused(plan: Plan, start: Start) -> None:
    inside = start(plan)
    docker_engine._prove(inside.container.init_pid, plan)
    with pytest.raises(HostCannotEnforce, match="Uid is"):
        docker_engine._prove(inside.container.init_pid, replace(plan, uid=USER + 1))
    with pytest.raises(HostCannotEnforce, match="CapEff is"):
        docker_engine._prove(os.getpid(), replace(plan, uid=0, gid=0))


def test_a_task_folder_with_a_long_path_can_hold_the_socket(plan: Plan, start: Start) -> None:
    deep = Path(plan.run_dir).parent / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    os.chown(deep, USER, USER)
    assert start(replace(plan, run_dir=str(deep))).run("true") == (0, "")


def test_a_missing_image_is_told_with_the_command_that_makes_it() -> None:
    assert "docker pull nothing/of-the-kind" in (DockerEngine().unavailable("nothing/of-the-kind") or "")
    assert DockerEngine().unavailable("base") is None


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://192.0.2.1:2375", "is not on this machine"),
        ("unix:///nonexistent/docker.sock", "no Docker engine runs here"),
    ],
)
def test_an_engine_that_is_not_here_is_told(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    assert said in (DockerEngine().unavailable() or "")
    assert DockerEngine().sweep() == []
