"""Step 2: readers for programs whose arguments are a language of their own. The tables name them (`reader = …`).

Each takes a Call and adds to its finding. Importing this package registers them all.
"""

from broker.classify.readers import (
    building,
    builtins,
    files,
    git,
    interpreters,
    network,
    searching,
    system,
    text,
    wrappers,
)

__all__ = [
    "building",
    "builtins",
    "files",
    "git",
    "interpreters",
    "network",
    "searching",
    "system",
    "text",
    "wrappers",
]
