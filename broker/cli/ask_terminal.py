"""The channel of the operator's own terminal: the questions of a run appear there, one at a time, and a key answers them.

In: the desk of the run (broker/task/desk.py), keys, what the command writes. Out: answers for the desk. All but `asked` happens
on the thread that serves the command's terminal (broker/enforce/attach.py), and nothing waits for a key.

INVARIANT: what was typed before a question could be read is no answer to it, nor is anything but one plain key by itself; and
no key of a question reaches the command (tests/conformance/test_approvals_terminal.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from broker.cli.ask_frame import Frame
from broker.cli.ask_line import Line, Wish
from broker.cli.ask_screen import Screen
from broker.enforce.questions import Turn
from broker.task.control_socket import named_user
from broker.task.desk import MOST_WHY, Given, NotTaken, Taken, WordWanted

if TYPE_CHECKING:
    from broker.task.desk import ApprovalDesk

# Seconds in which a question has appeared and cannot have been read, and no key is an answer; they begin again with each key. So
# neither a key that is held down (the first repetition comes after up to 0.66 s) answers the next question, nor a word that is
# typed on, `no` for example, this one.
UNREAD = 0.7
BURST = 0.02  # seconds within which two bytes are one thing: a paste, or a key that sends several
TICK = 0.5  # seconds between two looks at what waits, while a question is there
LATER = 1.0  # seconds until it is looked again whether the terminal is ours
LONGEST_WORD = 64
SMALLEST = (4, 20)  # rows and columns of a screen on which there is a yes
MOST_AT_ONCE = 3  # keys that may come together from somebody who types fast, over a slow connection

CTRL_C_Z_ESC = b"\x03\x1a\x1b"


class TerminalQuestions:
    """What asks on the terminal. `elsewhere`, if set, is told of a question that comes while the terminal is not ours."""

    def __init__(self, descriptor: int) -> None:
        """Take the descriptor of /dev/tty."""
        self.turn = Turn()
        self._screen = Screen(descriptor)
        self.elsewhere: Callable[[dict[str, Any]], None] | None = None
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._who = named_user(os.getuid())
        self._frame: Frame | None = None  # of the question that is there
        self._line: Line | None = None  # that is being typed
        self._how = ""  # what the typed word is to give: once or session; '': the line says why not
        self._answers_from = self._next_look = 0.0
        self._spoilt = self._gone = False
        self._kept: list[str] = []
        self._keeping = threading.Lock()

    def begin(self, desk: ApprovalDesk) -> None:
        """Take the questions from this desk from now on."""
        self._desk = desk

    def asked(self, row: dict[str, Any]) -> None:
        """Note that there is a question. On any thread."""
        os.eventfd_write(self._changed, 1)
        if self.elsewhere is not None and not self._screen.ours:
            self.elsewhere(row)

    def keep(self, text: str) -> bool:
        """Keep what is to be said on stderr until no question is there. Returns whether it did. On any thread."""
        with self._keeping:
            if self.asking:
                self._kept.append(text)
            return self.asking

    # For whoever serves the command's terminal

    @property
    def asking(self) -> bool:
        """Whether a question is on the screen."""
        return self._frame is not None

    @property
    def sources(self) -> tuple[int, ...]:
        """What becomes readable when `attend` is to be called."""
        return (self._changed, self._screen.descriptor) if self.asking else (self._changed,)

    def timeout(self) -> float | None:
        """Return in how many seconds `attend` is to be called in any case."""
        return max(0.0, self._next_look - time.monotonic()) if self._next_look else None

    def saw(self, output: bytes) -> None:
        """Take in what the command writes to the terminal."""
        self._screen.modes.saw(output)

    def attend(self, ready: Collection[int]) -> None:
        """Do what there is to do: show, take down, redraw, take keys."""
        try:
            if self._screen.descriptor in ready and self.asking:
                self._take_keys()
            if self._changed in ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._changed)
            if self._changed in ready or 0 < self._next_look <= time.monotonic():
                self._look()
        except (OSError, termios.error):
            self._hung_up()

    def redraw(self) -> None:
        """Draw it again: the terminal has another size."""
        if self._frame is not None:
            with contextlib.suppress(OSError, termios.error):
                self._draw(again=False)

    def leave(self) -> None:
        """Take down what is there. It comes back with the next `attend`, if it still waits."""
        if self._frame is None:
            return
        self._spoilt = self._spoilt or self._screen.modes.full_screen
        self._screen.leave()
        with self._keeping:
            self._frame = self._line = None
            sys.stderr.write("".join(self._kept))
            sys.stderr.flush()
            self._kept = []
        self.turn.give()
        self._next_look = time.monotonic()

    def spoilt(self) -> bool:
        """Return, once, whether a question was drawn over what a full-screen program had drawn."""
        spoilt, self._spoilt = self._spoilt, False
        return spoilt

    # What is there

    def _look(self) -> None:
        """Show the oldest question, or the one that is there as long as it waits; none: give the terminal back."""
        claims = self._frame is not None and self._frame.claims
        rows = [] if self._gone else self._desk.rows(claims=claims)
        self._next_look = 0.0
        if not rows:
            self.leave()
            self._next_look = 0.0
            return
        if not self._screen.ours:
            self.leave()
            self._next_look = time.monotonic() + LATER
            return
        name = self._frame.row["approval"] if self._frame is not None else 0
        row = next((one for one in rows if one["approval"] == name), None)
        if self._frame is None or row is None:
            self._show(rows[0], len(rows))
        else:
            said = self._frame.row.get("claims")
            self._frame.update(row, len(rows))
            self._draw(again=said == row.get("claims"))
        now = time.monotonic()
        # At the moment from which keys count it is drawn again, over what was still under way to the terminal through a pipe.
        self._next_look = min(now + TICK, self._answers_from) if self._answers_from > now else now + TICK

    def _show(self, row: dict[str, Any], waiting: int) -> None:
        if self._frame is None:
            self.turn.take()
            self._frame = Frame(row, waiting, self._screen.colours)
            self._screen.take()
        else:
            self._frame = Frame(row, waiting, self._screen.colours)
            self._screen.forget_keys()
        self._line, self._how = None, ""
        self._draw(again=False)
        self._hear_nothing()

    def _draw(self, *, again: bool) -> None:
        """Draw what is there. `again`: nothing but the time has changed, and perhaps what is asked for."""
        assert self._frame is not None
        before, line = self._frame.prompt, self._line
        if line is None:
            self._frame.typing("", None)
        elif not self._how:
            self._frame.typing("Why not? The process is told, and so its agent:", line)
        elif time.monotonic() < self._answers_from:
            self._frame.typing("Several were approved just now. Read this one.", None)
        else:
            self._frame.typing("To approve it, type approve and press Enter:", line)
        self._screen.draw(self._frame.lines(*self._screen.size()), again=again and before == self._frame.prompt)

    # Keys

    def _take_keys(self) -> None:
        typed = self._screen.keys()
        if typed is None:
            self._hung_up()
        elif typed and self._line is not None:
            self._take_line(self._line, typed)
        elif typed:
            early = time.monotonic() < self._answers_from
            if early or len(typed) > 1 or self._screen.more_keys(BURST):
                self._hear_nothing()
            else:
                self._take_key(typed)

    def _hear_nothing(self) -> None:
        """Take no answer until the keys have been left alone for a while."""
        self._answers_from = time.monotonic() + UNREAD

    def _take_key(self, key: bytes) -> None:
        assert self._frame is not None
        self._frame.note = ""
        match key.lower():
            case b"o" | b"s" if self._cannot_be_read():
                self._frame.note = "The screen is too small to read what is asked. Make it larger, or deny."
            case b"o":
                self._answer("once")
                return
            case b"s":
                self._answer("session")
                return
            case b"d" | b"\x03":
                self._answer("deny")
                return
            case b"\x1a":
                self._suspend()
                return
            case b"w":
                self._line, self._how = Line(MOST_WHY), ""
            case b" " | b"q":
                self._frame.turn_page()
            case b"m":
                self._frame.show_claims()
                self._look()  # the desk tells the agent's words only where they are asked for
                return
            case _:
                self._frame.note = "That key is none of these. It may be the beginning of a word, so wait a moment before the next."
                self._hear_nothing()
        self._draw(again=False)

    def _cannot_be_read(self) -> bool:
        """Whether the screen is smaller than any question: a program can ask a terminal to shrink."""
        rows, columns = self._screen.size()
        return rows < SMALLEST[0] or columns < SMALLEST[1]

    def _take_line(self, line: Line, typed: bytes) -> None:
        if self._how and time.monotonic() < self._answers_from:
            typed = typed if len(typed) == 1 and typed in CTRL_C_Z_ESC else b""
        elif self._how and len(typed) > MOST_AT_ONCE:  # pasted, or said by the terminal itself
            line.text, typed = "", b""
        match line.take(typed):
            case Wish.ENTER if self._how:
                self._answer(self._how, word=line.text.strip())
            case Wish.ENTER:
                self._answer("deny", why=line.text)
            case Wish.DENY:
                self._answer("deny")
            case Wish.SUSPEND:
                self._suspend()
            case Wish.BACK:
                self._line, self._how = None, ""
                self._draw(again=False)
            case None:
                self._draw(again=False)

    def _suspend(self) -> None:
        """Stop, and with us all of the job, as the kernel has it; whoever serves the terminal does our part when the signal comes."""
        os.kill(0, signal.SIGTSTP)

    def _answer(self, how: str, *, why: str = "", word: str = "") -> None:
        assert self._frame is not None
        given = Given(how=how, who=self._who, channel="terminal", why=why, word=word)
        match self._desk.answer(self._frame.row["approval"], given):
            case Taken():
                self._line, self._how = None, ""
                self._look()
                return
            case WordWanted(pause=pause):
                self._line, self._how = Line(LONGEST_WORD), how
                self._answers_from = time.monotonic() + pause + 0.05
                self._next_look = self._answers_from
            case NotTaken(reason=reason):
                self._line, self._how = None, ""
                self._frame.note = reason
        self._draw(again=False)

    def _hung_up(self) -> None:
        """The terminal is gone: whoever sat there says no to what waits."""
        if not self._gone:
            self._gone = True
            for row in self._desk.rows():
                self._desk.answer(row["approval"], Given(how="deny", who=self._who, channel="terminal"))
        self.leave()
        self._next_look = 0.0


def at_terminal() -> TerminalQuestions | None:
    """Return what asks on the controlling terminal; None where there is none."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    return TerminalQuestions(descriptor)
