"""Step 4: the Docker engine. A Plan goes in, a running container with the guard as process 1 comes out.

The story: name the image, listen on a socket in the task's folder, create and start the container, take the
one connection that the guard makes, close the listener, and look at process 1 from outside (its uid, its
capabilities, its filter) before anybody trusts it. The engine's answers are not believed where the kernel
can be asked.

Nothing here runs a program in a container by any other way than the guard: never `docker exec`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from broker.enforce import images
from broker.enforce.beneath import FOLDER, open_plain
from broker.enforce.docker_api import connect, engine_address
from broker.enforce.docker_mounts import EMPTY_TMPFS, bind_mounts, masks, tmpfs_options
from broker.enforce.engine import Bind, Overlay, Plan
from broker.enforce.limits import oom_kills
from broker.enforce.mounts import visible
from broker.enforce.runtime import OwnerMark
from broker.enforce.seal import PROC, seal
from broker.errors import HostCannotEnforce

if TYPE_CHECKING:
    from docker import APIClient

SECCOMP = Path(__file__).with_name("docker_seccomp.json")
INSIDE = "/run/broker"
HOSTNAME = "sandbox"
LINK = "link.sock"
# Seconds: for the guard's connection after the engine said "started", and for it to die after SHUTDOWN.
CONNECT_DEADLINE = 20.0
DEATH_DEADLINE = 2.0
# struct ucred: pid, uid, gid (unix(7)).
UCRED = struct.Struct("iII")
USE_BUBBLEWRAP = "Use --engine bubblewrap"


@cache
def seccomp_profile() -> str:
    """Return our system call list as the engine wants it: JSON text, small."""
    return json.dumps(json.loads(SECCOMP.read_text(encoding="ascii")), separators=(",", ":"))


class DockerEngine:
    """Makes containers with the Docker engine of this machine. See engine.Engine."""

    name = "docker"

    def unavailable(self, image: str = "") -> str | None:
        """Return None if a container of `image` can be made here, else what is missing and the remedy."""
        name = image or "base"
        try:
            return None if images.image_for(name) else images.missing(name)
        except HostCannotEnforce as error:
            return f"{error.why}. {error.remedy}"

    def start(self, plan: Plan) -> DockerContainer:
        """Start the container. Raises HostCannotEnforce; then nothing of it is left."""
        client = connect(engine_address())
        self.sweep()
        name = plan.image or "base"
        image = images.image_for(name)
        if image is None:
            raise HostCannotEnforce("docker", images.missing(name), USE_BUBBLEWRAP)
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(_Listener(plan))
            words = tuple(_hold(overlay, undo) for overlay in plan.overlays)
            created = _create(client, plan, image, words)
            container = DockerContainer(client, created, words)
            undo.callback(container.discard_unless_linked)
            _start(client, container.id)
            container.init_pid = _init_pid(client, container.id)
            container.watch()
            container.link = listener.accept(container)
            _prove(container.init_pid, plan)
            if plan.uid == 0:
                seal(container.init_pid, PROC)
            container.linked = True
        return container

    def sweep(self) -> list[str]:
        """Remove the containers of brokers that are dead. Returns a line for each. Needs a running engine."""
        from docker.errors import APIError

        try:
            client = connect(engine_address())
        except HostCannotEnforce:
            return []
        removed = []
        for found in client.containers(all=True, filters={"label": "broker.pid"}):
            labels = found["Labels"]
            if labels.get("broker.pid-namespace") != _pid_namespace() or _owner(labels).alive():
                continue
            with contextlib.suppress(APIError):  # somebody else may sweep at the same time
                client.remove_container(found["Id"], v=True, force=True)
                removed.append(f"container {found['Id'][:12]} of task {labels.get('broker.task', '?')}")
        return removed


class DockerContainer:
    """A running container. See engine.Container."""

    link: socket.socket
    init_pid: int
    limits_by = "docker"

    def __init__(
        self, client: APIClient, container_id: str, overlay_words: tuple[tuple[str, str, str], ...] = ()
    ) -> None:
        self.id = container_id
        self.overlay_words = overlay_words
        self.linked = False
        self._client = client
        self.pidfd = -1
        self._memory_group: Path | None = None
        self._oom_seen = False
        self._removed = False

    def watch(self) -> None:
        """Take hold of process 1, so that its end is seen at once and its pid is never mistaken."""
        try:
            self.pidfd = os.pidfd_open(self.init_pid)
        except ProcessLookupError:
            raise HostCannotEnforce("docker", "the guard ended at once", self.last_words()) from None
        self._memory_group = _memory_group(self.init_pid)

    def alive(self, within: float = 0.0) -> bool:
        """Whether process 1 still runs after waiting at most `within` seconds for its end."""
        if self.pidfd < 0:
            return False
        return not _readable(within, self.pidfd)

    def last_words(self) -> str:
        """Return what the engine knows of the end of process 1."""
        state = self._client.inspect_container(self.id)["State"]
        return f"It exited with {state.get('ExitCode')} {state.get('Error') or ''}".rstrip()

    def kill(self) -> None:
        """End everything inside, now. Returns when the guard is gone. May be called twice."""
        self._note_oom()
        if hasattr(self, "link"):
            # The guard's death is the kernel's word for everything below it: it is process 1.
            with contextlib.suppress(OSError):
                self.link.shutdown(socket.SHUT_RDWR)
            self.link.close()
        if self.pidfd >= 0 and self.alive(within=DEATH_DEADLINE):
            from docker.errors import APIError

            with contextlib.suppress(APIError):  # it may have ended meanwhile
                self._client.kill(self.id)
            self.alive(within=DEATH_DEADLINE)
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def oom_killed(self) -> bool:
        """Whether the kernel killed something inside for memory. Valid until `remove`."""
        self._note_oom()
        if not self._oom_seen and not self._removed and self.pidfd < 0:
            from docker.errors import APIError

            with contextlib.suppress(APIError):
                self._oom_seen = bool(self._client.inspect_container(self.id)["State"].get("OOMKilled"))
        return self._oom_seen

    def remove(self) -> None:
        """Remove the container and its volumes. May be called twice."""
        if self._removed:
            return
        self.kill()
        from docker.errors import NotFound

        with contextlib.suppress(NotFound):
            self._client.remove_container(self.id, v=True, force=True)
        self._removed = True

    def discard_unless_linked(self) -> None:
        """Leave nothing behind of a start that failed."""
        if not self.linked:
            self.remove()

    def _note_oom(self) -> None:
        # The counter goes with the cgroup, which goes with process 1: read it while it is there.
        if self._memory_group is not None and not self._oom_seen:
            self._oom_seen = oom_kills(self._memory_group) > 0


class _Listener:
    """The socket file that one guard may connect to, once."""

    def __init__(self, plan: Plan) -> None:
        self._folder = os.open(plan.run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            # Through the descriptor: sun_path holds 107 bytes, and folders may be longer than that.
            self._socket.bind(f"/proc/self/fd/{self._folder}/{LINK}")
            if os.geteuid() != plan.uid:
                os.chown(LINK, plan.uid, plan.gid, dir_fd=self._folder)
            os.chmod(LINK, 0o600, dir_fd=self._folder)
            self._socket.listen(1)
        except OSError as error:
            self.close()
            raise HostCannotEnforce(
                "docker",
                f"no socket can be made in {plan.run_dir}: {error.strerror}",
                "Check its owner and mode",
            ) from error

    def accept(self, container: DockerContainer) -> socket.socket:
        """Take the guard's connection; nobody else's. Raises HostCannotEnforce if it does not come."""
        deadline = time.monotonic() + CONNECT_DEADLINE
        while (left := deadline - time.monotonic()) > 0:
            ready = _readable(left, self._socket.fileno(), container.pidfd)
            if self._socket.fileno() in ready:
                link, _ = self._socket.accept()
                pid, uid, gid = UCRED.unpack(
                    link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
                )
                if pid == container.init_pid:
                    return link
                link.close()
                raise HostCannotEnforce(
                    "docker",
                    f"process {pid} (uid {uid}, gid {gid}) connected in place of the guard ({container.init_pid})",
                    "Make sure that the broker sees the same processes as the engine (not from within a container)",
                )
            if ready:
                raise HostCannotEnforce(
                    "docker", "the guard ended before it connected", container.last_words()
                )
        raise HostCannotEnforce(
            "docker",
            f"the guard did not reach the broker's socket within {CONNECT_DEADLINE:.0f} s: the engine "
            "seems to be in a virtual machine or remote",
            f"Use an engine that runs on this machine itself, or --engine bubblewrap. {container.last_words()}",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the door, and take its file away. May be called twice."""
        if self._folder < 0:
            return
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(LINK, dir_fd=self._folder)
        os.close(self._folder)
        self._folder = -1


