"""Step 4: the embedded engine. It needs no image, no daemon and no root, and starts in milliseconds.

The system directories are the host's own, read-only: what a tool chain needs, never `/` and never a home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from broker.enforce.engine import Overlay, Plan
from broker.enforce.etc_view import etc_view
from broker.enforce.limits import Cgroup
from broker.enforce.masks import mask_file
from broker.enforce.mounts import is_below, submounts
from broker.enforce.ready import readable
from broker.enforce.runtime import runtime_base, sweep_task_folders
from broker.enforce.seal import DEVICES, seal
from broker.errors import HostCannotEnforce

# Folders of a merged-/usr system are links into /usr; where they are real folders they are shown as such.
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


class BubblewrapContainer:
    """A bubblewrap process and the guard that it became."""

    def __init__(
        self, process: subprocess.Popen[bytes], link: socket.socket, cgroup: Cgroup | None, plan: Plan
    ) -> None:
        """Take over a started process. `init_pid` is known once the guard has spoken."""
        self._of_root = plan.uid == 0 and os.geteuid() == 0
        self.overlay_words = tuple(_words_of(number, overlay) for number, overlay in enumerate(plan.overlays))
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._cgroup = cgroup
        self.link = link
        self.init_pid = 0
        self.limits_by = "cgroup" if cgroup else ""

    def identify(self, pid: int) -> None:
        """Learn the guard's pid (from the credentials on its first message) and confine it to its cgroup."""
        self.init_pid = pid
        if self._of_root:
            seal(pid, DEVICES)
        if self._cgroup is not None:
            self._cgroup.join(pid)

    def died_early(self) -> str:
        """Return what bubblewrap wrote before it ended, or '' while it runs. Never blocks for long."""
        assert self._process.stderr is not None
        if not readable([self._pidfd], 1.0):
            return ""
        return self._process.stderr.read(4096).decode("utf-8", "replace").strip() or "no message"

    def kill(self) -> None:
        """Close the link (the guard exits and the kernel kills its tree), then make sure of it."""
        self.link.close()
        if self._process.returncode is not None:
            return
        if not readable([self._pidfd], 0.5):
            # The guard is wedged or stopped: process 1's end takes the whole namespace with it.
            for pid in (self.init_pid, self._process.pid):
                if pid:
                    _kill_quietly(pid)
            readable([self._pidfd], 10.0)
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        os.close(self._pidfd)

    def oom_killed(self) -> bool:
        """Whether the kernel killed something inside for memory."""
        return self._cgroup is not None and self._cgroup.oom_kills() > 0

    def remove(self) -> None:
        """Remove the cgroup."""
        if self._cgroup is not None:
            self._cgroup.remove()


