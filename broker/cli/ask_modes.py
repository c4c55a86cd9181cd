"""What a program has made of its terminal, as far as a question in between must undo it, and do it again afterwards.

In: all that the program wrote to the terminal, in pieces of any size. Out: what to write before a question is drawn, and after
it. While a question is there a key must be that key (no mouse reports, no encoded keys), and what is written must appear as
text at its place: not in a string that the program left open, in line drawing signs, in another encoding, or within margins.

Sequences: ECMA-48; modes: xterm's ctlseqs; keys: the kitty keyboard protocol.
"""

from __future__ import annotations

import re
from dataclasses import field

from broker.values import dataclass

MOST_OPEN = 1 << 16  # bytes of a sequence that is not at its end

_SEQUENCE = re.compile(
    rb"\x1b(?:"
    rb"\[(?P<mark>[<-?!]?)(?P<numbers>[0-9;:]*)[ -/]*(?P<final>[@-~])"
    rb"|\[[0-?]*[ -/]*[@-~]"
    rb"|\](?P<colours>(?:[45]|1[0-9]);|P)"
    rb"|[\]PX^_][^\x07\x18\x1a\x1b]*(?:[\x07\x18\x1a]|\x1b\\)"
    rb"|(?P<coding>%[ -/]*[0-~])"
    rb"|[ -/]+[0-~]"
    rb"|(?P<single>[0-OQ-WYZ\\`-~])"
    rb")"
)
# Most of what programs write is text, colours and places: then only its end is looked at.
_OF_INTEREST = re.compile(rb"\x1b(?:\[(?:[<-?!]|[0-9;:]*[hl])|[]c=>%PX^_])")
_OPEN = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x18\x1a\x1b]*\x1b?|[ -/]*)|[\xc2-\xf4][\x80-\xbf]{0,2})\Z")
_LONGER = (0, 0xC2, 0xE0, 0xF0)  # the least first byte of a character of more than so many bytes

# Text of the colour of what is behind it is not to be read. What the program had made of them is not known, and not made again.
_THEIR_OWN_COLOURS = b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]R\x1b\\"

_ALTERNATE = frozenset((47, 1047, 1049))
_ON_AT_FIRST = frozenset((7, 25))  # lines go on at the margin; the cursor is seen
# Cursor keys, mouse (9, 1000 to 1003), focus, bracketed paste, colour scheme, size reports, keypad, margins, keys as Windows has them.
_OFF_WHILE_ASKING = (1, 9, 1000, 1001, 1002, 1003, 1004, 2004, 2031, 2048, 66, 69, 9001)
_KNOWN = frozenset((*_OFF_WHILE_ASKING, *_ON_AT_FIRST, *_ALTERNATE))


