"""Step 3: what the broker's own client inside does to files by itself, so that it is judged by whoever lets it start."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from broker.request.operation import FileAction, FileChange, FileRead

AGREED = "broker.agreed"  # the rule by which the client writes what the operator has agreed to


def files_touched(argv: Sequence[str], cwd: str) -> FileChange | FileRead | None:
    """Return what `broker file read` and `broker file write` are about to do (guard/client_file.c); None: nothing of that."""
    match argv[1:]:
        case ("file", "read", *words):
            at = next((word for word in words if word != "--"), "")
            return FileRead(path=posixpath.normpath(posixpath.join(cwd, at)))
        case ("file", "write", *words) if words and words[-1] != "--help":
            return FileChange(action=FileAction.WRITE, path=posixpath.normpath(posixpath.join(cwd, words[-1])))
        case _:
            return None
