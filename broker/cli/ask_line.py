"""A line that is typed on a raw terminal. In: bytes as they come. Out: its text, and what the last key wants."""

from __future__ import annotations

import codecs
import re
from dataclasses import field
from enum import Enum

from broker.values import dataclass

_SEQUENCE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|[^\\[O])")


class Wish(Enum):
    """What a key in the line asks for."""

    ENTER = "enter"
    BACK = "back"  # Esc
    DENY = "deny"  # Ctrl-C
    SUSPEND = "suspend"  # Ctrl-Z


_WISHES = {"\r": Wish.ENTER, "\n": Wish.ENTER, "\x1b": Wish.BACK, "\x03": Wish.DENY, "\x1a": Wish.SUSPEND}


@dataclass(slots=True)
class Line:
    """A line of at most so many characters. Backspace, Ctrl-W (a word) and Ctrl-U (all) take away."""

    most: int
    text: str = ""
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, typed: bytes) -> Wish | None:
        """Take in what was typed. What comes after a key that ends it is thrown away."""
        for char in _SEQUENCE.sub("", self._decoder.decode(typed)):
            if char in _WISHES:
                return _WISHES[char]
            match char:
                case "\x7f" | "\b":
                    self.text = self.text[:-1]
                case "\x15":
                    self.text = ""
                case "\x17":
                    self.text = self.text.rstrip().rpartition(" ")[0]
                case _ if char.isprintable() and len(self.text) < self.most:
                    self.text += char
                case _:
                    pass
        return None