def _readable(within: float, *descriptors: int) -> set[int]:
    """Return which descriptors can be read after at most `within` seconds (poll(2): any number of any size)."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(within * 1000)}


def _hold(overlay: Overlay, undo: contextlib.ExitStack) -> tuple[str, str, str]:
    """Open an overlay's folders, and return names that mean these and no others until `undo` closes them.

    The engine, as root, follows whatever stands at a path when it mounts. A name in /proc/PID/fd is the folder itself,
    and holds no colon or comma that the mount's options would take for their own.
    """
    lowers: list[str] = []
    others: list[str] = []
    try:
        overlay.target.encode()
    except UnicodeEncodeError:
        raise HostCannotEnforce(
            "docker", f"{overlay.target!a} is no UTF-8, and the engine's API has no other names", USE_BUBBLEWRAP
        ) from None
    own = (f"{overlay.layer}/upper", f"{overlay.layer}/work") if overlay.layer else ()
    for folder in (*overlay.between, overlay.lower, *own):
        try:
            # INVARIANT: what is below is the folder of the survey, which had no link in its path, and no link that came
            # since (test_a_workspace_that_turns_into_a_link_is_not_followed).
            descriptor = open_plain(folder) if folder == overlay.lower else os.open(folder, FOLDER)
        except OSError as error:
            raise HostCannotEnforce(
                "workspace", f"{folder} is not the folder that was looked at ({error.strerror})",
                "Something changed the workspace while the task was started: end the other tasks in it, and try again",
            ) from None  # fmt: skip
        undo.callback(os.close, descriptor)
        (others if folder in own else lowers).append(f"/proc/{os.getpid()}/fd/{descriptor}")
    upper, work = others or ("", "")
    return ":".join(lowers), upper, work


def _volume(overlay: Overlay, words: tuple[str, str, str]) -> dict[str, object]:
    """Return the mount of an overlay: a volume that nobody names, and that goes with its container."""
    lower, upper, work = words
    # An anonymous volume cannot be read-only by the engine's own word; the file system can.
    mode = f"upperdir={upper},workdir={work}," if upper else "ro,"
    options = {"type": "overlay", "device": "overlay", "o": f"{mode}lowerdir={lower},userxattr"}
    return {
        "Type": "volume",
        "Target": overlay.target,
        "VolumeOptions": {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": options}},
    }


def _create(client: APIClient, plan: Plan, image: str, words: tuple[tuple[str, str, str], ...] = ()) -> str:
    """Create the container. Raises HostCannotEnforce if the engine refuses it or drops a limit."""
    from docker.errors import APIError

    try:
        config = container_config(plan, image, _volumes(client, image), words)
        answer = client.create_container_from_config(config)
    except APIError as error:
        raise HostCannotEnforce(
            "docker", f"the engine refused: {error.explanation}", USE_BUBBLEWRAP
        ) from error
    dropped = [warning for warning in answer.get("Warnings") or () if not _harmless(warning)]
    if dropped:
        client.remove_container(answer["Id"], v=True, force=True)
        raise HostCannotEnforce(
            "docker", f"the engine would not apply a limit: {' '.join(dropped)}", USE_BUBBLEWRAP
        )
    return str(answer["Id"])


def _harmless(warning: str) -> bool:
    """A memory limit without a swap limit is whole where there is no swap."""
    no_swap = len(Path("/proc/swaps").read_text(encoding="ascii").splitlines()) <= 1
    return "swap" in warning.lower() and no_swap


def _start(client: APIClient, container_id: str) -> None:
    from docker.errors import APIError

    try:
        client.start(container_id)
    except APIError as error:
        raise HostCannotEnforce(
            "docker", f"the container did not start: {error.explanation}", USE_BUBBLEWRAP
        ) from error


def _init_pid(client: APIClient, container_id: str) -> int:
    state = client.inspect_container(container_id)["State"]
    if not state["Pid"]:
        raise HostCannotEnforce(
            "docker", f"the guard ended at once (exit {state.get('ExitCode')})", str(state.get("Error") or "")
        )
    return int(state["Pid"])


def container_config(
    plan: Plan, image: str, image_volumes: tuple[str, ...] = (), words: tuple[tuple[str, str, str], ...] = ()
) -> dict[str, Any]:
    """Return the engine's whole configuration of the container."""
    mounts, tmpfs = _shown(plan, image_volumes)
    mounts = [_volume(overlay, held) for overlay, held in zip(plan.overlays, words, strict=True)] + mounts
    return {
        "Image": image,
        "Hostname": HOSTNAME,
        "User": f"{plan.uid}:{plan.gid}",
        "Entrypoint": [f"{INSIDE}/guard", "--connect", f"{INSIDE}/{LINK}"],
        "Cmd": [],
        "WorkingDir": "/",
        "Env": [],
        "AttachStdout": False,
        "AttachStderr": False,
        # An image's health check is a program that the engine runs inside, past the gate.
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {**dict(plan.labels), **_own_labels(plan)},
        "HostConfig": {
            "NetworkMode": "none",
            # The engine leaves a container without a network no name of its own and no ::1; tests that serve
            # on `localhost` want both. It stays one interface, the loopback.
            "ExtraHosts": [f"{HOSTNAME}:127.0.0.1"],
            "Sysctls": _loopback_has_ipv6(),
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Init": False,
            "Privileged": False,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
            "ShmSize": plan.shm_size,
            "Mounts": mounts,
            "Tmpfs": tmpfs,
            **_limits(plan),
        },
    }


