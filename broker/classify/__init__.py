"""Step 2: operation + context -> Assessment. Pure.

Names are loaded on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.classify.classifier import classify
    from broker.classify.environment import changes_what_runs
    from broker.classify.paths import is_secret, protected_paths
    from broker.classify.tables import tables_digest
    from broker.classify.version import CLASSIFIER_VERSION

    WATCHED_ENV: tuple[str, ...]
    WATCHED_NAMES: tuple[str, ...]

__all__ = [
    "CLASSIFIER_VERSION",
    "WATCHED_ENV",
    "WATCHED_NAMES",
    "changes_what_runs",
    "classify",
    "is_secret",
    "protected_paths",
    "tables_digest",
]


def __getattr__(name: str) -> Any:
    match name:
        case "classify":
            from broker.classify.classifier import classify as found
        case "changes_what_runs":
            from broker.classify.environment import changes_what_runs as found
        case "is_secret":
            from broker.classify.paths import is_secret as found
        case "protected_paths":
            from broker.classify.paths import protected_paths as found
        case "tables_digest":
            from broker.classify.tables import tables_digest as found
        case "CLASSIFIER_VERSION":
            from broker.classify.version import CLASSIFIER_VERSION as found
        case "WATCHED_ENV":
            from broker.classify.environment import watched_env

            found = watched_env()
        case "WATCHED_NAMES":
            from broker.classify.paths import watched_names

            found = watched_names()
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
