"""A terminal with somebody at it: types, waits for what appears, resizes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 30.0
CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x04", b"\x1a", b"\x1c"


class Terminal:
    """The master's side of a real pseudo-terminal, with a program on the other."""

    def __init__(self, words: Sequence[str | bytes], environment: Mapping[str, str], folder: Path) -> None:
        """Start the program as the leader of a session that has this terminal."""
        self.master, self.slave = pty.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            words, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True, cwd=folder,
            env={**environment, "TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no thread runs here yet
        )  # fmt: skip
        self.seen = b""
        self._position = 0

    def type(self, text: bytes | str) -> None:
        """Press keys."""
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def expect(self, pattern: str | bytes, patience: float = PATIENCE) -> re.Match[bytes]:
        """Wait until this appears after what was found last. Fails with what is on the screen."""
        expression = re.compile(pattern.encode() if isinstance(pattern, str) else pattern)
        deadline = time.monotonic() + patience
        while not (found := expression.search(self.seen, self._position)):
            if not self._read(deadline):
                raise AssertionError(f"{pattern!r} did not appear; there was {self.seen[self._position :][-2000:]!r}")
        self._position = found.end()
        return found

    def look(self) -> None:
        """Take in what has appeared by now."""
        while self._read(time.monotonic() + 0.02):
            pass

    def _read(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.master], [], [], left)[0]:
            return False
        try:
            chunk = os.read(self.master, 65536)
        except OSError:  # EIO: nobody has the other side open any more
            return False
        self.seen += chunk
        return bool(chunk)

    def resize(self, rows: int, columns: int) -> None:
        """Drag the corner of the window. The kernel tells the foreground group (SIGWINCH)."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def is_raw(self) -> bool:
        """Whether the program has taken the keys for itself."""
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def wait(self, patience: float = PATIENCE) -> int:
        """Read to the end, and return how the program ended."""
        deadline = time.monotonic() + patience
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.02)[0]:
                self._read(deadline)
        while select.select([self.master], [], [], 0)[0] and self._read(deadline):
            pass
        if self.process.poll() is None:
            raise AssertionError(f"it does not end; there is {self.seen[self._position :][-2000:]!r}")
        return self.process.returncode

    def hang_up(self) -> None:
        """Close the window: the kernel sends SIGHUP to whoever has this terminal."""
        for descriptor in (self.slave, self.master):
            if descriptor >= 0:
                os.close(descriptor)
        self.slave = self.master = -1

    def close(self) -> None:
        """End the program, and hang up."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
        self.hang_up()


@contextmanager
def terminal(words: Sequence[str | bytes], environment: Mapping[str, str], folder: Path) -> Iterator[Terminal]:
    """A terminal that is closed at the end."""
    made = Terminal(words, environment, folder)
    try:
        yield made
    finally:
        made.close()
