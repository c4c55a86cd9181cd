"""`python -m benchmarks.approvals`: how long it takes from a program's start to its question on the terminal, and from the key to
the program; and what it costs that the command's output is looked at meanwhile. Through a real pseudo-terminal.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROUNDS = 10
UNREAD = 0.8  # seconds until a key counts
MEGABYTES = 32
PROGRAM = "curl --no-such-option http://a.invalid"  # says so at once, and ends
SAYS = b"is unknown"
PROFILE = {"max_risk": "local_write", "effects": {}, "requires": [], "sandbox": {"workspace": "direct"}}


class Screen:
    """The master's side of a terminal with `broker run` on it."""

    def __init__(self, folder: Path, script: str, *options: str) -> None:
        """Start it."""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        words = [sys.executable, "-m", "broker", "run", "-q", "--engine", "bubblewrap", "--profile-dir", str(folder / "profiles")]
        words += ["-p", "bench", "-w", str(folder / "workspace"), *options, "--", "bash", "-c", script]
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "BROKER_STATE_DIR": str(folder / "state")},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no thread runs here yet
        )  # fmt: skip
        os.close(slave)
        self._seen = b""

    def until(self, text: bytes) -> float:
        """Read until this appears; return when."""
        while text not in self._seen:
            if not select.select([self.master], [], [], 60)[0]:
                raise RuntimeError(f"{text!r} did not appear: {self._seen[-2000:]!r}")
            self._seen = self._seen[-8192:] + os.read(self.master, 65536)
        self._seen = self._seen.partition(text)[2]
        return time.perf_counter()

    def rest(self) -> float:
        """Read to the end; return when."""
        try:
            while os.read(self.master, 1 << 20):
                pass
        except OSError:
            pass
        now = time.perf_counter()
        self.process.wait()
        os.close(self.master)
        return now


@contextmanager
def prepared() -> Iterator[Path]:
    """A folder with a profile and a workspace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("profiles", "workspace", "state"):
            (folder / one).mkdir(mode=0o700 if one == "state" else 0o755)
        (folder / "profiles" / "bench.json").write_text(json.dumps({"profiles": {"bench": PROFILE}}), encoding="ascii")
        line = b"\x1b[01;34msome coloured words\x1b[0m of a log that is like those of many tools\n"
        (folder / "workspace" / "log").write_bytes(line * (MEGABYTES * (1 << 20) // len(line)))
        yield folder


def asked_and_answered(folder: Path) -> tuple[float, float]:
    """Return the seconds from a start to its question, and from the key to what the program says first."""
    screen = Screen(folder, f"echo go''es; {PROGRAM}", "--ask")
    began = screen.until(b"goes\r\n")
    appeared = screen.until(b"the agent's words") - began
    time.sleep(UNREAD)
    pressed = time.perf_counter()
    os.write(screen.master, b"o")
    answered = screen.until(SAYS) - pressed
    screen.rest()
    return appeared, answered


def by_itself() -> float:
    """Return the seconds that the same takes outside."""
    began = time.perf_counter()
    done = subprocess.run(PROGRAM.split(), capture_output=True, check=False)
    if SAYS not in done.stderr:
        raise RuntimeError(f"curl says something else: {done.stderr!r}")
    return time.perf_counter() - began


def shown(folder: Path, *options: str) -> float:
    """Return the seconds that a long coloured log takes to the terminal."""
    screen = Screen(folder, "echo go''es; cat log", *options)
    began = screen.until(b"goes\r\n")
    return screen.rest() - began


def main() -> None:
    """Measure and print."""
    with prepared() as folder:
        times = [asked_and_answered(folder) for _ in range(ROUNDS)]
        appeared, answered = (sorted(one) for one in zip(*times, strict=True))
        alone = sorted(by_itself() for _ in range(ROUNDS))
        pairs = [(shown(folder, "--ask"), shown(folder)) for _ in range(ROUNDS // 2)]
    for name, found in (("start to question", appeared), ("key to the program's words", answered), ("the program outside", alone)):
        print(f"{name}: median {statistics.median(found) * 1000:.0f} ms, worst {found[-1] * 1000:.0f} ms ({ROUNDS} runs)")
    with_it, without = (statistics.median(one) for one in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{MEGABYTES} MiB of coloured output: {with_it:.2f} s with --ask, {without:.2f} s without, {ratio:.2f}×")


if __name__ == "__main__":
    main()
