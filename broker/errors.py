"""Exceptions: what cannot go on. A denial is never one of these; it is a value and an event.

BrokerError
├── UsageError                exit 64: the command line is wrong
├── ProfileError              exit 65: an operator file cannot be used
│   ├── ProfileNotFound
│   ├── ProfileInvalid
│   └── ProfileWritableByOthers …
├── JournalError              exit 73: what happens could not be recorded, so it does not happen
├── HostCannotEnforce         exit 78: a layer that the profile requires cannot be made here
└── GuardError                exit 70: the guard broke the protocol or died; the task is over
"""

from __future__ import annotations


class BrokerError(Exception):
    """The root. `exit_code` is what the command line ends with."""

    exit_code = 70


class UsageError(BrokerError):
    """The command line, or a call, asks for something that makes no sense."""

    exit_code = 64


class ProfileError(BrokerError):
    """A profile cannot be used."""

    exit_code = 65


class JournalError(BrokerError):
    """Nothing can be recorded, so nothing runs."""

    exit_code = 73


class HostCannotEnforce(BrokerError):
    """The host lacks what a layer needs. The message says the exact remedy."""

    exit_code = 78

    def __init__(self, layer: str, why: str, remedy: str) -> None:
        super().__init__(f"{layer}: {why}. {remedy}")
        self.layer, self.why, self.remedy = layer, why, remedy


class GuardError(BrokerError):
    """The guard died or spoke nonsense. The kernel has ended the task."""
