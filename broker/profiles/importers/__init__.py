"""Profiles from other tools' permissions. One module per tool; `draft.py` holds what they have in common."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from broker.errors import UsageError
from broker.profiles.importers.draft import Draft

__all__ = ["Draft", "import_file"]


def import_file(origin: str, path: Path, name: str | None = None) -> tuple[Draft, ...]:
    """Return what a file of another tool means, as drafts of profiles. Raises UsageError for what is no such file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or 'error').lower()}") from None
    if len(content) > 1 << 20:
        raise UsageError(f"{path} is larger than 1 MiB; no such file needs that")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None
    module = import_module(f"broker.profiles.importers.{origin}")
    try:
        drafts: tuple[Draft, ...] = module.read(text, path.suffix, name)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a file of {origin}: {error}") from None
    return drafts
