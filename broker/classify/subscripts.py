"""Step 2: commands that wait in subscripts. In goes a value or a raw text; out comes whether one does.

bash expands a subscript when it evaluates it, not when it is written: `x='a[$(id)]'` runs nothing, `$((x))` does.
"""

from __future__ import annotations

import re

_IN_VALUE = re.compile(r"\[[^\]\[]*(?:\$\(|`)")
_IN_QUOTES = re.compile(r"\['[^'\n]*(?:\$\(|`)")


def hides_a_command(value: str) -> bool:
    """Whether a value holds a command that runs once arithmetic, a reference or a test meets it."""
    return "[" in value and _IN_VALUE.search(value) is not None


def quotes_a_command(raw: str) -> bool:
    """Whether a raw subscript quotes a command: what is in it is expanded a second time."""
    return "['" in raw and _IN_QUOTES.search(raw) is not None
