"""Drives the real `broker` command as a user does, and looks at the host from outside.

Everything here is a child process, a file or /proc: nothing of `broker` is imported, so that what is tested is
what an operator gets. Each Broker has folders of its own; what it leaves behind is looked for, not assumed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from broker.enforce.runtime import runtime_base

PROJECT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds after which a test gives up; nothing here takes a tenth of it

# Everything that a test wants to do is permitted, so that policy does not stand in the way of lifecycle.
ANY = {
    "max_risk": "code_execution",
    "effects": {"add": ["unknown"]},
    "requires": ["network", "seccomp", "landlock", "exec_gate", "file_labels"],
}
Word = str | bytes
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a `broker` command ended. `result` is what it wrote to its --result file, or empty."""

    code: int
    out: bytes
    err: bytes
    result: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A field of the result."""
        assert self.result, f"broker wrote no result; exit {self.code}, it said: {self.err.decode(errors='replace')}"
        return self.result[name]

    def denied(self, text: str) -> list[dict[str, Any]]:
        """The denials of something whose words hold `text`."""
        return [row for row in self["denials"] if text in row["what"]]


@dataclass(slots=True)
class Broker:
    """A `broker` with its own state, profiles and workspace, on one engine."""

    engine: str
    folder: Path
    owner: int | None = None  # the workspace's, when it is not ours
    user: int | None = None  # whom `broker` itself runs as, when it is not us
    environment: dict[str, str] = field(default_factory=dict)
    _results: int = 0

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def profiles(self) -> Path:
        return self.folder / "profiles"

    @property
    def layers(self) -> Path:
        return self.folder / "layers"

    def prepare(self) -> Broker:
        """Make the folders."""
        self.folder.chmod(0o755)
        for path in (self.workspace, self.state, self.profiles):
            path.mkdir()
        self.state.chmod(0o700)
        self.profiles.chmod(0o755)
        self.profile("any")
        for name in ("default", "research", "adversary"):
            self.shipped(name)
        if self.owner is not None:
            os.chown(self.workspace, self.owner, self.owner)
        if self.user is not None:
            for path in (self.folder, self.state, self.profiles, *self.profiles.iterdir()):
                os.chown(path, self.user, self.user)
        return self

    def profile(self, name: str, sandbox: Mapping[str, object] | None = None, **keys: Any) -> str:
        """Write a profile: `any`, and what is said here. Returns its name."""
        table = {**ANY, **keys, "sandbox": {"image": "python", **(sandbox or {})}}
        path = self.profiles / f"{name}.json"
        path.write_text(json.dumps({"profiles": {name: table}}), encoding="ascii")
        path.chmod(0o644)
        if self.user is not None:
            os.chown(path, self.user, self.user)
        return name

    def shipped(self, name: str) -> str:
        """Take over a shipped profile, with an image in which there is a Python to try things from."""
        table = tomllib.loads((PROJECT / "profiles" / f"{name}.toml").read_text(encoding="utf-8"))
        profile = table["profiles"][name]
        return self.profile(name, **{"effects": {}, **profile})

    def file(self, name: str, content: str | bytes, mode: int = 0o644) -> Path:
        """Put a file into the workspace, as its owner."""
        path = self.workspace / name
        facts = self.workspace.stat()
        for above in reversed([one for one in path.parents if not one.exists()]):
            above.mkdir()
            os.chown(above, facts.st_uid, facts.st_gid)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        os.chown(path, facts.st_uid, facts.st_gid)
        return path

    def words(self, *words: Word) -> list[Word]:
        """A command line of `broker`, as whoever it is to run as."""
        become: list[Word] = []
        if self.user is not None:
            become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--"]
        return [*become, sys.executable, "-m", "broker", *words]

    def run_words(
        self, command: Sequence[Word], options: Sequence[Word] = (), *, verb: str = "run", profile: str = "any",
        quiet: bool = True, result: Path | None = None, workspace: Path | None = None,
    ) -> list[Word]:  # fmt: skip
        """The command line of a run. Without `profile` in our folder, a shipped one is meant."""
        ours: list[Word] = ["--engine", self.engine, "--profile-dir", str(self.profiles), "-p", profile]
        ours += ["-w", os.fsencode(workspace or self.workspace), *(["-q"] if quiet else [])]
        ours += ["--result", str(result)] if result is not None else []
        return self.words(verb, *ours, *options, "--", *command)

    def settings(self) -> dict[str, str]:
        """The environment that `broker` runs in."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
        for kept in ("BROKER_GUARD",):
            if kept in os.environ:
                mine[kept] = os.environ[kept]
        mine |= {"BROKER_STATE_DIR": str(self.state), "BROKER_LAYER_DIR": str(self.layers)}
        mine |= {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
        if self.user is not None:
            mine |= {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        return mine | self.environment

    def run(self, *command: Word, options: Sequence[Word] = (), stdin: int | bytes = subprocess.DEVNULL,
            patience: float = PATIENCE, **how: Any) -> Done:  # fmt: skip
        """Run to the end, and collect everything."""
        with self.started(*command, options=options, stdin=stdin, **how) as running:
            return running.finish(patience)

    @contextmanager
    def started(
        self, *command: Word, options: Sequence[Word] = (), stdin: int | bytes = subprocess.DEVNULL,
        stdout: int | None = None, stderr: int | None = None, cwd: Path | None = None, **how: Any,
    ) -> Iterator[Running]:  # fmt: skip
        """Start `broker`, and end it whatever happens in the block."""
        self._results += 1
        result = self.folder / f"result-{self._results}.json"
        given = stdin if isinstance(stdin, bytes) else None
        process = subprocess.Popen(
            self.run_words(command, options, result=result, **how),
            stdin=subprocess.PIPE if given is not None else stdin,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
            env=self.settings(), cwd=cwd or self.folder,
        )  # fmt: skip
        running = Running(process, result, given)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.kill()
            running.close()

    def verb(self, *words: str, patience: float = PATIENCE, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run another verb of `broker`, in a folder: beside the workspace, unless another one is given."""
        return subprocess.run(
            self.words(*words), capture_output=True, text=True, env=self.settings(), timeout=patience, check=False,
            cwd=at or self.folder, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    # What can be seen from outside

    def journals(self) -> list[Path]:
        """The journals, oldest first."""
        return sorted((self.state / "runs").glob("*.jsonl"))

    def events(self) -> list[dict[str, Any]]:
        """The whole lines of the newest journal."""
        found = self.journals()
        if not found:
            return []
        lines = found[-1].read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def wait_for_event(self, kind: str, deadline: float = PATIENCE) -> dict[str, Any]:
        """Wait until the newest journal has an event of this type."""

        def look() -> dict[str, Any] | None:
            return next((event for event in self.events() if event["type"] == kind), None)

        return until(look, f"an event {kind}", deadline)

    def verified(self) -> bool:
        """Whether every journal verifies, by the user's own command."""
        done = self.verb("events", "verify", "--all", "--json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode == 0 and bool(rows) and all(row["ok"] for row in rows)

    def inside(self) -> list[int]:
        """The host's pids of every process that lives in a sandbox of this workspace (zombies are dead)."""
        return [pid for pid in pids() if sees(pid, self.folder)]

    def nothing_survives(self, deadline: float = 10.0) -> bool:
        """Wait until no process of a sandbox of ours is left.

        An engine whose caller was killed while it made a container goes on for a moment: what it starts then is
        the guard, which finds nobody to connect to. So it is looked at twice, with that moment in between.
        """
        try:
            until(lambda: not self.inside(), "the end of every process in the sandbox", deadline)
            if self.engine == "docker":
                time.sleep(0.3)
                until(lambda: not self.inside(), "the end of what the engine started late", deadline)
        except AssertionError:
            return False
        return True

    def containers(self) -> list[str]:
        """The ids of Docker containers that show our workspace, running or not."""
        if self.engine != "docker":
            return []
        client = docker_client()
        try:
            return [
                found["Id"]
                for found in client.containers(all=True, filters={"label": "broker.task"})
                if any(str(mount.get("Destination", "")).startswith(str(self.folder)) for mount in found["Mounts"])
            ]
        finally:
            client.close()

    def kept(self) -> list[str]:
        """The runs whose changes are kept in a layer."""
        names = os.listdir(self.layers) if self.layers.exists() else []
        return sorted(name for name in names if not name.startswith("."))

    def task_folders(self) -> list[Path]:
        """The folders that our runs have on the host."""
        base = runtime_base() if self.user is None else self.folder / "broker"
        return [base / f"task-{journal.stem}" for journal in self.journals() if (base / f"task-{journal.stem}").exists()]


class Running:
    """A `broker` that was started."""

    def __init__(self, process: subprocess.Popen[bytes], result: Path, stdin: bytes | None) -> None:
        self.process = process
        self.result = result
        self._stdin = stdin
        self.seen = b""

    @property
    def pid(self) -> int:
        """The broker's own pid."""
        return self.process.pid

    def finish(self, patience: float = PATIENCE) -> Done:
        """Wait for the end, and collect everything."""
        out, err = self.process.communicate(self._stdin, timeout=patience)
        text = self.result.read_text(encoding="ascii") if self.result.exists() else ""
        return Done(code=self.process.returncode, out=self.seen + (out or b""), err=err or b"", result=json.loads(text or "{}"))

    def read_until(self, text: bytes, patience: float = PATIENCE) -> bytes:
        """Read stdout until it holds `text`; unbuffered, so that nothing is lost for `finish`."""
        assert self.process.stdout is not None
        descriptor, deadline = self.process.stdout.fileno(), time.monotonic() + patience
        while text not in self.seen:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([descriptor], [], [], left)[0]
            chunk = os.read(descriptor, 65536) if ready else b""
            if not chunk:
                raise AssertionError(f"{text!r} did not come; there was {self.seen[-2000:]!r}")
            self.seen += chunk
        return self.seen

    def close(self) -> None:
        """Reap, and let go of the pipes."""
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def pids() -> list[int]:
    """All pids."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def sees(pid: int, folder: Path) -> bool:
    """Whether a process has something mounted at or below `folder`: then it lives in a sandbox of ours."""
    # A space in a path is written as \040 in mountinfo (proc(5)); the folder of a test has none.
    try:
        mounts = Path(f"/proc/{pid}/mountinfo").read_bytes()
    except OSError:
        return False  # gone, or a zombie
    target = os.fsencode(folder)
    return any(words[4].startswith(target) for words in map(bytes.split, mounts.splitlines()) if len(words) > 4)


def until(look: Callable[[], T | None], what: str, deadline: float = PATIENCE) -> T:
    """Look again and again until there is something to see. Fails with what was waited for."""
    end = time.monotonic() + deadline
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline:.0f} s in vain for {what}")
        time.sleep(0.005)
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def command_of(pid: int) -> bytes:
    """The name of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip()
    except OSError:
        return b""


def state_of(pid: int) -> str:
    """The state of a process as one letter (proc(5)); empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The parent of a process, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def docker_client() -> Any:
    """The engine's API, as an operator's other tools use it."""
    from docker import APIClient

    return APIClient(base_url=os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), version="auto")


def remove_folder(folder: Path) -> None:
    """Remove a test's folder, whatever modes the tests left in it."""

    def again(function: Callable[..., object], path: str, _error: object) -> None:
        os.chmod(os.path.dirname(path), 0o700)
        function(path)

    shutil.rmtree(folder, onerror=again)
