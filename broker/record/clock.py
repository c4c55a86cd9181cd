"""Step 5: the time, as a record has it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def now() -> str:
    """Return the time as RFC 3339, UTC, microseconds."""
    seconds, rest = divmod(time.time_ns(), 1_000_000_000)
    return f"{_to_the_second(seconds)}.{rest // 1000:06}Z"


@lru_cache(maxsize=1)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]
