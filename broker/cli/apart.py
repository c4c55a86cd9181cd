"""Go on in a process that a client knows nothing of: however it ends the one that it started, what was done is settled.

MCP clients end their servers as they like: some kill the process group at once, and what had been done in the sandbox would
neither land nor be reported. In: nothing. Out: the same program, in a session of its own; the first process only waits.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def go_on_apart() -> int | None:
    """Fork. Returns None in the process that goes on, and in the other one, at the end, its exit code.

    INVARIANT: the one that goes on is told to end when the other is gone, whatever killed it (tests/serve/test_mcp.py).
    Nothing may have been started yet: no thread, no sandbox.
    """
    front = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until both know what to do with them
    worker = os.fork()
    if worker == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != front:
            os._exit(128 + signal.SIGTERM)  # it was quicker
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return None
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: os.kill(worker, number))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # the client's streams are the other's alone: that it closes them must be seen
        os.dup2(nothing, stream)
    os.close(nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
