"""Something to test."""

from __future__ import annotations


def count(text: str) -> int:
    """Return the number of words."""
    return len(text.split())
