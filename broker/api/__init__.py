"""The Python interface: `from broker import Broker, AsyncBroker` (docs/python.md).

AsyncBroker is in broker.api.aio, which loads asyncio.
"""

from broker.api.broker import Broker
from broker.api.calls import DelegateOptions, RunOptions
from broker.api.settings import Options, define_profile
from broker.api.values import (
    Change,
    Changes,
    Denial,
    Explanation,
    FileResult,
    Layer,
    Outcome,
    Part,
    PlanCheck,
    PlanStatus,
    PlanStep,
    ProfileInfo,
    Reason,
    RunResult,
    TaskInfo,
    Usage,
    Verdict,
)
from broker.decide.profile import Profile
from broker.errors import BrokerError, GuardError, HostCannotEnforce, JournalError, ProfileError, UsageError
from broker.request.delegation import TaskRequest

__all__ = [
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
    "define_profile",
]
