"""Step 2: operation + context -> Assessment. Pure.

Names are loaded on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
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


_HOMES = {
    "classify": "classifier",
    "changes_what_runs": "environment",
    "is_secret": "paths",
    "protected_paths": "paths",
    "tables_digest": "tables",
    "CLASSIFIER_VERSION": "version",
}
_COMPUTED = {"WATCHED_ENV": ("environment", "watched_env"), "WATCHED_NAMES": ("paths", "watched_names")}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(f"broker.classify.{_HOMES[name]}"), name)
    elif name in _COMPUTED:
        module, function = _COMPUTED[name]
        found = getattr(import_module(f"broker.classify.{module}"), function)()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
