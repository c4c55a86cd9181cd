"""What is run inside a framework's environment: scripts beside this file, and the blocks of docs/integrations.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., str]

INSIDE = Path(__file__).parent / "inside"
DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", DOCUMENTATION, re.MULTILINE | re.DOTALL)


def block_with(word: str) -> str:
    """Return the block of the documentation that has this word. There must be one."""
    (found,) = (code for code in BLOCKS if word in code)
    return str(found)
