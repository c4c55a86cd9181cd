"""Step 2: one word of a command: its text, and how much of it is known. Shell text becomes these in words.py."""

from __future__ import annotations

from broker.classify.scope import TAME, UNKNOWN


class Word:
    """A word. `static`: bash passes exactly `text`. `glob`: it may become several names."""

    __slots__ = ("end", "glob", "start", "static", "text")

    def __init__(self, text: str, static: bool, glob: bool, start: int, end: int) -> None:
        self.text, self.static, self.glob, self.start, self.end = text, static, glob, start, end

    @property
    def known(self) -> bool:
        """Whether the text is known, even if it is a pattern."""
        return UNKNOWN not in self.text and TAME not in self.text

    def __repr__(self) -> str:
        return f"Word({self.text!r}, static={self.static}, glob={self.glob})"
