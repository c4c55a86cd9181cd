"""Diagnostics on stderr: for the operator who debugs, apart from the events, which are the record.

$BROKER_LOG chooses: `console` (the default) or `json`, and a level after a colon (`json:debug`); `off`.
structlog is imported at the first use, because most commands never say anything here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_logger: FilteringBoundLogger | None = None


def get_log() -> FilteringBoundLogger:
    """Return the logger, made from $BROKER_LOG at the first call."""
    global _logger
    if _logger is None:
        _logger = _make(os.environ.get("BROKER_LOG", ""))
    return _logger


def diagnose(event: str, **fields: object) -> None:
    """Say what is going on, for whoever set $BROKER_LOG to info or debug. Otherwise structlog is not even loaded."""
    if os.environ.get("BROKER_LOG"):
        get_log().info(event, **fields)


def _make(choice: str) -> FilteringBoundLogger:
    import structlog

    form, _, level = choice.lower().partition(":")
    if form in _LEVELS:  # BROKER_LOG=debug is what people try first
        form, level = "console", form
    threshold = _LEVELS.get(level, _LEVELS["warning"])
    shown: structlog.typing.Processor
    if form == "off":
        shown = _drop
    elif form == "json":
        shown = structlog.processors.JSONRenderer(sort_keys=True, ensure_ascii=True)
    else:
        # Keys and values as `repr`, because a value can hold an escape sequence that an agent chose.
        shown = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_secrets,
            shown,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
    )
    return logger


def _without_secrets(
    logger: object, method: str, fields: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    from broker.record.redact import redact

    return redact(fields)[0]


def _drop(logger: object, method: str, fields: MutableMapping[str, object]) -> NoReturn:
    from structlog import DropEvent

    raise DropEvent
