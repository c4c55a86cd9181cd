"""How text reaches a person's terminal: safely, and in colour only where colour is wanted.

Text that came from argv, a path or a program can hold escape sequences, bidirectional overrides and bytes
that are no text; shown raw, they repaint the operator's screen (CVE-2024-27936). Everything of that kind goes
through `escape` first. Imports nothing heavy: `broker --help` is on this path.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from typing import IO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """Return the text with everything that is not plainly visible written out: \\x1b, \\u202e, \\xff.

    A byte that was not UTF-8 (a surrogate, PEP 383) is shown as that byte.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _written_out(char) for char in text)


def _written_out(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape_lines(text: str, indent: str = "") -> str:
    """Escape each line; lines after the first are indented, so that none can pass for a line of ours."""
    return f"\n{indent}".join(escape(line) for line in text.split("\n"))


def shorten(text: str, width: int = 100) -> str:
    """Return at most `width` characters: the start, and a bit of the end, which often says the most."""
    if len(text) <= width:
        return text
    tail = min(width // 4, 20)
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"


def command_line(argv: list[str] | tuple[str, ...], width: int = 100) -> str:
    """Return an argv as a person would type it, safe to show."""
    import shlex

    # Quoting first, so that an escaped character cannot look like one that was typed.
    return shorten(escape(" ".join(shlex.quote(word) for word in argv)), width)


def speaks_utf8() -> bool:
    """Whether the locale is one of UTF-8. On a terminal of another, some bytes of a letter can be controls."""
    named = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "utf-8"
    return "utf8" in named.lower().replace("-", "")


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the controlling terminal. Without one, or at its end, the answer is no."""
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            import termios

            termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before the question is no answer to it
            terminal.write(question.encode("utf-8", "backslashreplace"))
            return terminal.readline(64).strip().lower() in (b"y", b"yes")
    except OSError:
        return False


def wants_colour(stream: IO[str]) -> bool:
    """Tell whether to colour what goes to this stream: no-color.org, bixense.com/clicolors, a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


class Colours:
    """Colours for one stream, or none."""

    __slots__ = ("enabled",)

    def __init__(self, stream: IO[str] | None) -> None:
        """Look at the stream and the environment once. No stream: no colours."""
        self.enabled = stream is not None and wants_colour(stream)

    def paint(self, text: str, *styles: str) -> str:
        """Return the text in the styles (bold, dim, red, green, yellow, blue, cyan)."""
        if not self.enabled or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def risk(self, label: str) -> str:
        """Return a class's name in the colour of its weight."""
        match label:
            case "safe" | "local_write":
                return self.paint(label, "green")
            case "code_execution" | "install":
                return self.paint(label, "yellow")
            case _:
                return self.paint(label, "red")
