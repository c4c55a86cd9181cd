"""Step 4: how questions to the operator share his terminal with the command that is attached to it.

The command's output and the operator's keys go by one thread, or by a few that copy streams; a question stops them for as long
as it is on the screen. What a question is, and what becomes of it, is decided elsewhere (broker/task/desk.py).
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Protocol


class Turn:
    """Whose turn the terminal is, where the command has none of its own but its streams may lead to ours: question or command.

    While a question has it, `flowing` is not set and no output goes on; `keyboard` is held by whoever reads what is typed.
    """

    def __init__(self) -> None:
        """Let the command begin."""
        self.flowing = threading.Event()
        self.flowing.set()
        self.keyboard = threading.Lock()

    def take(self) -> None:
        """Hold back the command's output, from its next piece on, and have the keys."""
        self.flowing.clear()
        self.keyboard.acquire()

    def give(self) -> None:
        """Let the command go on."""
        self.keyboard.release()
        self.flowing.set()


class Questions(Protocol):
    """What asks the operator on his terminal while a command is attached to it (broker/cli/ask_terminal.py).

    All of it is called by the one thread that attends to the command, and never waits for an answer.
    """

    turn: Turn

    @property
    def asking(self) -> bool:
        """Whether a question is on the screen."""

    @property
    def sources(self) -> tuple[int, ...]:
        """What becomes readable when `attend` is to be called."""

    def timeout(self) -> float | None:
        """Return after how many seconds `attend` is to be called in any case."""

    def attend(self, ready: Collection[int]) -> None:
        """Do what there is to do about questions."""

    def saw(self, output: bytes) -> None:
        """Take in what goes to the terminal."""

    def redraw(self) -> None:
        """Draw the question again: the terminal has another size."""

    def leave(self) -> None:
        """Give the terminal back, and everything on it; for now, if something still waits."""

    def spoilt(self) -> bool:
        """Return, once, whether something was drawn over what a full-screen program had drawn."""


class NoQuestions(Questions):
    """Nobody is asked anything."""

    def __init__(self) -> None:
        """Leave the terminal to the command."""
        self.turn = Turn()

    @property
    def asking(self) -> bool:
        """Nothing is."""
        return False

    @property
    def sources(self) -> tuple[int, ...]:
        """There are none."""
        return ()

    def timeout(self) -> None:
        """There is none."""

    def attend(self, ready: Collection[int]) -> None:
        """There is nothing to do."""

    def saw(self, output: bytes) -> None:
        """Let it go."""

    def redraw(self) -> None:
        """There is nothing to draw."""

    def leave(self) -> None:
        """It has nothing."""

    def spoilt(self) -> bool:
        """Nothing was."""
        return False


NOBODY_ASKS = NoQuestions()
