"""Starting a sandbox and running `true`, and running a command in a sandbox that is there already."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

from benchmarks.measure import Pair, pair
from benchmarks.sandboxes import folders, run_in, sandbox

BARE = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib",
        "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true"]  # fmt: skip


def figures(docker: bool) -> Iterator[Pair]:
    """Yield each figure as it is measured."""
    with folders() as (workspace, state):

        def start(engine: str) -> None:
            with sandbox(engine, workspace, state) as (running, task):
                run_in(running, task, ("/bin/true",), workspace)

        yield pair(
            "start a sandbox, run `true`, bubblewrap", lambda: start("bubblewrap"),
            lambda: subprocess.run(BARE, check=True), against="bare bwrap", goal=2.5, runs=30,
        )  # fmt: skip
        if docker:
            image = _image()
            yield pair(
                "the same, docker", lambda: start("docker"), lambda: subprocess.run(_docker_run(image), check=True),
                against="docker run --rm, same flags", goal=1.10, runs=9,
            )  # fmt: skip
            yield _spawn(workspace, state, image)


def _spawn(workspace: str, state: str, image: str) -> Pair:
    name = f"broker-bench-{os.getpid()}"
    subprocess.run(
        ["docker", "run", "-d", "--rm", "--network=none", "--name", name, image, "sleep", "600"], check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with sandbox("docker", workspace, state) as (running, task):

            def spawn() -> float:
                start = time.perf_counter()
                run_in(running, task, ("/bin/true",), workspace)
                return time.perf_counter() - start

            def docker_exec() -> float:
                start = time.perf_counter()
                subprocess.run(["docker", "exec", name, "true"], check=True)
                return time.perf_counter() - start

            return pair(
                "run `true` in a running sandbox", spawn, docker_exec, against="docker exec", goal=0.03, runs=20, inner=True
            )
    finally:
        subprocess.run(["docker", "rm", "-f", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _image() -> str:
    from broker.enforce.images import image_for

    return image_for("base") or "base"


def _docker_run(image: str) -> list[str]:
    from broker.enforce.docker_engine import SECCOMP

    return [
        "docker", "run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        f"--security-opt=seccomp={SECCOMP}", "--ipc=private", "--log-driver=none", "--tmpfs=/tmp", "--tmpfs=/home/agent",
        "--pids-limit=4096", "--shm-size=1g", image, "true",
    ]  # fmt: skip
