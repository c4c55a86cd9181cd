"""What the command line, and the `broker` inside a sandbox, end with. The one place where these numbers stand.

docs/exit-codes.md says the same to people (a test compares).
"""

from __future__ import annotations

OK = 0
TAMPERED = 1  # of `events verify`; elsewhere 1 is the command's own
NOTHING = 1  # of `tasks kill`, `approvals` and `plan`
USAGE = 64  # the names and numbers 64 to 78 are those of sysexits.h
BAD_PROFILE = 65
NO_SINK = 69
INTERNAL = 70
CANNOT_JOURNAL = 73
NO_OUTPUT = 74
BUDGET = 75
HELD_BACK = 76
DENIED = 77
CANNOT_ENFORCE = 78
TIMEOUT = 124  # as timeout(1)
DENIED_COMMAND = 126  # as the shell: found, but may not be run
NOT_FOUND = 127  # as the shell
SIGNAL = 128  # plus the signal's number

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (OK, "it worked"),
    (TAMPERED, "`events verify`: a journal was altered; `tasks kill`, `approvals`, `plan`: there is no such task, question or plan"),
    (USAGE, "the command line is wrong"),
    (BAD_PROFILE, "a profile cannot be used"),
    (NO_SINK, "`export`: the other side cannot be reached, or does not take it"),
    (INTERNAL, "broker or its guard failed; nothing runs on without them"),
    (CANNOT_JOURNAL, "what happens could not be recorded, so it did not happen"),
    (NO_OUTPUT, "the output could not be written (a full disk, say); what was done is done"),
    (BUDGET, "a budget that sub-tasks share is used up"),
    (HELD_BACK, "it worked, but its changes are kept: what they may land on is not so (`--land on-plan`, `--land on-panel`); `judge`: a panel blocked them"),
    (DENIED, "the profile does not permit this at all"),
    (CANNOT_ENFORCE, "this host cannot enforce a layer that the profile requires"),
    (TIMEOUT, "the time limit was reached"),
    (DENIED_COMMAND, "`exec`: the command was denied"),
    (NOT_FOUND, "the command was not found"),
)
