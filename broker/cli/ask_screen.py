"""The operator's own terminal, for as long as a question has it. In: lines, at most as many as there are rows. Out: keys, as bytes.

Lines are put at their places one by one, and none ends at the margin, so that nothing scrolls and nothing moves what is there.
"""

from __future__ import annotations

import errno
import os
import termios
import tty

from broker.cli.ask_modes import Modes
from broker.cli.terminal import Colours, speaks_utf8
from broker.enforce.attach import terminal_size, write_all
from broker.enforce.ready import readable

MOST_KEYS = 4096  # bytes read at once
MOST_BLANK = 1000  # columns that are written over
MOST_ROWS = 500  # of a screen of which more is not drawn
_IN_ASCII = {ord("·"): "|", ord("…"): ".."}  # our own signs, no wider than they are taken to be


class Screen:
    """The controlling terminal. `modes` is told what the command writes to it."""

    def __init__(self, descriptor: int) -> None:
        """Take the descriptor of /dev/tty."""
        self.descriptor = descriptor
        self.modes = Modes(utf8=speaks_utf8())
        self.taken = False
        self._dumb = os.environ.get("TERM", "dumb") == "dumb"
        self._saved: list[object] = []
        with open(os.dup(descriptor), "w", encoding="ascii") as stream:
            self._colours = Colours(stream)

    @property
    def ours(self) -> bool:
        """Whether we are in its foreground: from elsewhere nobody may read or change it."""
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            return False

    @property
    def colours(self) -> Colours:
        """Those of it; none where the command has changed them."""
        return Colours(None) if self.modes.recoloured else self._colours

    def size(self) -> tuple[int, int]:
        """Return rows and columns; without end, where lines simply follow one another."""
        rows, columns = terminal_size(self.descriptor)
        return (10_000 if self._dumb else min(rows, MOST_ROWS)), columns

    def take(self) -> None:
        """Have it. What was typed before is thrown away: it is no answer. Raises OSError and termios.error when it is gone."""
        self._saved = termios.tcgetattr(self.descriptor)
        tty.setraw(self.descriptor, termios.TCSANOW)
        termios.tcflow(self.descriptor, termios.TCOON)  # after Ctrl-S nothing of ours would appear
        self.forget_keys()
        self.taken = True
        self._write(b"\r\n" if self._dumb else self.modes.before())

    def leave(self) -> None:
        """Give it back as it was. No key of the question's reaches the command."""
        if not self.taken:
            return
        self.taken = False
        try:
            if not self._dumb:
                self._write(self.modes.after())
            self.forget_keys()
            termios.tcsetattr(self.descriptor, termios.TCSANOW, self._saved)  # type: ignore[arg-type]
        except (OSError, termios.error):
            pass  # it is gone: there is nothing to restore

    def forget_keys(self) -> None:
        """Throw away what was typed and not read."""
        termios.tcflush(self.descriptor, termios.TCIFLUSH)

    def draw(self, lines: list[str], *, again: bool) -> None:
        """Show these lines and nothing else. `again`: they say what they said, but for the time."""
        if self._dumb:
            text = "" if again else "\r\n".join([*lines, ""])
        else:
            rows, columns = self.size()
            # Erased behind the text, not before it: what is drawn twice a second must not flicker. At first each line is made one
            # of plain width, and written over: what the command has protected is not erased by the sequence for that (xterm).
            blank = "" if again else f"\x1b#5\x1b[{{}};1H{' ' * min(columns, MOST_BLANK)}\x1b[{{}};1H"
            placed = [f"\x1b[{row};1H{blank.format(row, row)}{line}\x1b[K" for row, line in enumerate([*lines, *[""] * rows][:rows], 1)]
            text = "".join(placed)
        self._write(text.encode("utf-8", "backslashreplace") if self.modes.utf8 else text.translate(_IN_ASCII).encode("ascii", "backslashreplace"))

    def keys(self) -> bytes | None:
        """Return what was typed; b"" where it is not ours now. None: the terminal is gone."""
        try:
            return os.read(self.descriptor, MOST_KEYS) or None
        except OSError as error:
            return b"" if error.errno == errno.EIO and self._in_background() else None

    def _in_background(self) -> bool:
        """Whether somebody else has it (SIGTTIN is ignored, so reading from it is EIO): of a hung up one nobody is."""
        try:
            return os.tcgetpgrp(self.descriptor) != os.getpgrp()
        except OSError:
            return False

    def more_keys(self, seconds: float) -> bool:
        """Whether more is typed within so many seconds."""
        return bool(readable([self.descriptor], seconds))

    def _write(self, data: bytes) -> None:
        write_all(self.descriptor, data)