def _loopback_has_ipv6() -> dict[str, str]:
    """Return the setting that keeps ::1, where the kernel has IPv6 at all: else the engine would refuse it."""
    there = Path("/proc/sys/net/ipv6/conf").is_dir()
    return {"net.ipv6.conf.all.disable_ipv6": "0"} if there else {}


LEAST_NANO_CPUS = 10_000_000  # what an engine takes; 0 is no limit at all


def _limits(plan: Plan) -> dict[str, Any]:
    limits = plan.limits
    # Only what lowers. The descriptor limit may lie above what the engine itself has, and raising it needs
    # CAP_SYS_RESOURCE, which an engine in a container or a small machine lacks: the guard sets what it can.
    ulimits = [("core", 0)]
    if limits.file_size is not None:
        ulimits.append(("fsize", limits.file_size))
    wanted: dict[str, Any] = {"Ulimits": [{"Name": n, "Soft": v, "Hard": v} for n, v in ulimits]}
    if limits.memory is not None:
        # The same number for both: no swap beyond the limit.
        wanted |= {"Memory": limits.memory, "MemorySwap": limits.memory}
    if limits.cpus is not None:
        wanted["NanoCpus"] = max(LEAST_NANO_CPUS, int(limits.cpus * 1e9))
    if limits.pids is not None:
        wanted["PidsLimit"] = limits.pids + 1  # the guard is not one of the task's own
    return wanted