@dataclass(slots=True)
class Modes:
    """The state of a terminal's modes. `full_screen`: the program has the alternate screen.

    `recoloured`: it has changed what the colours are, and may have made one look like the background.
    """

    full_screen: bool = False
    recoloured: bool = False
    utf8: bool = True  # what we write is
    _on: set[int] = field(default_factory=lambda: set(_ON_AT_FIRST))
    _insert: bool = False
    _keypad: bool = False
    _encoded_keys: bool = False  # kitty's protocol was used
    _other_keys: bytes = b"0"  # xterm's modifyOtherKeys
    _coding: bytes = b""  # which encoding the program chose (ISO 2022): in another one, bytes of a letter are controls
    _open: bytes = b""  # a sequence, or a character, whose end has not come yet

    def saw(self, output: bytes) -> None:
        """Take in what the program wrote."""
        output, end = self._open + output, 0
        if not _OF_INTEREST.search(output):
            self._open = _tail(output[max(output.rfind(b"\x1b"), 0) :])[:MOST_OPEN]
            return
        for found in _SEQUENCE.finditer(output):
            end = found.end()
            if found["single"] is not None:
                self._single(found["single"])
            elif found["coding"] is not None:
                self._coding = found[0]
            elif found["colours"] is not None:
                self.recoloured = True
            elif found["final"] is not None:
                self._control(found["mark"], found["numbers"], found["final"])
        self._open = _tail(output[end:])[:MOST_OPEN]

    def _single(self, final: bytes) -> None:
        match final:
            case b"c":  # reset
                self.full_screen, self._on, self._insert, self._keypad = False, set(_ON_AT_FIRST), False, False
                self._encoded_keys, self._other_keys, self._coding = False, b"0", b""
            case b"=" | b">":
                self._keypad = final == b"="
            case _:
                pass

    def _control(self, mark: bytes, numbers: bytes, final: bytes) -> None:
        match mark, final:
            case b"?", b"h" | b"l":
                for number in numbers.split(b";"):
                    self._private(int(number[:6] or b"0") if number.isdigit() else 0, on=final == b"h")
            case b"", b"h" | b"l" if b"4" in numbers.split(b";"):
                self._insert = final == b"h"
            case b"<" | b"=" | b">", b"u":
                self._encoded_keys = True
            case b">", b"m" if numbers.split(b";")[0] == b"4":
                self._other_keys = (*numbers.split(b";"), b"0")[1][:3] or b"0"
            case b"!", b"p":  # soft reset
                self._insert, self._keypad = False, False
                self._on = (self._on | _ON_AT_FIRST) - {1}
            case _:
                pass

    def _private(self, number: int, *, on: bool) -> None:
        if number in _ALTERNATE:
            self.full_screen = on
        elif number in _KNOWN:
            (self._on.add if on else self._on.discard)(number)

    def before(self) -> bytes:
        """Return what makes a clean screen for a question, on which keys are keys."""
        off = b"".join(b"\x1b[?%dl" % mode for mode in _OFF_WHILE_ASKING if mode in self._on)
        keys = (b"\x1b>" if self._keypad else b"") + (b"\x1b[>4;0m" if self._other_keys != b"0" else b"")
        return (
            b"\x18\x1b\\"  # whatever was begun is over: else a string would swallow all that follows
            + (b"\x1b7" if self.full_screen else b"\x1b[?1049h")  # both keep cursor, colours, signs and origin
            + (b"\x1b%G" if self.utf8 else b"")
            + b"\x1bW\x1b[2l"  # nothing of ours stays when it is erased; no key is locked out
            + b"\x1b[0 k\x1b[?2501l"  # lines run from left to right (VTE)
            + (_THEIR_OWN_COLOURS if self.recoloured else b"")
            + b"\x1b[?6l\x1b(B\x0f\x1b[m\x1b[?7l\x1b[?25l\x1b[?2026l"
            + (b"\x1b[4l" if self._insert else b"") + off + keys
            + (b"\x1b[>0u" if self._encoded_keys else b"")  # after the change of screens: each has a stack of its own
            + b"\x1b[2J"
        )  # fmt: skip

    def after(self) -> bytes:
        """Return what undoes `before`. A program that has the whole screen must draw it again."""
        on = b"".join(b"\x1b[?%dh" % mode for mode in (*_OFF_WHILE_ASKING, *sorted(_ON_AT_FIRST)) if mode in self._on)
        keys = (b"\x1b=" if self._keypad else b"") + (b"\x1b[>4;%bm" % self._other_keys if self._other_keys != b"0" else b"")
        return (
            b"\x1b[m\x1b[2J" + self._coding
            + (b"\x1b[<u" if self._encoded_keys else b"")
            + keys + on + (b"\x1b[4h" if self._insert else b"") + (b"" if 25 in self._on else b"\x1b[?25l")
            + (b"\x1b8" if self.full_screen else b"\x1b[?1049l")
            + self._open
        )  # fmt: skip


def _tail(text: bytes) -> bytes:
    """Return what a text ends with that is not whole: a sequence, or a character in UTF-8."""
    found = _OPEN.search(text)
    if found is None:
        return b""
    tail = found[0]
    return tail if tail[0] == 0x1B or tail[0] >= _LONGER[len(tail)] else b""
