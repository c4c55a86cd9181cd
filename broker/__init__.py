"""broker: runs AI agents in a container with no network, under a profile that the operator wrote.

`from broker import Broker, AsyncBroker`: docs/python.md. Nothing is loaded before it is wanted, so that the command line,
which needs none of it, starts as fast as without.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # true to whoever checks types, by its name: to import `typing` takes longer than all that `broker -V` does
if TYPE_CHECKING:
    from broker.api import (
        Broker,
        BrokerError,
        Change,
        Changes,
        DelegateOptions,
        Denial,
        Explanation,
        FileResult,
        GuardError,
        HostCannotEnforce,
        JournalError,
        Layer,
        Options,
        Outcome,
        Part,
        PlanCheck,
        PlanStatus,
        PlanStep,
        Profile,
        ProfileError,
        ProfileInfo,
        Reason,
        RunOptions,
        RunResult,
        TaskInfo,
        TaskRequest,
        Usage,
        UsageError,
        Verdict,
        define_profile,
    )
    from broker.api.aio import AsyncBroker

__all__ = [
    "AsyncBroker",
    "Broker",
    "BrokerError",
    "Change",
    "Changes",
    "DelegateOptions",
    "Denial",
    "Explanation",
    "FileResult",
    "GuardError",
    "HostCannotEnforce",
    "JournalError",
    "Layer",
    "Options",
    "Outcome",
    "Part",
    "PlanCheck",
    "PlanStatus",
    "PlanStep",
    "Profile",
    "ProfileError",
    "ProfileInfo",
    "Reason",
    "RunOptions",
    "RunResult",
    "TaskInfo",
    "TaskRequest",
    "Usage",
    "UsageError",
    "Verdict",
    "__version__",
    "define_profile",
]


def __getattr__(name: str) -> object:
    """Load the Python interface when something of it is named."""
    if name not in __all__:
        raise AttributeError(f"module 'broker' has no attribute {name!r}")
    if name == "AsyncBroker":
        from broker.api import aio  # with asyncio, which nobody else needs

        value: object = aio.AsyncBroker
    else:
        from broker import api

        value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