def _shown(plan: Plan, image_volumes: tuple[str, ...]) -> tuple[list[dict[str, object]], dict[str, str]]:
    """Return (mounts, tmpfs): everything that the task sees besides the image."""
    run_dir = Path(plan.run_dir)
    if os.statvfs(plan.guard or run_dir / "guard").f_flag & os.ST_NOEXEC:
        where = os.path.dirname(plan.guard) or plan.run_dir
        raise HostCannotEnforce(
            "docker",
            f"the guard lies in {where}, which is mounted noexec",
            "Choose a place where programs may start",
        )
    binds = list(plan.binds)
    binds.append(Bind(source=plan.run_dir, target=INSIDE))
    if plan.guard and not (run_dir / "guard").exists():
        (run_dir / "guard").touch()  # a mount needs something to lie on
    if plan.guard and not os.path.samefile(plan.guard, run_dir / "guard"):
        binds.append(Bind(source=plan.guard, target=f"{INSIDE}/guard"))
    # The image knows nobody of this uid; tools that ask who they are get the answer of the task's folder. Nor does its
    # /etc/profile know the client.
    named = {bind.target for bind in binds}
    for name, target in (("passwd", "/etc/passwd"), ("group", "/etc/group"), ("login.sh", "/etc/profile.d/broker.sh")):
        if (run_dir / name).exists() and target not in named:
            binds.append(Bind(source=str(run_dir / name), target=target))

    shown = visible(binds)
    mounts = [mount for bind in shown for mount in bind_mounts(bind)]
    tmpfs = {space.target: tmpfs_options(space, plan.uid, plan.gid) for space in plan.tmpfs}
    tmpfs.pop("/dev/shm", None)  # sized by ShmSize
    if "/tmp" in tmpfs:
        # Programs that want their temporary files to last write here; the root is read-only.
        tmpfs.setdefault("/var/tmp", tmpfs["/tmp"])
    below = tuple(Bind(source=overlay.lower, target=overlay.target) for overlay in plan.overlays)
    files, folders = masks(plan.masked, (*below, *shown), plan.run_dir)
    mounts += files
    tmpfs |= folders
    # A VOLUME of the image would be writable and unlimited space on the host.
    taken = {str(mount["Target"]) for mount in mounts} | tmpfs.keys()
    tmpfs |= {volume: EMPTY_TMPFS for volume in image_volumes if volume.rstrip("/") not in taken}
    return mounts, tmpfs


