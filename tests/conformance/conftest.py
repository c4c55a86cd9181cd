"""The fixtures of the conformance suite."""

from conformance.fixtures import (  # noqa: F401 - fixtures are used by name
    broker,
    by_somebody,
    engine,
    folder,
    for_somebody,
    make_broker,
)
