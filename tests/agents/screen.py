"""Somebody at a real terminal, in front of an agent's full screen: it answers what such a program asks its terminal."""

from __future__ import annotations

import os
import re
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from conformance.terminal import Terminal

PATIENCE = 60.0

# What full screens ask, and what xterm says (ECMA-48, and xterm's control sequences): where the cursor is, what it is, its colours.
ASKED = {
    rb"\x1b\[6n": b"\x1b[1;1R",
    rb"\x1b\[0?c": b"\x1b[?62;22c",
    rb"\x1b\[>0?q": b"\x1bP>|XTerm(390)\x1b\\",
    rb"\x1b\]10;\?(?:\x07|\x1b\\)": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    rb"\x1b\]11;\?(?:\x07|\x1b\\)": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}
_ASKED = re.compile(b"|".join(b"(" + question + b")" for question in ASKED))
_ANSWERS = tuple(ASKED.values())
_CONTROLS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1bP.*?\x1b\\|\x1b[ -/]*[0-~]|[\x00-\x20]")


class Screen(Terminal):
    """A terminal that answers. What is looked for is found whatever moves of the cursor stand between its letters."""

    def __init__(self, words: Sequence[str | bytes], environment: Mapping[str, str], folder: Path) -> None:
        """Start the program; remember how the terminal was."""
        super().__init__(words, environment, folder)
        self.resize(50, 160)
        self.before = termios.tcgetattr(self.slave)
        self._answered = 0
        self._shown = 0

    def _read(self, deadline: float) -> bool:
        alive = super()._read(deadline)
        for found in _ASKED.finditer(self.seen, self._answered):
            os.write(self.master, _ANSWERS[(found.lastindex or 1) - 1])
            self._answered = found.end()
        return alive

    def sees(self, text: str, patience: float = PATIENCE) -> None:
        """Wait until a text was drawn after what was seen last. Spaces do not count."""
        wanted = text.replace(" ", "").encode()
        deadline = time.monotonic() + patience
        while (place := self.drawn().find(wanted, self._shown)) < 0:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} was not drawn; there was {self.drawn()[self._shown :][-3000:].decode(errors='replace')}")
        self._shown = place + len(wanted)

    def types_until(self, keys: bytes | str, so: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Press keys, again and again, until something is so: an agent takes a quick Enter for a part of what was pasted."""
        deadline = time.monotonic() + patience
        while not so():
            assert time.monotonic() < deadline, f"{keys!r} had no effect; there is {self.drawn()[self._shown :][-3000:].decode(errors='replace')}"
            self.type(keys)
            until = time.monotonic() + 1
            while not so() and time.monotonic() < until:
                self._read(min(until, time.monotonic() + 0.1))

    def drawn(self) -> bytes:
        """Return everything that was drawn, without control sequences and spaces."""
        return _CONTROLS.sub(b"", self.seen)

    def is_as_before(self) -> bool:
        """Whether the terminal is as it was before the program started."""
        return termios.tcgetattr(self.slave) == self.before

    def __enter__(self) -> Self:
        """Sit down."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave: whatever still runs is ended."""
        self.close()
