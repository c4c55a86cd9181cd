"""Step 3: how far a task is trusted. Stamped into a task when it starts, never raised afterwards."""

from __future__ import annotations

from enum import IntEnum


class Trust(IntEnum):
    """The order is the policy: of two, the lesser counts."""

    UNTRUSTED = 0
    TRUSTED = 1

    @property
    def label(self) -> str:
        """The name people read and write."""
        return self.name.lower()

    @classmethod
    def parse(cls, label: str) -> Trust:
        """Return the trust with this label. Raises KeyError for any other text."""
        if label != label.lower():
            raise KeyError(label)
        return cls[label.upper()]
