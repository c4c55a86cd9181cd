"""Step 4: what a workspace's files are called besides: by links, and by git's settings.

`.git/hooks/pre-commit -> ../../scripts/check`, `core.hooksPath = tools/hooks` and `.vscode -> editors/code` are all
common. What they lead to is a plain file by its own name, and runs by the other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

Alias = tuple[str, str]
"""A path without links, and another name of it."""


def of_git(git: str) -> list[Alias]:
    """Return the aliases of what belongs to a `.git` but lies elsewhere."""
    from broker.classify.formats import Unreadable, settings

    found: list[Alias] = []
    for folder in (git, f"{git}/hooks", f"{git}/info"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found += [(os.path.realpath(entry.path), entry.path) for entry in entries if entry.is_symlink()]
    try:
        table = settings("git", Path(git, "config").read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, Unreadable):
        return found
    for key, base, name in (("core.hookspath", os.path.dirname(git), "hooks"), ("include.path", git, "config")):
        for value in table.get(key, ()):
            found.append((os.path.realpath(os.path.join(base, os.path.expanduser(value))), f"{git}/{name}"))
    return found


def within(roots: Iterable[str], aliases: Iterable[Alias]) -> tuple[Alias, ...]:
    """Keep those of what lies below these folders. A link that leads to a folder above itself means nothing."""
    below = tuple(f"{root}/" for root in roots if root)
    kept = {(path, name) for path, name in aliases if path.startswith(below) and not name.startswith(f"{path}/")}
    return tuple(sorted(kept))
