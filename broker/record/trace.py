"""Step 5: which trace a run belongs to. In: an environment. Out: what the first event says of it.

Whoever starts broker as a part of something larger says so in TRACEPARENT and TRACESTATE, as W3C's Trace Context spells them
(https://www.w3.org/TR/trace-context/, and OpenTelemetry's "Environment Variables as Context Propagation Carriers").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Version ff is none, and neither is an id of zeros; what follows the flags is for versions to come.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_MOST = 512  # of a tracestate: what the specification asks everybody to keep


def parent(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `traceparent`, and `tracestate` with it, if there is one; what is malformed is none, as the specification has it."""
    found = environment.get("TRACEPARENT", "").strip()
    if not _PARENT.fullmatch(found) or (found.startswith("00-") and len(found) != 55):
        return {}
    state = environment.get("TRACESTATE", "").strip()
    told = {"traceparent": found[:55]}
    return {**told, "tracestate": state} if state and len(state) <= _MOST and state.isprintable() and state.isascii() else told