def _kill_quietly(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class BubblewrapEngine:
    """Makes containers with bwrap ≥ 0.8."""

    name = "bubblewrap"

    def unavailable(self, image: str = "") -> str | None:
        """Return None if bwrap can make a container here, else what is missing and the remedy."""
        del image
        program = shutil.which("bwrap")
        if program is None:
            return "bubblewrap is not installed. Run: apt-get install bubblewrap"
        probe = subprocess.run(
            [program, "--unshare-all", "--ro-bind", "/usr", "/usr", "--ro-bind", "/", "/", "true"],
            capture_output=True,
            check=False,
        )
        return None if probe.returncode == 0 else explain(probe.stderr.decode("utf-8", "replace"))

    def start(self, plan: Plan) -> BubblewrapContainer:
        """Start the container with the guard as process 1. The guard's HELLO is still to be read."""
        program = shutil.which("bwrap")
        if program is None:
            raise HostCannotEnforce(
                "container", "bubblewrap is not installed", "Run: apt-get install bubblewrap"
            )
        for overlay in plan.overlays:
            if inner := submounts(overlay.lower):
                # The kernel shows nobody in a new user namespace what lies under a mount (mount_namespaces(7)), so it takes
                # no folder with one in it as what is below an overlay.
                raise HostCannotEnforce(
                    "workspace", f"{inner[0]} is another file system, and bubblewrap can show nothing around one copy-on-write",
                    'Use --engine docker, unmount it, or set sandbox.workspace = "direct" in the profile',
                )  # fmt: skip
        cgroup = Cgroup.create(plan.task, plan.limits)
        user, group, groups = _as_user(plan)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            with cgroup.entered() if cgroup is not None else contextlib.nullcontext():
                process = subprocess.Popen(
                    [program, *arguments(plan, theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    env={},
                    cwd="/",
                    user=user,
                    group=group,
                    extra_groups=groups,
                )
        except OSError as error:
            ours.close()
            if cgroup is not None:
                cgroup.remove()
            raise HostCannotEnforce("container", f"bubblewrap cannot start: {error}", "Run: broker doctor") from None
        finally:
            theirs.close()
        return BubblewrapContainer(process, ours, cgroup, plan)

    def sweep(self) -> list[str]:
        """Remove task folders and cgroups of dead brokers (the containers themselves died with them)."""
        return sweep_task_folders(runtime_base()) + Cgroup.sweep()


def _as_user(plan: Plan) -> tuple[int | None, int | None, list[int] | None]:
    """Root runs bwrap as the workspace's owner, so that what the task makes belongs to them."""
    if os.geteuid() != 0 or plan.uid == 0:
        return None, None, None
    return plan.uid, plan.gid, []


def arguments(plan: Plan, link: int) -> list[str]:
    """Return bwrap's arguments for this plan; the guard's socket is descriptor `link`."""
    words = ["--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    if plan.overlays and plan.uid == 0:
        # Without it the guard could not name uid 0 in the user namespace of its mounts (user_namespaces(7), 5.12). It
        # gives it away with the others.
        words += ["--cap-add", "CAP_SETFCAP"]
    words += ["--ro-bind", "/usr", "/usr"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            words += ["--ro-bind", folder, folder]
    words += ["--ro-bind", str(etc_view(runtime_base())), "/etc"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    if plan.uid == 0:
        # Files of /proc that the kernel lets uid 0 write without any capability (core_pattern, sysrq-trigger!),
        # and modes that fchmod by their owner, uid 0, would change in every later mount of it. What needs to
        # be written there (comm, oom_score_adj) Landlock forbids anyway.
        # (The guard writes its user map there first, if it has mounts to make.)
        words += [] if plan.overlays else ["--remount-ro", "/proc"]
    words += ["--perms", "1777", "--size", str(plan.shm_size), "--tmpfs", "/dev/shm"]
    for place in plan.tmpfs:
        words += ["--perms", f"{place.mode:04o}", "--size", str(place.size), "--tmpfs", place.target]
    words += ["--dir", "/var", *_var_tmp(plan), "--dir", "/run"]
    for bind in plan.binds:
        if not _on_overlay(bind.target, plan):
            words += ["--ro-bind" if bind.read_only else "--bind", bind.source, bind.target]
    for number, path in enumerate(plan.masked):
        if not _on_overlay(path, plan):
            words += ["--ro-bind", mask_file(plan.run_dir, number), path]
    words += ["--ro-bind", plan.run_dir, "/run/broker"]
    staged, later = _for_the_guard(plan)
    # Everything that bwrap made itself (mount points, /, /run) becomes read-only last.
    words += [*staged, "--remount-ro", "/", "--chdir", "/"]
    return [*words, "--", "/run/broker/guard", "--fd", str(link), *later]


STAGE = "/run/layer"  # where bwrap puts what the guard mounts; nobody sees it afterwards


def _words_of(number: int, overlay: Overlay) -> tuple[str, str, str]:
    """Return where the guard finds an overlay's lower folders (topmost first, joined by colons), upper and work folder."""
    place = f"{STAGE}/{number}"
    lowers = ":".join([*(f"{place}/between/{at}" for at in range(len(overlay.between))), f"{place}/lower"])
    return (lowers, f"{place}/changes/upper", f"{place}/changes/work") if overlay.layer else (lowers, "", "")


def _on_overlay(path: str, plan: Plan) -> bool:
    return any(is_below(path, overlay.target) for overlay in plan.overlays)


def _for_the_guard(plan: Plan) -> tuple[list[str], list[str]]:
    """Return what bwrap must put in place for the guard's own mounts, and the guard's arguments (guard/mounts.c).

    bwrap 0.8 cannot mount an overlay, and what lies over one has to be mounted after it.
    """
    staged: list[str] = []
    later: list[str] = []
    for number, overlay in enumerate(plan.overlays):
        lowers, upper, work = _words_of(number, overlay)
        for place, source in zip(lowers.split(":"), (*overlay.between, overlay.lower), strict=True):
            staged += ["--ro-bind", source, place]
        if upper:
            staged += ["--bind", overlay.layer, os.path.dirname(upper)]
        staged += ["--dir", overlay.target]
        later += ["--overlay", overlay.target, lowers, upper, work]
    for number, bind in enumerate(bind for bind in plan.binds if _on_overlay(bind.target, plan)):
        staged += ["--ro-bind" if bind.read_only else "--bind", bind.source, f"{STAGE}/over/{number}"]
        later += ["--show", f"{STAGE}/over/{number}", bind.target]
    for number, path in enumerate(plan.masked):
        if _on_overlay(path, plan):
            later += ["--show", mask_file("/run/broker", number), path]
    if plan.overlays:
        later += ["--hide", STAGE]
    if plan.overlays and plan.uid == 0:
        later += ["--seal", "/proc"]
    return staged, later


def _var_tmp(plan: Plan) -> list[str]:
    """/var/tmp is /tmp, unless something is shown below it: then that must keep its name.

    A link would give it two, and the labels of a workspace would be those of temporary space.
    """
    targets = [bind.target for bind in plan.binds] + [overlay.target for overlay in plan.overlays]
    if any(target.startswith("/var/tmp/") for target in targets):
        size = next((place.size for place in plan.tmpfs if place.target == "/tmp"), 1 << 30)
        return ["--perms", "1777", "--size", str(size), "--tmpfs", "/var/tmp"]
    return ["--symlink", "../tmp", "/var/tmp"]


def explain(message: str) -> str:
    """Turn bwrap's message into one sentence with the remedy."""
    text = message.strip().splitlines()[-1] if message.strip() else "it ended without a message"
    if "setting up uid map" in text or "Creating new namespace failed" in text or "No permissions" in text:
        return f"unprivileged user namespaces are not permitted here ({text}). {userns_remedy()}"
    return f"bubblewrap failed: {text}"


def userns_remedy() -> str:
    """Return the exact remedy for a host that forbids unprivileged user namespaces."""
    if _reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts them (Ubuntu 24.04 and later). Give bwrap a profile: write "
            "/etc/apparmor.d/bwrap with `abi <abi/4.0>, include <tunables/global> "
            "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }`, then: apparmor_parser -r /etc/apparmor.d/bwrap"
        )
    if _reads("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "Run: sysctl -w kernel.unprivileged_userns_clone=1"
    if _reads("/proc/sys/user/max_user_namespaces") == "0":
        return "Run: sysctl -w user.max_user_namespaces=15000"
    return "Inside another container, start that one with user namespaces and an unconfined seccomp profile"


def _reads(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