def _volumes(client: APIClient, image: str) -> tuple[str, ...]:
    config = client.inspect_image(image).get("Config") or {}
    return tuple(config.get("Volumes") or ())


def _own_labels(plan: Plan) -> dict[str, str]:
    mine = OwnerMark.mine()
    return {
        "broker.task": plan.task,
        "broker.pid": str(mine.pid),
        "broker.start": mine.start,
        "broker.boot-id": mine.boot,
        "broker.pid-namespace": _pid_namespace(),
    }


def _owner(labels: dict[str, str]) -> OwnerMark:
    pid = labels.get("broker.pid", "")
    return OwnerMark(
        int(pid) if pid.isdigit() else 0, labels.get("broker.start", ""), labels.get("broker.boot-id", "")
    )


def _pid_namespace() -> str:
    """A pid means nothing in another namespace: two brokers in containers may share one engine."""
    return os.readlink("/proc/self/ns/pid")


def _prove(pid: int, plan: Plan) -> None:
    """Look at process 1 from outside. Raises HostCannotEnforce if the kernel says other than the plan.

    INVARIANT: no task starts on an engine that dropped one of these
    (test_a_container_whose_process_one_differs_from_the_plan_is_refused).
    """
    facts = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        if ":\t" in line
    )
    expected = {
        "Uid": "\t".join([str(plan.uid)] * 4),
        "Gid": "\t".join([str(plan.gid)] * 4),
        "CapEff": f"{0:016x}",
        "CapPrm": f"{0:016x}",
        "CapBnd": f"{0:016x}",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }
    wrong = {name: facts.get(name, "?") for name, value in expected.items() if facts.get(name) != value}
    groups = set(facts.get("Groups", "").split()) - {str(plan.gid)}
    if groups:
        wrong["Groups"] = " ".join(sorted(groups))
    if wrong:
        found = ", ".join(f"{name} is {value!r}" for name, value in wrong.items())
        raise HostCannotEnforce(
            "docker",
            f"process 1 is not as planned: {found}. A rootless engine, or one with user namespaces, is not supported",
            USE_BUBBLEWRAP,
        )


def _memory_group(pid: int) -> Path | None:
    """Return the folder of a process's memory control group (version 1 or 2), or None."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folders.append(Path(f"/sys/fs/cgroup/memory{path}"))
        elif not controllers:
            folders.append(Path(f"/sys/fs/cgroup{path}"))
    return next((folder for folder in folders if folder.is_dir()), None)
